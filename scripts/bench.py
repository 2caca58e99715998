# SPDX-License-Identifier: GPL-2.0
"""Measures the module, prints a table, and fails if a bar is missed.

The environment may have KERNEL, as for smoke.py. The figures are in `build/bench.json`, with what
they are made of, and in `build/bench.md`.
"""

from __future__ import annotations

import json
import os

import against_c
import kernel
import matrix
from module import PROJECT
from report import Failure, main

_JSON = PROJECT / "build" / "bench.json"
_TABLE = PROJECT / "build" / "bench.md"


def _bench() -> int:
    root, chosen = kernel.ensure(os.environ.get("KERNEL", ""))
    rustc, _, c = matrix.compilers(chosen.config)
    built = f"Linux {chosen.release}, rustc {rustc}, {c}"
    print(built, flush=True)
    parts = [against_c.compare(root, chosen)]
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
