# SPDX-License-Identifier: GPL-2.0
"""Memory runs out, at every point where it can: each time that is told, and nothing is left.

Of all that happens in a kernel function, the first allocation is made to fail, then the second,
and so on, until an attempt runs through without a failure. How: tests/helpers/failnth.c.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from guest import EXIT, RETURNED, Guest, init, said, says, taken
from table import NewRow
from vm import Result

# How many attempts one script makes: enough that it does not matter what a script costs.
_BATCH = 16

# More attempts than there can be.
_BOUND = 5000


@dataclass(frozen=True)
class Path:
    """Something that the module takes part in."""

    function: str
    """The kernel's function that does it; or a pattern for one of the module's own."""
    act: str
    """What makes it happen."""
    prepare: str = "true"
    """What is done before, when rxe0 is there and the module is not loaded."""
    traffic: bool = False
    """Whether it goes on until there has been traffic."""

    @property
    def inside(self) -> bool:
        """Whether the function is the module's own."""
        return not re.fullmatch(r"\w+", self.function)


# busybox starts faster than kmod, but its insmod tries a second way when the first has failed.
_LOAD = "insmod /krdma_smoke.ko rdma_dev_name=rxe0"
_LOAD_TRAFFIC = f"{_LOAD} traffic=1 sizes=8 errors=1 connections=1"
_UNLOAD = "busybox rmmod krdma_smoke"
_RENAME = "rdma dev set other0 name rxe0"
_ADD = "rdma link add rxe0 type $driver netdev net_rxe0"
_DELETE = "rdma link delete rxe0"

PATHS = {
    # With what the kernel does to load any module.
    "insmod": Path("load_module", _LOAD),
    "init": Path("do_init_module", _LOAD),
    "arrival": Path(r"Watcher.*add_callback", _ADD, f"{_DELETE}; {_LOAD}"),
    "renaming": Path("nldev_set_doit", _RENAME, f"rdma dev set rxe0 name other0; {_LOAD}"),
    "removal": Path("nldev_dellink", _DELETE, _LOAD),
    "rmmod": Path("__x64_sys_delete_module", _UNLOAD, _LOAD),
    "init, with traffic": Path("do_init_module", _LOAD_TRAFFIC, traffic=True),
    "traffic": Path(
        r"task.*Task.*Traffic.*3run",
        _RENAME,
        f"rdma dev set rxe0 name other0; {_LOAD_TRAFFIC}",
        traffic=True,
    ),
}

# What is tried where: siw cannot have traffic, and to try the loading of any module once will do.
_CASES = [
    *(("kasan", name) for name in PATHS if name != "init"),
    *(("kasan-siw", name) for name, path in PATHS.items() if name != "insmod" and not path.traffic),
]


def _script(path: Path, driver: str) -> str:
    """Return shell functions, of which `attempt NUMBER` makes an attempt and puts all in order.

    As few programs are run as possible: emulated, and with KASAN, each takes its time.
    """
    symbol = rf"\(_R[^ ]*{path.function}[^ ]*\)\t\[krdma_smoke\]$"
    wait = ("wait_for_function" if path.inside else "wait_for_line") if path.traffic else ":"
    return f"""
driver={driver}
function={"" if path.inside else path.function}

loaded() {{
    test -e /sys/module/$1
}}

# The function may be elsewhere each time that the module is loaded, under the same name.
arm() {{
    [ -n "$function" ] ||
        function=$(sed -n '/__pfx/d; s/.* {symbol}/\\1/p' /proc/kallsyms)
    ! {str(path.inside).lower()} || ! loaded failnth || busybox rmmod failnth
    loaded failnth || busybox insmod /failnth.ko function=$function
    echo $1 >/sys/module/failnth/parameters/nth
}}

# Until the function has returned; but not for ever.
wait_for_function() {{
    for _ in $(seq 3000); do
        read -r left </sys/module/failnth/parameters/left
        [ $left -lt 0 ] || break
        usleep 20000
    done
}}

# Until the module has said how it went.
wait_for_line() {{
    for _ in $(seq 600); do
        ! dmesg | grep -q 'krdma_smoke: \\(.* smoke failed\\|traffic smoke\\|no memory\\)' || break
        usleep 100000
    done
}}

put_in_order() {{
    ! loaded krdma_smoke || {_UNLOAD}
    test ! -e /sys/class/infiniband/other0 || {_RENAME}
    test -e /sys/class/infiniband/rxe0 || {_ADD}
}}

attempt() {{
    echo "faults: attempt" >/dev/kmsg
    {path.prepare}
    arm $1
    {"dmesg -c >/dev/null" if path.traffic else ":"}
    echo attempt
    {path.act}
    status=$?
    [ $status -ne 0 ] || {wait}
    read -r left </sys/module/failnth/parameters/left
    echo "status $status left $left"
    rdma resource show
    echo "faults: attempted" >/dev/kmsg
    put_in_order
    echo "faults: load" >/dev/kmsg
    {_LOAD}
    {_UNLOAD}
    echo "faults: loaded" >/dev/kmsg
    [ $left -eq 0 ]
}}
"""


# What the module may say, apart from the next.
_LINES = re.compile(
    r"init, target rdma_dev_name=rxe0|found RDMA device (rxe0|other0)|RDMA device renamed to rxe0"
    r"|matched RDMA device rxe0|ib_(alloc_pd|create_cq) success|ib_create_qp success, qpn=\d+"
    r"|resource smoke success|no RDMA device is named rxe0, waiting for it .*|exit"
    r"|ib_(destroy_qp|destroy_cq|dealloc_pd) success"
    r"|traffic from rxe0 .*|connect: 1 ok, .*|\w+ 8B depth 1: 1 ok, .*"
    r"|READ with a wrong key: IB_WC_\w+, .*|QP event 3|traffic smoke success"
    # It is not refused for that.
    r"|cannot check which ib_core is running: its build-id is not readable, ret=-12"
    # The kernel's own, in the module's name.
    r"|Unknown symbol \w+ \(err -12\)|`\w+' invalid for parameter `\w+'"
)

# How it tells that there was no memory.
_NO_MEMORY = re.compile(
    r"init failed, ret=-12: out of memory; .*"
    r"|(ib_alloc_pd|ib_create_cq|ib_create_qp|ib_register_client) failed, ret=-12"
    r"|(resource|traffic) smoke failed on rxe0, ret=-12: out of memory; .*"
    # soft-RoCE makes a socket for each queue pair, and a socket without memory is ENFILE.
    r"|ib_create_qp failed, ret=-23|resource smoke failed on rxe0, ret=-23: the driver's own .*"
    r"|traffic smoke failed: .*ib_create_qp failed, ret=-23"
    r"|connect: failed, .*ret=-12|connect: failed, ib_create_qp failed, ret=-23"
    r"|no memory for RDMA device rxe0, it is left alone; .*"
    r"|\w+ 8B depth 1: failed, .*ret=-12|traffic smoke failed: .*ret=-12"
)

# With the first the module has objects, with the second it has none.
_HELD = ["resource smoke success", "ib_dealloc_pd success"]

# What a command says of it.
_ENOMEM = re.compile(r"Cannot allocate memory|No buffer space available|Out of memory")


Objects = list[list[int]]


@dataclass(frozen=True)
class Attempt:
    """What came of an attempt."""

    status: int
    """What the act returned, and what it said."""
    output: str
    left: int
    """How many allocations there would have had to be more for one to fail."""
    during: Result
    """What was logged, from before the act."""
    objects: Objects
    """What the devices had after it."""
    usual: Result
    """What was logged when the module was loaded and unloaded as usual, afterwards."""

    def wrong(self, path: Path, before: Objects) -> str:
        """Return what is not as it has to be; `before` is what the device has for others."""
        log = said(self.during)
        succeeded = ("traffic" if path.traffic else "resource") + " smoke success" in log
        told = [line for line in log if _NO_MEMORY.fullmatch(line)]
        held = [line for line in log if line in _HELD][-1:] == _HELD[:1]
        expected = [[pd + held, cq + held, qp + held, mr] for pd, cq, qp, mr in before]
        checks = {
            "nothing was tried": self.left >= 0,
            "other lines": all(_LINES.fullmatch(line) for line in log if line not in told),
            "a device that is not seen": path.prepare != "true"
            or not any(line.startswith("no RDMA device is named") for line in log),
            "another errno": not self.status or bool(_ENOMEM.search(self.output)),
            "a failure that was not told": bool(self.status or told) or succeeded,
            # Before its init has begun, it cannot say anything.
            "an errno without a line": bool(told)
            or not (self.status and path.prepare == "true" and init("rxe0")[0] in log),
            "success and failure": not (told and succeeded),
            "a failure of its own": not self.left or not (self.status or told),
            "other objects": self.objects == expected if self.objects else not held,
            "not as usual afterwards": says(
                self.usual, [*init("rxe0"), *taken("rxe0"), *EXIT, *RETURNED]
            ),
        }
        return ", ".join(what for what, holds in checks.items() if not holds)


def _objects(text: str) -> Objects:
    """Return what `rdma resource show` has counted on each device: PDs, CQs, QPs and MRs."""
    counts = re.findall(r": pd (\d+) cq (\d+) qp (\d+) .*? mr (\d+)", text)
    return [[int(number) for number in device] for device in counts]


def _attempts(result: Result) -> Iterator[Attempt]:
    """Return the attempts that a script has made."""
    logs = "\n".join(result.log).split("faults: attempt\n")[1:]
    outputs = re.split(r"^attempt\n", result.output, flags=re.MULTILINE)[1:]
    for log, output in zip(logs, outputs, strict=True):
        said_of_it, status, left, resources = re.split(r"status (\d+) left (-?\d+)\n", output)
        during, _, rest = log.partition("faults: attempted\n")
        usual = rest.partition("faults: load\n")[2].partition("faults: loaded")[0]
        yield Attempt(
            int(status),
            said_of_it,
            int(left),
            replace(result, log=tuple(during.splitlines())),
            _objects(resources),
            replace(result, log=tuple(usual.splitlines())),
        )


@pytest.mark.parametrize(("system", "name"), _CASES, indirect=["system"])
def test_every_allocation(boot: Callable[..., Guest], row: NewRow, name: str) -> None:
    """A failure is told, what was done before is undone, and it works the next time."""
    path = PATHS[name]
    # One thing after another: a second processor would only be waited for.
    guest = boot(processors=1)
    guest.add("rxe0")
    script = _script(path, guest.driver)
    # Allocations that may wait for memory fail, too; not every failure needs a backtrace.
    guest.do("cd /sys/kernel/debug/failslab; echo N >ignore-gfp-wait; echo 0 >verbose")
    before = _objects(guest.do("rdma resource show").output)
    wrong: list[str] = []
    with row(f"every allocation of {name}", guest) as made:
        number = 1
        while number < _BOUND:
            attempts = list(
                _attempts(
                    guest.run(
                        f"{script}for number in $(seq {number} {number + _BATCH - 1}); do\n"
                        "    attempt $number || break\ndone"
                    )
                )
            )
            for attempt in attempts:
                problem = attempt.wrong(path, before)
                if problem:
                    wrong.append(f"allocation {number}: {problem}: {attempt}")
                made.attempts += attempt.left == 0
                made.survived += attempt.left == 0 and not problem
                number += 1
            if attempts[-1].left != 0:
                break
        else:
            wrong.append("it never ends")
        made.leaks = len(guest.leaks())
    print(f"{name}: {made.attempts} allocations failed, {made.survived} times all held")
    assert not wrong, "\n".join(wrong)
    assert made.attempts > 0
    assert made.leaks == 0
    assert _objects(guest.do("rdma resource show").output) == before
