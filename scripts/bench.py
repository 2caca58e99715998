# SPDX-License-Identifier: GPL-2.0
"""Measures the module, prints tables, and fails if a bar is missed.

The environment may have KERNEL, as for smoke.py, and PARTS: which parts to measure, by their names
here. The figures are in `build/bench.json`, with what they are made of, and in `build/bench.md`;
plots are beside them, in `build/bench`.
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
from module import PROJECT
from report import Failure, main

_JSON = PROJECT / "build" / "bench.json"
_TABLE = PROJECT / "build" / "bench.md"


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


def _bench() -> int:
    names = os.environ.get("PARTS", "").split() or list(_PARTS)
    for name in names:
        if name not in _PARTS:
            raise Failure(f"PARTS: there is no {name!r}; there are: {', '.join(_PARTS)}")
    root, chosen = kernel.ensure(os.environ.get("KERNEL", ""))
    rustc, _, c = matrix.compilers(chosen.config)
    built = f"Linux {chosen.release}, rustc {rustc}, {c}"
    print(built, flush=True)
    parts = [_PARTS[name](root, chosen) for name in names]
    text = "\n".join(part.markdown() for part in parts)
    _TABLE.write_text(f"<!-- SPDX-License-Identifier: GPL-2.0 -->\n{built}\n\n{text}")
    contents = {"version": 1, "built": built, "parts": [part.as_json() for part in parts]}
    _JSON.write_text(json.dumps(contents, indent=2) + "\n")
    print(f"\n{text}\n({_TABLE}, {_JSON})", flush=True)
    figures = [it for part in parts for it in part.figures if it.passed is not None]
    missed = [it.name for it in figures if not it.passed]
    if missed:
        raise Failure(f"{len(missed)} of {len(figures)} bars missed: {'; '.join(missed)}")
    print(f"bench success: all {len(figures)} bars")
    return 0


if __name__ == "__main__":
    main(_bench)
