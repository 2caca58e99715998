# SPDX-License-Identifier: GPL-2.0
"""Compares the module's traffic with perftest, which does the same from user space."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, field

import module
import perftest
from buildroot import BuildRoot
from figures import Figure, Part
from kernel import Kernel
from module import PROJECT
from report import Failure, step
from vm import Vm

_NAMES = ("krdma_smoke", "perftest")
# One in several differs by half, for both.
_RUNS = 5

# perftest finds out the processor's frequency; where it cannot, a figure is 0 or infinite.
_ATTEMPTS = 3

# How many latencies it may leave out of its list.
_TAIL = 4

# The module's tests that perftest has, too, by what its programs' names have in them.
_TESTS = {"send": "send_recv", "write": "rdma_write", "read": "rdma_read"}

_SIZES = (8, 4096)

# How many messages there are in each test, by how many of them are outstanding.
_MESSAGES = {1: 1000, 16: 4096}
_LATENCY_DEPTH, _RATE_DEPTH = _MESSAGES

# What makes it post lists, too, and what the rates are called then.
_LISTS = (f"--post_list={_RATE_DEPTH}", f"--recv_post_list={_RATE_DEPTH}")
_RATE_OF_LISTS = "rate of lists"

# What is shown of each kind and size.
_SHOWN = {
    "p50": "p50 of the latency",
    "p99": "p99 of the latency",
    "rate": f"rate at depth {_RATE_DEPTH}",
    _RATE_OF_LISTS: f"rate at depth {_RATE_DEPTH}, perftest posts lists",
}

# What has bars, and is plotted.
_BARRED = ("send", 8)
_LATENCY_RATIO_MAX = 0.50
_RATE_RATIO_MIN = 2.0

_ADD = "rdma link add rxe0 type rxe netdev net0"

_SETUP = f"""
modprobe rdma_rxe
modprobe ib_uverbs
ip link add net0 type dummy
ip address add 10.0.0.1/24 dev net0
ip link set net0 up
{_ADD}
"""

# How many connections are made, one after another.
_CONNECTIONS = (1, 4, 16, 64, 256, 1024)

# perftest keeps both processors busy, the module one. One that is idle is not to sleep: how long
# the host takes to wake it is no matter of either, and differs from run to run. And the kernel is
# to keep all that it logs, of which lines are counted.
_PARAMETERS = ("idle=poll", "log_buf_len=4M")

# What is waited for is waited for without being busy: nothing else is to run meanwhile.
_TRAFFIC = """
insmod /krdma_smoke.ko rdma_dev_name=rxe0 {parameters}
grep -m {number} 'krdma_smoke: traffic smoke ' /dev/kmsg >/tmp/ends
cat /sys/kernel/debug/krdma_smoke/rxe0/results
rmmod krdma_smoke
"""

# What the module is told to stop in the midst of, how, and how long that may take, in seconds.
_STOPPED = {
    "traffic at depth 1": "depth=1",
    "traffic at depth 1,024": "depth=1024",
    "making 1,024 connections": "connections=1024",
}
_UNLOAD = "rmmod krdma_smoke"
# And how all is as before then.
_STOPS = {
    "rmmod": (_UNLOAD, ""),
    "removal of the device": ("rdma link delete rxe0", f"{_UNLOAD}; {_ADD}"),
}
_STOP_MAX = 1.0

_STOP = """
insmod /krdma_smoke.ko rdma_dev_name=rxe0 traffic=4000000000 sizes=8 {parameters}
grep -m {number} 'krdma_smoke: traffic from ' /dev/kmsg >/tmp/ends
read -r begin idle </proc/uptime
{stop}
read -r end idle </proc/uptime
echo $begin $end $(dmesg | grep -c 'connect: 1024 ok')
{restore}
"""

# perftest's port is 18515; one end may be there before the other.
_PERFTEST = """
{program} {options} >/tmp/server 2>&1 &
server=$!
until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do
	kill -0 $server || {{ cat /tmp/server; exit 1; }}
	sleep 0.1
done
{program} {options} 127.0.0.1 && wait $server && exit
cat /tmp/server
exit 1
"""

_NOTES = (
    "Both are measured in the same virtual machine of two processors, on the same soft-RoCE device,"
    " which is connected to itself: the same sizes, depths and numbers of messages, in turns,"
    f" {_RUNS} times; each figure is the median of its runs. perftest is Debian's. It takes two"
    " processes that are always busy, and the module one thread.",
    "A latency of SEND is one way: ours is the time from just before a message is posted until the"
    " target has taken its receive from the queue (`delivery_ns` of the results), perftest's is"
    " half of a round trip. READ is the time until the completion at the requester, on both sides."
    " Of WRITE, perftest measures half a round trip, for which the target looks at its memory until"
    " it changes; ours is the time until the completion at the requester, which takes an"
    " acknowledgement, and so more.",
    "A rate of ours is that of batches of 16, posted by one call, of which all complete before the"
    " next one begins; of the time between a batch's call and its last completion. Receives have"
    " been posted before, and behind a batch of WRITE comes a READ, whose time is not in it."
    " perftest keeps 16 outstanding all the time, asks for a completion of each (`--cq-mod=1`), and"
    " its time has everything in it, but it fills in and checks nothing; the module's leaves out"
    " the filling in and the checking. By default perftest makes a call for each message; in the"
    " rows that say so it posts lists of 16, too (`--post_list`,"
    " `--recv_post_list`).",
    "One thread has both ends of the module's messages, and there is no answer to them. One"
    " processor may be idle then, and does not sleep (`idle=poll`): perftest keeps both busy.",
    "A connection is of two queue pairs, which are created and then connected one after another;"
    " the time is that from the first call until all are in the state RTS. In these rows it is not"
    " perftest but a program that does the same by libibverbs (`bench/guest/connect.c`).",
    "How long it takes to stop is by the guest's clock, which goes in hundredths of a second.",
    "This is soft-RoCE in an emulated machine: driver and network are software, executed by an"
    " emulator, on however busy a host. It says what these two programs take here, and nothing"
    " about hardware, where user space posts and polls without a system call.",
)


@dataclass(frozen=True)
class Sample:
    """What came of one run of a test."""

    values: dict[str, float]
    """`p50` and `p99` of the latency in microseconds, and the `rate` in messages per second."""
    times: list[tuple[float, int]] = field(default_factory=list)
    """Latencies in microseconds, and how many there were of each."""


class _Guest:
    """The guest in which both run."""

    def __init__(self, vm: Vm) -> None:
        self._vm = vm
        self._traffics = 0

    def traffic(self, depth: int) -> dict[tuple[str, int], Sample]:
        """Run the module's tests, of all kinds and sizes."""
        sizes = ",".join(map(str, _SIZES))
        return parse_results(
            self._traffic(f"traffic={_MESSAGES[depth]} depth={depth} sizes={sizes}")
        )

    def _traffic(self, parameters: str) -> str:
        self._traffics += 1
        return self._vm.output(_TRAFFIC.format(parameters=parameters, number=self._traffics))

    def connect(self, count: int) -> tuple[float, float]:
        """Make connections; return how many a second the module and user space make."""
        results = json.loads(self._traffic(f"traffic=1 sizes=8 connections={count}"))
        connect = results["tests"][0]
        if connect["test"] != "connect" or "error" in connect:
            raise Failure(f"the module does not connect: {connect}")
        gid_index = results["ends"][0]["gid_index"]
        elapsed = int(self._vm.output(f"/connect rxe0 {gid_index} {count}"))
        return count / connect["elapsed_ns"] * 1e9, count / elapsed * 1e9

    def stop(self, parameters: str, stop: str, restore: str) -> float:
        """Stop the module in the midst of something; return how long that takes, in seconds."""
        for _ in range(_ATTEMPTS):
            made = self._vm.output("dmesg | grep -c 'connect: 1024 ok' || true")
            self._traffics += 1
            script = _STOP.format(
                parameters=parameters, number=self._traffics, stop=stop, restore=restore
            )
            begin, end, made_since = self._vm.output(script).split()
            if int(made_since) == int(made):
                return float(end) - float(begin)
        raise Failure("connections are made before that can be stopped: the host is too busy")

    def perftest(self, kind: str, size: int, depth: int, *more: str) -> Sample:
        """Run one of perftest's programs: that for latencies, or that for the rate."""
        iterations = _MESSAGES[depth]
        options = ["--ib-dev=rxe0", f"--size={size}", f"--iters={iterations}", "--CPU-freq", *more]
        if depth == _LATENCY_DEPTH:
            program, parse = f"ib_{kind}_lat", parse_latency
            # By its long name, --report-histogram, it is not known.
            options.append("-H")
        else:
            program, parse = f"ib_{kind}_bw", parse_rate
            options += [f"--tx-depth={depth}", "--cq-mod=1"]
        script = _PERFTEST.format(program=program, options=" ".join(options))
        for _ in range(_ATTEMPTS):
            sample = parse(self._vm.output(script), size, iterations)
            if all(0 < value < math.inf for value in sample.values.values()):
                return sample
        raise Failure(
            "perftest cannot tell how fast the guest's processor is: the host is too busy"
        )


def parse_results(text: str) -> dict[tuple[str, int], Sample]:
    """Return what came of the module's tests, by kind and size, of its results."""
    results = json.loads(text)
    if results["state"] != "success":
        raise Failure(f"traffic is {results['state']} in the guest ({results.get('reason')})")
    kinds = {test: kind for kind, test in _TESTS.items()}
    found = {}
    for test in results["tests"]:
        if kind := kinds.get(test["test"]):
            times = test.get("delivery_ns", test["latency_ns"])
            values = {name: times[name] / 1000 for name in ("p50", "p99")}
            values["rate"] = test["messages"] / test["elapsed_ns"] * 1e9
            histogram = [(upper / 1000, count) for _, upper, count in times["histogram"]]
            found[kind, test["size"]] = Sample(values, histogram)
    return found


def _row(output: str, size: int, iterations: int) -> list[float]:
    """Return the row of figures in what one of perftest's programs prints."""
    rows = [line.split() for line in output.splitlines()]
    rows = [row for row in rows if row[:2] == [f"{size}", f"{iterations}"]]
    if len(rows) != 1:
        raise Failure(f"perftest says something else than it used to: {output}")
    return [float(cell) for cell in rows[0]]


def parse_latency(output: str, size: int, iterations: int) -> Sample:
    """Return what a program for latencies has found, which leaves out the slowest few."""
    _, _, _, _, p50, _, _, p99, _ = _row(output, size, iterations)
    pairs = [line.partition(", ") for line in output.splitlines()]
    times = [(float(time), 1) for number, _, time in pairs if number.isdecimal()]
    if len(times) < iterations - _TAIL:
        raise Failure(f"perftest lists {len(times)} latencies, not {iterations}: {output}")
    return Sample({"p50": p50, "p99": p99}, times)


def parse_rate(output: str, size: int, iterations: int) -> Sample:
    """Return what a program for rates has found."""
    return Sample({"rate": _row(output, size, iterations)[-1] * 1e6})


def _perftest(guest: _Guest, kind: str, size: int, depth: int) -> Sample:
    """Run perftest, with and without lists if it is about the rate."""
    sample = guest.perftest(kind, size, depth)
    if depth == _RATE_DEPTH:
        lists = guest.perftest(kind, size, depth, *_LISTS)
        return Sample({**sample.values, _RATE_OF_LISTS: lists.values["rate"]})
    return sample


def compare(root: BuildRoot, chosen: Kernel) -> Part:
    """Run both, alternating, and compare."""
    ko = module.build(root, chosen).ko
    files = {"krdma_smoke.ko": ko, "connect": perftest.build_connect(root)}
    log = PROJECT / "build" / "bench" / "user.log"
    # Of each figure, ours and perftest's, one value a run; and all times of what is plotted.
    ours: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    theirs: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    times: dict[str, list[tuple[float, int]]] = {name: [] for name in _NAMES}
    connected: dict[int, list[tuple[float, float]]] = defaultdict(list)
    stopped: dict[tuple[str, str], list[float]] = defaultdict(list)
    with (
        step("Measuring against perftest in QEMU") as progress,
        Vm(
            *(root, chosen, files),
            log=log,
            parameters=_PARAMETERS,
            programs=perftest.ensure(root),
        ) as vm,
    ):
        guest = _Guest(vm)
        vm.output(_SETUP)
        for run, depth in itertools.product(range(_RUNS), _MESSAGES):
            progress.beat(lambda run=run, depth=depth: f"run {run + 1}, depth {depth}")  # type: ignore[misc]
            # Each comes first in turn.
            if run % 2 == 0:
                own = guest.traffic(depth)
            other = {
                key: _perftest(guest, *key, depth) for key in itertools.product(_TESTS, _SIZES)
            }
            if run % 2 == 1:
                own = guest.traffic(depth)
            for (kind, size), sample in other.items():
                for what, value in sample.values.items():
                    theirs[kind, size, what].append(value)
                    name = "rate" if what == _RATE_OF_LISTS else what
                    ours[kind, size, what].append(own[kind, size].values[name])
                if (kind, size, depth) == (*_BARRED, _LATENCY_DEPTH):
                    for name, it in zip(_NAMES, (own[kind, size], sample), strict=True):
                        times[name] += it.times
        for run, count in itertools.product(range(_RUNS), _CONNECTIONS):
            progress.beat(lambda run=run, count=count: f"run {run + 1}, {count} connections")  # type: ignore[misc]
            connected[count].append(guest.connect(count))
        for _, stop, what in itertools.product(range(_RUNS), _STOPS, _STOPPED):
            stopped[stop, what].append(guest.stop(_STOPPED[what], *_STOPS[stop]))
        if splats := vm.splats():
            raise Failure(f"the kernel log has {len(splats)} bad lines, the first: {splats[0]}")
    figures = [
        Figure(
            f"{kind.upper()} of {size} bytes, {_SHOWN[what]}",
            "us" if what in ("p50", "p99") else "messages/s",
            round(statistics.median(ours[kind, size, what]), 1),
            round(statistics.median(theirs[kind, size, what]), 1),
            ratio_max=_LATENCY_RATIO_MAX if (kind, size, what) == (*_BARRED, "p50") else None,
            ratio_min=_RATE_RATIO_MIN if (kind, size, what) == (*_BARRED, "rate") else None,
        )
        for what in _SHOWN
        for size in _SIZES
        for kind in _TESTS
    ]
    figures += [
        Figure(
            f"{count:,} connections",
            "connections/s",
            *(round(statistics.median(rates), 1) for rates in zip(*runs, strict=True)),
        )
        for count, runs in connected.items()
    ]
    figures += [
        Figure(
            f"{stop} in the midst of {what}",
            "s",
            round(statistics.median(times), 2),
            value_max=_STOP_MAX,
        )
        for (stop, what), times in stopped.items()
    ]
    details = {
        name: {
            "runs": {f"{kind}, {size}, {what}": of for (kind, size, what), of in runs.items()},
            "times": sorted(times[name]),
        }
        for name, runs in zip(_NAMES, (ours, theirs), strict=True)
    }
    return Part("Against user space", figures, _NOTES, details, _NAMES)
