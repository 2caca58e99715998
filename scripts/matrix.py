# SPDX-License-Identifier: GPL-2.0
"""Builds the module for every kind of kernel, without a warning, and shows it at work on each.

The environment may have ROWS: words, of which a row has to have one in its name to be tried.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

import buildroot
import cache
import custom
import kernel
import module
import smoke
import vendor
from archive import Archive, newest_of_older_series
from buildroot import SID, TRIXIE, TRIXIE_ARM64, BuildRoot
from kernel import Kernel
from report import Failure, main, markdown, step

_TABLE = module.PROJECT / "build" / "matrix.md"

_HEADER = (
    *("kernel", "architecture", "rustc", "bindgen", "C compiler", "ib_core", "build", "smoke"),
)


@dataclass(frozen=True)
class Row:
    """A kernel that the module is tried on."""

    name: str
    ensure: Callable[[], tuple[BuildRoot, Kernel]]
    """What makes the kernel, unless it is in the cache."""
    ib_core: str = "the kernel's"


def _older() -> tuple[BuildRoot, Kernel]:
    """Return the newest kernel of the series before the newest."""
    version = newest_of_older_series(Archive(buildroot.ensure()).versions())
    if version is None:
        raise Failure(f"{TRIXIE.kernels} offers one series only; look again after 'make update'")
    return kernel.ensure(version.release)


def _vendor(flavour: str) -> tuple[BuildRoot, Kernel]:
    """Return the newest kernel with a vendor's RDMA stack."""
    root, chosen = kernel.ensure()
    return root, vendor.ensure(root, chosen, flavour)


ROWS = (
    Row("trixie-backports", kernel.ensure),
    Row("OFED-like, devices", lambda: _vendor("devices"), "like OFED's"),
    Row(
        "OFED-like, devices and clients",
        lambda: _vendor("devices-clients"),
        "like OFED's, other clients",
    ),
    Row("trixie-backports, the series before", _older),
    Row("sid", lambda: kernel.ensure(recipe=SID)),
    Row("LLVM, a kernel of our own", lambda: custom.ensure_custom("vm", ["vm.config"])),
    Row("trixie-backports, arm64", lambda: kernel.ensure(recipe=TRIXIE_ARM64)),
)


def chosen_rows(words: list[str]) -> list[Row]:
    """Return the rows that have one of the words in their name; without words, all."""
    for word in words:
        if not any(word in row.name for row in ROWS):
            names = "; ".join(row.name for row in ROWS)
            raise Failure(f"no row has {word!r} in its name; there are: {names}")
    return [row for row in ROWS if not words or any(word in row.name for word in words)]


def _number(text: str) -> str:
    """Return the version in what a compiler says of itself."""
    return next((word for word in text.split() if word[:1].isdigit()), text)


def compilers(config: dict[str, str]) -> tuple[str, str, str]:
    """Return what built a kernel, by its configuration: rustc, bindgen and the C compiler."""
    rustc, bindgen, c = (
        config.get(f"CONFIG_{name}_VERSION_TEXT", "?") for name in ("RUSTC", "BINDGEN", "CC")
    )
    # `x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0`, `Debian clang version 19.1.7 (3+b1)`
    kind = "clang" if "clang" in c else "gcc"
    return _number(rustc), _number(bindgen), f"{kind} {_number(c.partition(')')[2] or c)}"


def table(lines: list[list[str]]) -> str:
    """Return a table in Markdown."""
    return markdown([_HEADER, ["---"] * len(_HEADER), *lines])


def _build(root: BuildRoot, chosen: Kernel, row: Row) -> module.Built:
    """Build the module from nothing, so that every warning is seen."""
    variant = re.sub(r"\W+", "-", f"matrix {row.name}")
    cache.remove(module.directory(chosen, variant))
    with step("Building the module") as progress:
        built = module.build(root, chosen, variant=variant)
        if built.warned:
            progress.say(built.messages)
            raise Failure("the module builds with a warning, see above")
    return built


def _try(row: Row) -> tuple[list[str], str]:
    """Try one row; return its cells, and what was wrong, if anything."""
    cells = [row.name, *("?",) * 4, row.ib_core, "-", "-"]
    try:
        root, chosen = row.ensure()
        cells[:5] = [chosen.release, root.recipe.arch.debian, *compilers(chosen.config)]
        cells[6] = "failed"
        built = _build(root, chosen, row)
        cells[6:] = ["no warning", "failed"]
        smoke.perform(root, chosen, built.ko, built.ko.parent / "smoke.log")
        cells[7] = f"{smoke.STEPS} of {smoke.STEPS} steps, log clean"
    except (Failure, OSError, subprocess.CalledProcessError) as failure:
        print(f"    {failure}", flush=True)
        return cells, f"{row.name}: {failure}"
    return cells, ""


def run(words: list[str]) -> int:
    """Try the rows and print the table; fail in the end if one of them has failed."""
    rows = chosen_rows(words)
    lines: list[list[str]] = []
    wrong: list[str] = []
    for number, row in enumerate(rows, 1):
        print(f"\nRow {number} of {len(rows)}: {row.name}", flush=True)
        cells, failure = _try(row)
        print(f"    {' | '.join(cells)}", flush=True)
        lines.append(cells)
        wrong += [failure] if failure else []
    text = table(lines)
    _TABLE.parent.mkdir(exist_ok=True)
    _TABLE.write_text(f"<!-- SPDX-License-Identifier: GPL-2.0 -->\n{text}")
    print(f"\n{text}\n({_TABLE})", flush=True)
    if wrong:
        raise Failure(f"{len(wrong)} of {len(rows)} rows failed: {'; '.join(wrong)}")
    print(f"matrix success: {len(rows)} rows")
    return 0


if __name__ == "__main__":
    main(lambda: run(os.environ.get("ROWS", "").split()))
