# SPDX-License-Identifier: GPL-2.0
"""Times `make smoke`: from nothing, once more, and after an edit, with what each step took."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import cache
from count import DIRECTORY
from figures import Times
from module import PROJECT
from report import run, step

# A step that says how long it took, and what it said meanwhile.
_STEP = re.compile(r"^==> (.+)\n(?:(?!==>).*\n)*?    done, ([\d.]+) s$", re.MULTILINE)

_NOTES = (
    "The first time nothing is there but the sources: Debian's packages are downloaded and Rust's"
    " crates are built. After that everything is in the cache, for every clone. The edit is of"
    " `smoke.rs`, after which the module is built again.",
    "The times are those of this machine and of its network. The rest is mostly the guest at work.",
)


def steps(output: str) -> dict[str, float]:
    """Return how long each step took, in seconds, by what a program has printed of them."""
    # What is in parentheses is how much it is, or how long it may take.
    return {re.sub(r" \(.*\)", "", title): float(time) for title, time in _STEP.findall(output)}


def _smoke(sources: Path, kept: Path, when: str) -> dict[str, float]:
    """Run `make smoke`; return how long it took, step by step."""
    log = DIRECTORY / f"smoke-{when.replace(' ', '-')}.log"
    log.unlink(missing_ok=True)
    with step(f"Timing 'make smoke', {when}") as progress:
        command: list[str | Path] = ["make", "--no-print-directory", "-C", sources, "smoke"]
        run(progress, command, log, env={"XDG_CACHE_HOME": f"{kept}"})
        total = progress.seconds()
    found = steps(log.read_text())
    return {**found, "the rest": total - sum(found.values()), "all of it": total}


def measure() -> Times:
    """Time it all, in a copy of the sources and with a cache of its own."""
    place = DIRECTORY / "loop"
    sources, kept = place / "sources", place / "cache"
    cache.remove(place)
    try:
        shutil.copytree(PROJECT, sources, ignore=shutil.ignore_patterns("build", ".git"))
        times = {when: _smoke(sources, kept, when) for when in ("from nothing", "once more")}
        with (sources / "smoke.rs").open("a") as file:
            file.write("\n// An edit.\n")
        times["after an edit"] = _smoke(sources, kept, "after an edit")
    finally:
        cache.remove(place)
    return Times("The loop", times, _NOTES)
