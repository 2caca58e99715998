# SPDX-License-Identifier: GPL-2.0
"""Everything at once, over and over, killed and cut off: nothing breaks, and nothing is left.

What is random comes from a seed, which each test prints; `STORM_SEED=` in the environment sets it,
so that a run that failed can be tried again. (When each process gets to run is still up to the
guest.) A task that hangs for a quarter of an hour ends the guest by a panic.
"""

from __future__ import annotations

import errno
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from guest import Guest
from table import NewRow, Row, system_of

_DEVICES = [f"storm{number}" for number in range(4)]

_LOAD = "insmod /krdma_smoke.ko rdma_dev_name=rxe0"
_UNLOAD = "if lsmod | grep -q krdma_smoke; then rmmod krdma_smoke; fi"

# Actions of each actor of the storm: far more than it gets to.
_ACTIONS = 1_000_000

# What the actors do. Each of these has to work at least once, or it was no storm.
_KINDS = {
    *("load", "unload", "load-driver", "unload-driver", "add", "delete", "rename", "move"),
    *("up", "down", "show", "list", "read-parameter", "read-results"),
}

# How long a storm is, in seconds: in the lab, and else.
_SECONDS = {"kasan": 600, "kasan-siw": 200, "kcsan": 600}
_SECONDS_ELSE = 60

# A machine that is busy does less in that time: it storms again until each kind of action has
# worked, but not more often than this.
_STORMS = 10

# What the module or the kernel may answer when several load and unload it at the same time: it is
# loaded already, it is on its way in or out, it is not there, somebody has its results open.
_REFUSALS = {
    "load": {errno.EEXIST, errno.EBUSY},
    "unload": {errno.ENOENT, errno.EBUSY, errno.EWOULDBLOCK},
}

# The caches of what looks for errors, which keeps accounts of all others.
_DEBUGGING = ("debug_objects_cache", "kmemleak_")

# By how many objects a cache of the kernel's may well grow, whatever was done.
_NOISE = 150

# What may never work on a system. Soft-RoCE keeps itself loaded while it has a queue pair, on a
# kernel with lockdep (sk_owner_set()). A siw device cannot be moved to another namespace.
_REFUSED = {"kasan": {"unload-driver", "load-driver"}, "kasan-siw": {"move"}}


@pytest.fixture
def seed() -> int:
    """Return where random numbers begin, and print it."""
    chosen = int(os.environ.get("STORM_SEED") or random.SystemRandom().getrandbits(32))
    print(f"STORM_SEED={chosen}")
    return chosen


@dataclass(frozen=True)
class Census:
    """What there is in a guest while the module is not loaded."""

    objects: tuple[str, ...]
    """How many of each kind each RDMA device has."""
    users: tuple[str, ...]
    """How many users each kernel module has."""
    slabs: Counter[str]
    """How many objects each slab cache has in use."""


def census(guest: Guest) -> Census:
    """Count what there is, after the kernel has freed what it can."""
    objects = guest.do("rdma resource show").output.splitlines()
    users = guest.do("grep . /sys/module/*/refcnt").output.splitlines()
    slabs: Counter[str] = Counter()
    # Some are only freed after a while: the fewest of several counts are those that stay.
    for _ in range(3):
        output = guest.do(
            "sleep 2\n"
            "echo 2 >/proc/sys/vm/drop_caches\n"
            "for cache in /sys/kernel/slab/*/shrink; do echo 1 >$cache; done\n"
            "cat /proc/slabinfo"
        ).output
        for line in output.splitlines()[2:]:
            name, in_use = line.split()[:2]
            if not name.startswith(_DEBUGGING):
                slabs[name] = min(int(in_use), slabs.get(name, int(in_use)))
    # A device has another index each time that it comes.
    return Census(tuple(line.partition(": ")[2] for line in objects), tuple(users), slabs)


def nothing_left(guest: Guest, made: Row, before: Census, cycles: int) -> None:
    """Make sure that all is as it was, after so many cycles; then what was tried has survived.

    The kernel's own caches never hold exactly what they held before. But whatever is forgotten in
    each cycle is there `cycles` times in the end, in one cache or another. So a cache must have
    grown by less, or by what is noise; and there must have been some cycles before the first
    census, which fill what is filled once. What is lost more rarely, or in fewer cycles than what
    is noise, is for kmemleak to find.
    """
    after = census(guest)
    assert not guest.objects()
    assert after.objects == before.objects
    assert after.users == before.users
    growth = after.slabs - before.slabs
    print("grown most:", growth.most_common(5), "in", cycles, "cycles")
    assert not {name: more for name, more in growth.items() if more >= max(cycles, _NOISE)}
    if guest.run("test -e /sys/kernel/debug/kmemleak").status == 0:
        leaks = [leak for leak in guest.leaks() if not soft_roces(leak)]
        print(*leaks)
        made.leaks = len(leaks)
        assert not leaks
    made.survived = made.attempts


def soft_roces(leak: str) -> bool:
    """Tell whether soft-RoCE has lost one of its UDP sockets.

    Each device that shares a network namespace's two sockets holds a reference (rxe_net_init()).
    When the driver is unloaded, a single one is dropped (rxe_ns_exit()), however many there are.
    Its own functions cannot be told by name, after it has been loaded to another place.
    """
    return "nldev_newlink" in leak and "udp_sock_create" in leak


def prepare(guest: Guest) -> None:
    """Have a task that hangs end the guest; not one that a busy host makes wait."""
    guest.do("cd /proc/sys/kernel; echo 900 >hung_task_timeout_secs; echo 1 >hung_task_panic")


def storm(guest: Guest, seconds: int, seed: int) -> dict[str, Counter[str]]:
    """Let it storm, then set up everything anew; return how often what was tried and worked."""
    output = guest.do(f"/storm {seconds} {_ACTIONS} {seed} {guest.driver}").output
    tally: dict[str, Counter[str]] = {}
    for line in output.splitlines():
        _, action, tried, worked, *refused = line.split()
        counts = tally.setdefault(action, Counter())
        counts += Counter(tried=int(tried), worked=int(worked))
        for refusal in refused:
            number, _, times = refusal.partition(":")
            counts[errno.errorcode.get(int(number), number)] += int(times)
    set_up(guest)
    return tally


def set_up(guest: Guest) -> None:
    """Have no module, and the same devices as ever in the namespace that all begins in."""
    guest.do(
        f"{_UNLOAD}\n"
        "for inside in '' 'ip netns exec other'; do\n"
        "    for device in $($inside rdma dev show | sed 's/^[0-9]*: \\([^:]*\\):.*/\\1/'); do\n"
        "        $inside rdma link delete $device\n"
        "    done\n"
        "done"
    )
    guest.add(*_DEVICES)


def weather(guest: Guest, new_row: NewRow, seed: int, system: str, seconds: int) -> None:
    """Let it storm on a system, and see what is left."""
    prepare(guest)
    guest.do("rdma system set netns exclusive\nmkdir -p /run/netns\nip netns add other\n")
    set_up(guest)
    storm(guest, 10, seed - 1)
    before = census(guest)
    wanted = _KINDS - _REFUSED.get(system, set())
    with new_row(f"storm, {seconds} s", guest) as made:
        tally: dict[str, Counter[str]] = defaultdict(Counter)
        for number in range(_STORMS):
            for action, counts in storm(guest, seconds, seed + number).items():
                tally[action] += counts
            made.what = f"storm, {seconds * (number + 1)} s"
            missing = {action for action in wanted if not tally[action]["worked"]}
            if not missing:
                break
        for action, counts in tally.items():
            print(action, dict(counts))
        made.attempts = sum(counts["tried"] for counts in tally.values())
        nothing_left(guest, made, before, tally["unload"]["worked"])
        for action, refusals in _REFUSALS.items():
            others = set(tally[action]) - {"tried", "worked"}
            assert others <= {errno.errorcode[number] for number in refusals}
        assert not missing


@pytest.mark.parametrize(
    "system",
    ["kasan", *(pytest.param(name, marks=pytest.mark.long) for name in ("kasan-siw", "kcsan"))],
    indirect=True,
)
def test_storm(
    request: pytest.FixtureRequest, boot: Callable[..., Guest], row: NewRow, seed: int
) -> None:
    """All that can be done to the module and its devices, on four processors at once."""
    system = system_of(request.node)
    seconds = _SECONDS[system] if request.config.getoption("--lab") else _SECONDS_ELSE
    weather(boot(processors=4), row, seed, system, seconds)


_LOADED_ONCE = f"test $i -gt 0 || {_LOAD}"


@pytest.mark.long
@pytest.mark.systems("kasan")
@pytest.mark.parametrize(
    ("what", "cycles", "cycle"),
    [
        # busybox starts faster than kmod.
        ("load and unload", 1000, f"busybox {_LOAD}; busybox rmmod krdma_smoke"),
        (
            "delete and add",
            500,
            f"{_LOADED_ONCE}; rdma link delete rxe0; rdma link add rxe0 type rxe netdev net_rxe0",
        ),
        ("rename", 200, f"{_LOADED_ONCE}; rdma dev set rxe$odd name rxe$((1 - odd))"),
    ],
)
def test_wear(guest: Guest, row: NewRow, what: str, cycles: int, cycle: str) -> None:
    """One thing over and over; `$i` is the number of the cycle, `$odd` whether that is odd."""

    def repeat(times: int) -> None:
        guest.do(f"i=0; while [ $i -lt {times} ]; do odd=$((i % 2)); {cycle}; i=$((i + 1)); done")
        guest.do(_UNLOAD)

    prepare(guest)
    guest.add("rxe0")
    repeat(20)
    before = census(guest)
    with row(f"wear: {what}", guest) as made:
        repeat(cycles)
        made.attempts = cycles
        nothing_left(guest, made, before, cycles)


_KILLS = 80

# Traffic that does not end by itself.
_ENDLESS = "traffic=4000000000 sizes=8"


def killed(guest: Guest, victim: str, before: str, moments: list[float]) -> tuple[int, int]:
    """Kill a command after so many seconds each time.

    What is left must be loaded or not, and then an ordinary load must work. Return how often the
    command was killed before its end, and how often that was in the midst of a load.
    """
    begin = len(guest.log)
    output = guest.do(
        f"for moment in {' '.join(map(str, moments))}; do\n"
        f"    {before}\n"
        "    status=0\n"
        f"    /timeout --foreground -s KILL $moment {victim} || status=$?\n"
        "    echo $status\n"
        f"    {_UNLOAD}\n"
        f"    {_LOAD}\n"
        "    rmmod krdma_smoke\n"
        "done"
    ).output
    statuses = [int(line) for line in output.splitlines() if line.isdigit()]
    assert len(statuses) == len(moments), output
    begun = sum(line.startswith("krdma_smoke: init, ") for line in guest.log[begin:])
    finished = statuses.count(0) if victim.startswith("insmod") else len(moments)
    return statuses.count(128 + 9), begun - finished - len(moments)


@pytest.mark.long
@pytest.mark.systems("kasan")
@pytest.mark.parametrize("traffic", ["", _ENDLESS], ids=["plain", "traffic"])
@pytest.mark.parametrize("victim", ["insmod", "rmmod"])
def test_killed(guest: Guest, row: NewRow, seed: int, victim: str, traffic: str) -> None:
    """Whenever insmod or rmmod is killed, the module is there or not, and can be loaded again."""
    prepare(guest)
    guest.add("rxe0")
    insmod = f"{_LOAD} {traffic}"
    command, before = {
        "insmod": (insmod, "true"),
        "rmmod": ("rmmod krdma_smoke", insmod),
    }[victim]

    # How long it takes here, which is all that makes a moment a likely one.
    clock = "cut -d ' ' -f 1 /proc/uptime"
    script = f"{before}\n{clock}\n/timeout 60 {command}\n{clock}\n{_UNLOAD}"
    times = [[float(line) for line in guest.do(script).output.split()] for _ in range(5)]
    usual = sum(end - begin for begin, end in times) / len(times)

    chosen = random.Random(seed)
    # 0 would be never.
    moments = [round(chosen.uniform(0, usual), 4) + 1e-4 for _ in range(_KILLS)]
    print(f"usually it takes {usual:.2f} s, killed after {moments}")
    counted = census(guest)
    with row(f"killed: {victim}{', with traffic' if traffic else ''}", guest) as made:
        dead, midst = killed(guest, command, before, moments)
        print(f"{dead} of {_KILLS} killed, {midst} of them in the midst of a load")
        made.attempts = _KILLS
        assert dead
        assert midst or victim == "rmmod"
        nothing_left(guest, made, counted, 2 * _KILLS)


# What takes a guest down at once, and what does so in an orderly way.
_RESTART = ["echo b >/proc/sysrq-trigger", "reboot -f"]
_POWER_OFF = ["echo o >/proc/sysrq-trigger", "poweroff -f"]

# What goes on meanwhile.
_MIDST = {
    "loads": f"while :; do {_LOAD}; rmmod krdma_smoke; done &",
    "traffic": f"{_LOAD} {_ENDLESS}",
    "loads-with-traffic": f"while :; do {_LOAD} {_ENDLESS}; rmmod krdma_smoke; done &",
}


def go_down(guest: Guest, new_row: NewRow, midst: str, how: str, seed: int) -> None:
    """End a guest in the midst of something."""
    guest.add("rxe0")
    moment = random.Random(seed).randrange(2_000_000)
    with new_row("power cut", guest) as made:
        made.attempts = 1
        guest.end(f"{_MIDST[midst]}\nusleep {moment}\n{how}\nwhile :; do usleep 1000000; done")
        assert not guest.splats()
        made.survived = 1


@pytest.mark.long
@pytest.mark.systems("kasan")
@pytest.mark.parametrize("how", _RESTART, ids=["sysrq-b", "reboot"])
@pytest.mark.parametrize("midst", _MIDST)
def test_restarted(guest: Guest, row: NewRow, seed: int, midst: str, how: str) -> None:
    """A guest that is restarted goes down, whatever the module is about."""
    go_down(guest, row, midst, how, seed)


@pytest.mark.systems("in-tree")
@pytest.mark.parametrize("how", _POWER_OFF, ids=["sysrq-o", "poweroff"])
@pytest.mark.parametrize("midst", _MIDST)
def test_powered_off(guest: Guest, row: NewRow, seed: int, midst: str, how: str) -> None:
    """A guest whose power is switched off, which takes a kernel with ACPI, goes down, too."""
    go_down(guest, row, midst, how, seed)
