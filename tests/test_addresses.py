# SPDX-License-Identifier: GPL-2.0
"""What the module shows gives no address of the kernel away, and little to anybody but root."""

from __future__ import annotations

import re

import pytest
from guest import Guest

_MODULE = "/sys/module/krdma_smoke"

# Lists all files and devices, wherever a module can make one appear.
_LIST = (
    "find /sys /sys/kernel/debug /dev /proc /run -xdev -path '/proc/[0-9]*' -prune"
    " -o -path /sys/kernel/debug/tracing -prune -o ! -type d ! -type l -print"
)

# What everybody may read: what the kernel says of any module, which has no address in it, and the
# parameters, which are what was typed.
_HARMLESS = re.compile(
    rf"{_MODULE}/(coresize|initsize|initstate|refcnt|taint|notes/\.note\.[\w.-]+|parameters/\w+)"
    r"|/sys/kernel/btf/krdma_smoke"
)

# What is not text, or, of root's, has addresses because that is what the kernel has it for.
_NOT_READ = re.compile(rf"{_MODULE}/(notes|sections|uevent)\b.*|/sys/kernel/btf/krdma_smoke")

# The driver's functions that can fail, and what they are made to return.
_FAILURES = (
    ("{driver}_alloc_pd", -12),
    ("{driver}_create_cq", -5),
    ("{driver}_create_qp", -12),
)


def addresses(text: str) -> list[str]:
    """Return what can be an address in the kernel's half: of 64 bits, the first of which is set."""
    found = re.findall(r"(?<![0-9A-Fa-f])[89A-Fa-f][0-9A-Fa-f]{15}(?![0-9A-Fa-f])", text)
    for number in re.findall(r"(?<![\w.])-?\d+(?![\w.])", text):
        # The last ones are the errnos.
        if 1 << 63 <= int(number) % (1 << 64) < (1 << 64) - 4095:
            found.append(number)
    return found


@pytest.mark.parametrize(
    "text",
    [
        "at ffff888012345678",
        "cq=0xff11000012345678, qpn=17",
        "cq_FFFFFFFFC0853000.",
        "18446612682070000000",
        "ret=-131391639551616",
    ],
)
def test_address_is_found(text: str) -> None:
    """An address is found in whichever way it is written."""
    assert len(addresses(text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "ib_create_qp success, qpn=17",
        "ib_create_cq failed, ret=-4095",
        "built for ib_core 66f8f0cc85664ccc94ce475b9c794cc524d3d6e2",
        "a pointer that the kernel has hashed: 00000000fedcba98",
    ],
)
def test_address_is_told_from_others(text: str) -> None:
    """What is something else is not taken for an address."""
    assert addresses(text) == []


def test_nothing_shows_an_address(guest: Guest) -> None:
    """The log, sysfs, debugfs and `rdma resource` show no address, not even to root."""
    guest.do("echo 0 >/proc/sys/kernel/kptr_restrict")
    guest.do("insmod /events.ko")
    guest.add("rxe0")
    before = set(guest.do(_LIST).output.splitlines())
    start = len(guest.log)

    guest.load("rxe0")
    files = sorted(set(guest.do(_LIST).output.splitlines()) - before)
    assert f"{_MODULE}/parameters/rdma_dev_name" in files
    for line in guest.do(f"stat -c '%a %n' {' '.join(files)}").output.splitlines():
        mode, _, name = line.partition(" ")
        assert int(mode, 8) & 0o077 == 0 or _HARMLESS.fullmatch(name), line
    read = " ".join(name for name in files if not _NOT_READ.fullmatch(name))
    shown = guest.do(f"tail -n +1 {read}").output
    assert "==> " in shown
    for kind in ("pd", "cq", "qp", "mr", "cm_id"):
        shown += guest.do(f"rdma -dd resource show {kind}").output
    assert "comm [krdma_smoke]" in shown

    # With traffic: its results while it runs and after it, and memory that is open to the peer.
    results = "/sys/kernel/debug/krdma_smoke/rxe0/results"
    guest.unload()
    running = "traffic from" if guest.driver == "rxe" else "traffic smoke skipped"
    for messages, end in ((20, "traffic smoke "), (4_000_000_000, running)):
        guest.do(
            f"dmesg -c >/dev/null; insmod /krdma_smoke.ko rdma_dev_name=rxe0 traffic={messages}"
            " sizes=8,4096 errors=1 connections=2 queue_pairs=2"
        )
        guest.wait_for(end)
        regions = guest.do("rdma -dd resource show mr").output
        assert ("comm [krdma_smoke]" in regions) == (end == "traffic from")
        shown += regions + guest.do(f"cat {results}").output
        guest.unload()
    guest.do("insmod /krdma_smoke.ko rdma_dev_name=rxe0 traffic=1 peer=rxe9")
    guest.wait_for("traffic waits for it")
    guest.unload()
    guest.load("rxe0")

    # All that the module can say.
    for parameter in ("completion", "cq_event", "qp_event"):
        guest.do(f"cat /sys/module/events/parameters/{parameter}")
    guest.do("rmmod events")
    guest.unload()
    for function, error in _FAILURES:
        guest.fail(function, error)
        guest.load("rxe0")
        guest.mend()
        guest.rename("rxe0", "rxe1")
        guest.unload()
        guest.rename("rxe1", "rxe0")
    guest.fail("ib_register_client", -12)
    guest.run("insmod /krdma_smoke.ko rdma_dev_name=rxe0")
    guest.mend()
    for built in ("devices", "unrecorded"):
        guest.run(f"insmod /for-{built}.ko && rmmod krdma_smoke")
    guest.do("insmod /krdma_smoke.ko rdma_dev_name=rxe0 check_ib_core=0")
    guest.fail("{driver}_destroy_qp", -16)
    guest.unload()
    log = guest.log[start:]
    for said in (
        "CQ event 0",
        "resource smoke failed on rxe0, ret=-5",
        "the driver keeps an object",
    ):
        assert any(line.startswith(f"krdma_smoke: {said}") for line in log), said
    assert addresses(shown) == []
    assert addresses("\n".join(log)) == []
