# SPDX-License-Identifier: GPL-2.0
"""Bugs on purpose, each of which the lab has to find: else it finds none of the others, either."""

from __future__ import annotations

from collections.abc import Callable

import module
import pytest
from guest import Guest
from systems import System
from table import NewRow

pytestmark = [pytest.mark.systems("kasan", "kasan-siw"), pytest.mark.long]

# The bugs, by their names in the sources, and what each is found by: an object that the device
# still has, what kmemleak finds, or a line of the kernel log.
BUGS = {
    "leaked-pd": "object",
    "leaked-memory": "leak",
    "use-after-free": "BUG: KASAN: slab-use-after-free",
    "lock-twice": "WARNING: possible recursive locking detected",
}


@pytest.mark.parametrize("bug", BUGS)
def test_bug_is_found(
    system: System, new_guest: Callable[..., Guest], row: NewRow, bug: str
) -> None:
    """Loading and unloading a module with a bug shows it, as what it is."""
    built = module.build(*system.ensure(), f"KRDMA_SMOKE_BUG={bug}", variant=f"bug-{bug}")
    with new_guest(ko=built.ko) as guest:
        guest.add("rxe0")
        count = "rdma resource show | sed 's/.*: pd/pd/'"
        before = guest.do(count).output
        with row(f"bug on purpose: {bug}", guest) as made:
            made.attempts = 1
            if bug == "lock-twice":
                # It is never loaded, and ib_core waits for it with its own locks held.
                guest.do("insmod /krdma_smoke.ko rdma_dev_name=rxe0 &")
                guest.wait_for(BUGS[bug])
            else:
                guest.load("rxe0")
                guest.unload()
            left = bug != "lock-twice" and guest.do(count).output != before
            leaks = guest.leaks()
            made.leaks = left + len(leaks)
        found = [*(["object"] if left else []), *(["leak"] if leaks else [])]
        found += [line for line in guest.splats() if "BUG" in line or "WARNING" in line][:1]
    assert len(found) == 1
    assert found[0].startswith(BUGS[bug])
