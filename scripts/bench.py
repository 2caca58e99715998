# SPDX-License-Identifier: GPL-2.0
"""Measures the module, prints tables, and fails if a bar is missed.

The environment may have KERNEL, as for smoke.py, and PARTS: which parts to measure, by their names
here. Each part has its table in `build/bench/PART.md`, and its figures, with what they are made of,
in `build/bench/PART.json`; plots are beside them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import against_c
import against_user
import growth
import kernel
import loop
import matrix
import plots
from buildroot import BuildRoot
from count import DIRECTORY
from figures import Part, Times
from kernel import Kernel
from report import Failure, main


def _against_user(root: BuildRoot, chosen: Kernel) -> Part:
    part = against_user.compare(root, chosen)
    plots.latencies(part.details, DIRECTORY / "latency.svg")
    return part


def _growth(root: BuildRoot, chosen: Kernel) -> Part:
    part = growth.measure(root, chosen)
    plots.growth(part.details, DIRECTORY / "growth.svg")
    return part


_PARTS: dict[str, Callable[[BuildRoot, Kernel], Part | Times]] = {
    "c": against_c.compare,
    "user": _against_user,
    "growth": _growth,
    "loop": lambda _root, _chosen: loop.measure(),
}


def _measure(name: str, root: BuildRoot, chosen: Kernel, built: str) -> Part | Times:
    """Measure a part, and write it down at once: the next one may fail."""
    part = _PARTS[name](root, chosen)
    text = f"<!-- SPDX-License-Identifier: GPL-2.0 -->\n{built}\n\n{part.markdown()}"
    (DIRECTORY / f"{name}.md").write_text(text)
    contents = {"version": 1, "built": built, **part.as_json()}
    (DIRECTORY / f"{name}.json").write_text(json.dumps(contents, indent=2) + "\n")
    print(f"\n{part.markdown()}\n({DIRECTORY}/{name}.md, {name}.json)\n", flush=True)
    return part


def _bench() -> int:
    names = os.environ.get("PARTS", "").split() or list(_PARTS)
    for name in names:
        if name not in _PARTS:
            raise Failure(f"PARTS: there is no {name!r}; there are: {', '.join(_PARTS)}")
    root, chosen = kernel.ensure(os.environ.get("KERNEL", ""))
    rustc, _, c = matrix.compilers(chosen.config)
    built = f"Linux {chosen.release}, rustc {rustc}, {c}"
    print(built, flush=True)
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    parts = [_measure(name, root, chosen, built) for name in names]
    figures = [it for part in parts for it in part.figures if it.passed is not None]
    missed = [it.name for it in figures if not it.passed]
    if missed:
        raise Failure(f"{len(missed)} of {len(figures)} bars missed: {'; '.join(missed)}")
    print(f"bench success: all {len(figures)} bars")
    return 0


if __name__ == "__main__":
    main(_bench)
