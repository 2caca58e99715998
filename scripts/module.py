# SPDX-License-Identifier: GPL-2.0
"""Builds the module for a kernel of the cache, in the build root.

Each kernel has a directory of its own below `build/`, in which the sources are links; so building
for one kernel does not touch what was built for another, nor what `make` builds for this machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from buildroot import BuildRoot
from ib_core import SPECIAL
from kernel import Kernel
from report import Failure

PROJECT = Path(__file__).resolve().parent.parent

NAME = "krdma_smoke"


@dataclass(frozen=True)
class Built:
    """A finished module."""

    ko: Path
    messages: str
    """What Kbuild and the compilers printed."""

    @property
    def warned(self) -> bool:
        """Whether there was a warning; modpost's are in capitals."""
        return "warning" in self.messages.lower()


# What the names of functions that panic have in common, in whichever crate they are.
_PANIC = re.compile(r"panic|_fail")


def panics(symbols: Iterable[str]) -> list[str]:
    """Return those symbols that are functions which panic."""
    return [symbol for symbol in symbols if symbol.startswith("_R") and _PANIC.search(symbol)]


def undefined(root: BuildRoot, ko: Path) -> list[str]:
    """Return the symbols that a module takes from elsewhere."""
    lines = root.output(["nm", "--undefined-only", ko], readable=[PROJECT]).splitlines()
    return [line.split()[-1] for line in lines]


def directory(kernel: Kernel, variant: str = "") -> Path:
    """Return where the module is built for a kernel, with the sources in place."""
    if SPECIAL.search(f"{PROJECT}"):
        raise Failure(
            f"Kbuild cannot build below '{PROJECT}', whose name has a space or a special character;"
            " move the sources"
        )
    path = PROJECT / "build" / (f"{kernel.release}-{variant}" if variant else kernel.release)
    path.mkdir(parents=True, exist_ok=True)
    names = [
        "Kbuild",
        "bindings_helper.h",
        "layout.c",
        "scripts",
        "traffic",
        "verbs",
        *(file.name for file in PROJECT.glob("*.rs")),
    ]
    wanted = {path / name: PROJECT / name for name in names}
    for link in path.iterdir():
        if link.is_symlink() and wanted.get(link) != link.readlink():
            link.unlink(missing_ok=True)
    for link, source in wanted.items():
        with contextlib.suppress(FileExistsError):
            link.symlink_to(source)
    return path


def kbuild(root: BuildRoot, kernel: Kernel, path: Path, *arguments: str) -> str:
    """Run Kbuild for the external module in `path` and return what it printed."""
    make = ["make", "-C", kernel.headers, f"M={path}", f"-j{os.cpu_count() or 1}"]
    make += [*kernel.make, f"IB_CORE={kernel.ib_core}", f"OFED_DIR={kernel.ofed or ''}", *arguments]
    command = root.command(
        make,
        writable=[PROJECT],
        readable=[kernel.path, *([kernel.vendor] if kernel.vendor else [])],
        sources=[kernel.sources],
    )
    # Two builds in one directory would tread on each other.
    with (path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if result.returncode != 0:
        print(result.stdout, end="", flush=True)
        raise Failure(f"{path} does not build for Linux {kernel.release}, see above")
    return result.stdout


def compile_program(
    root: BuildRoot, source: Path, target: Path, *flags: str, readable: Iterable[Path] = ()
) -> Path:
    """Compile a program in C of one file, for this machine or for a guest.

    `readable` is what it is compiled with, beside what the build root and the project have.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [root.recipe.gcc, "-Wall", "-Wextra", "-Werror", "-O2"]
    command += ["-o", target, source, *flags]
    result = subprocess.run(
        root.command(command, readable=[PROJECT, *readable], writable=[target.parent]),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if result.returncode != 0:
        print(result.stderr, end="", flush=True)
        raise Failure(f"{source} does not compile, see above")
    return target


def build(root: BuildRoot, kernel: Kernel, *arguments: str, variant: str = "") -> Built:
    """Build the module; `variant` keeps apart what is built with other arguments."""
    path = directory(kernel, variant)
    messages = kbuild(root, kernel, path, *arguments, "modules")
    return Built(path / f"{NAME}.ko", messages)
