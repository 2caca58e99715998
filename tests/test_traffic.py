# SPDX-License-Identifier: GPL-2.0
"""Traffic: every kind of message arrives as it was sent, and what goes wrong is told."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonschema
import module
import pytest
import twin
from buildroot import BuildRoot
from guest import RETURNED, Guest, said
from kernel import Kernel
from smoke import ATOMICS, MESSAGES

SCHEMA = json.loads((Path(__file__).parent / "results.schema.json").read_text())

POLLS = ("direct", "workqueue")
RECEIVED = ("send_recv", "send_with_imm", "rdma_write_with_imm")
DEFAULT_SIZES = (8, 4096, 65536, 1048576)

# How long a completion may take: PATIENCE of traffic.rs.
PATIENCE_NS = 30_000_000_000

# Latencies are counted exactly up to here, and longer ones together: MAX of histogram.rs.
COUNTED_NS = 10_000_000_000

# The name of a rxe0's file of results.
RESULTS = "/sys/kernel/debug/krdma_smoke/rxe0/results"

Lines = list[str]

pytestmark = pytest.mark.rxe


def all_tests(sizes: tuple[int, ...]) -> list[tuple[str, int]]:
    """Return the tests that are run for these sizes."""
    return [(test, size) for test in MESSAGES for size in sizes] + [(test, 8) for test in ATOMICS]


def start(guest: Guest, **parameters: str | int) -> int:
    """Load the module with traffic; return where its log begins."""
    begin = len(guest.log)
    values = {"rdma_dev_name": "rxe0", "traffic": 12, **parameters}
    arguments = [shlex.quote(f"{name}={value}") for name, value in values.items()]
    guest.do("dmesg -c >/dev/null; insmod /krdma_smoke.ko " + " ".join(arguments))
    return begin


def lines_since(guest: Guest, begin: int) -> Lines:
    """Return what the module has said since then."""
    prefix = "krdma_smoke: "
    return [line.removeprefix(prefix) for line in guest.log[begin:] if line.startswith(prefix)]


def run(guest: Guest, **parameters: str | int) -> Lines:
    """Run traffic to its end; return what the module says of it."""
    begin = start(guest, **parameters)
    guest.wait_for("traffic smoke ")
    return lines_since(guest, begin)


def results(guest: Guest, device: str = "rxe0") -> dict[str, Any]:
    """Return the results, which go with the schema."""
    text = guest.do(f"cat {RESULTS.replace('rxe0', device)}").output
    parsed: dict[str, Any] = json.loads(text)
    jsonschema.validate(parsed, SCHEMA)
    return parsed


def good(lines: Lines, depth: int = 1, messages: int = 12) -> list[tuple[str, int]]:
    """Return the tests that went well."""
    number = r"\d+(?:\.\d+)?"
    pattern = re.compile(
        rf"(\w+) (\d+)B depth {depth}: {messages} ok, latency min/p50/p99/p99.9/max"
        rf" (?:\d+\.\d/){{4}}\d+\.\d us, {number} kops/s, {number} MB/s"
    )
    found = [pattern.fullmatch(line) for line in lines]
    return [(match[1], int(match[2])) for match in found if match]


def nothing_left(guest: Guest) -> None:
    """Make sure that nothing is left behind, of either part of the test."""
    assert not guest.objects()
    assert guest.do("ls /sys/kernel/debug | grep krdma_smoke || true").output == ""


def veth(guest: Guest) -> None:
    """Make rxe0 and rxe1, the latter in another network namespace, with a cable between them."""
    guest.do(
        "modprobe rdma_rxe; modprobe veth; mkdir -p /run/netns; ip netns add there\n"
        "ip link add v0 type veth peer name v1 address 02:00:00:00:00:02\n"
        "ip link set v1 netns there\n"
        "ip addr add 10.1.0.1/24 dev v0; ip link set v0 up\n"
        "ip -n there addr add 10.1.0.2/24 dev v1; ip -n there link set v1 up\n"
        "rdma link add rxe0 type rxe netdev v0\n"
        "ip netns exec there rdma link add rxe1 type rxe netdev v1\n"
    )


@pytest.mark.systems("in-tree", "devices-clients")
@pytest.mark.parametrize("poll", POLLS)
def test_everything_arrives(guest: Guest, poll: str) -> None:
    """Every test, in every size, several outstanding and the last batch not full; then no MR."""
    guest.add("rxe0")
    for depth in (1, 5):
        lines = run(guest, poll=poll, depth=depth, errors=1)
        assert good(lines, depth) == all_tests(DEFAULT_SIZES), lines
        flushed = 2 * depth - 1
        assert (
            f"READ with a wrong key: IB_WC_REM_ACCESS_ERR, {flushed} flushed, queue pair in ERR;"
            " recovered by a new one"
        ) in lines
        assert lines[-1] == "traffic smoke success"
        assert guest.do("rdma resource show mr").output == ""
        parsed = results(guest)
        assert (parsed["state"], parsed["poll"], parsed["depth"]) == ("success", poll, depth)
        *tests, last = parsed["tests"]
        assert last == {"test": "wrong_key", "size": 8, "messages": depth, "flushed": flushed}
        assert [(test["test"], test["size"]) for test in tests] == all_tests(DEFAULT_SIZES)
        for test in tests:
            assert ("delivery_ns" in test) == (test["test"] in RECEIVED)
            for times in (test["latency_ns"], test.get("delivery_ns", test["latency_ns"])):
                assert sum(count for _, _, count in times["histogram"]) == test["messages"] == 12
                percentiles = [times[name] for name in ("min", "p50", "p99", "p99.9", "max")]
                assert percentiles == sorted(percentiles)
                for lower, upper, _ in times["histogram"]:
                    assert lower <= upper
                    assert upper <= lower * 1.01 or lower > COUNTED_NS / 1.01
        guest.unload()
        nothing_left(guest)


def test_connections(guest: Guest) -> None:
    """As many connections as are wanted are made before the messages, and are gone then."""
    guest.add("rxe0")
    lines = run(guest, connections=64, sizes=8)
    assert [line for line in lines if re.fullmatch(r"connect: 64 ok, \d+ per second", line)]
    assert good(lines) == all_tests((8,))
    assert lines[-1] == "traffic smoke success"
    first, *tests = results(guest)["tests"]
    assert (first["test"], first["connections"]) == ("connect", 64)
    assert len(tests) == len(all_tests((8,)))
    guest.unload()
    nothing_left(guest)


def test_a_connection_fails(guest: Guest) -> None:
    """One that cannot be made is reported; the messages have a connection of their own."""
    guest.add("rxe0")
    # Three calls connect a queue pair; the first two are those of the messages.
    guest.fail("rxe_modify_qp", -22, times=1, after=2 * 3 + 31)
    lines = run(guest, connections=64, sizes=8)
    assert "connect: failed, ib_modify_qp failed, ret=-22" in lines
    assert good(lines) == all_tests((8,))
    assert lines[-1] == (
        "traffic smoke failed: 1 of 8 tests, first connect: ib_modify_qp failed, ret=-22"
    )
    assert results(guest)["tests"][0] == {
        "test": "connect",
        "connections": 64,
        "error": "ib_modify_qp failed, ret=-22",
    }
    guest.unload()
    guest.mend()
    nothing_left(guest)


def test_connections_are_called_off(guest: Guest) -> None:
    """The device goes, or the module, while connections are made: whatever there is goes, too."""
    calls = "/sys/module/failpoint/parameters/calls"
    for end in ("rdma link delete rxe0", "rmmod krdma_smoke"):
        guest.add("rxe0")
        # All of them together take 20 s.
        guest.count("rxe_create_qp", delay=10)
        begin = start(guest, connections=1024, traffic=4_000_000_000)
        guest.do(f"until test $(cat {calls}) -ge 40; do :; done; {end}")
        assert not guest.objects()
        assert "traffic smoke stopped" in lines_since(guest, begin)
        # Each has two queue pairs.
        assert guest.calls() < 2 * 1024
        if end.startswith("rdma"):
            guest.unload()
        guest.mend()
    nothing_left(guest)


def test_results_are_roots(guest: Guest) -> None:
    """Only root can read the results, which name what was measured."""
    guest.add("rxe0")
    guest.do("ip addr add 10.0.0.1/24 dev net_rxe0")
    gid_index(guest, "rxe0", "0a00:0001")
    lines = run(guest, sizes="8")
    assert guest.do(f"stat -c '%a %u' {RESULTS}").output == "400 0\n"
    parsed = results(guest)
    assert parsed["kernel"] == guest.do("uname -r").output.strip()
    here, there = parsed["ends"]
    assert here == there
    assert (here["device"], here["port"]) == ("rxe0", 1)
    # An address of the port's is preferred to the one that every port has.
    assert here["gid"] == "0000:0000:0000:0000:0000:ffff:0a00:0001"
    table = "/sys/class/infiniband/rxe0/ports/1/gids"
    assert guest.do(f"cat {table}/{here['gid_index']}").output.strip() == here["gid"]
    assert lines[-1] == "traffic smoke success"


@pytest.mark.parametrize("mtu", [1500, 9000])
def test_mtu(guest: Guest, mtu: int) -> None:
    """Messages of many packets, and of a part of one, arrive whatever the size of a packet."""
    guest.do(f"modprobe dummy; ip link add net_rxe0 type dummy; ip link set net_rxe0 mtu {mtu}")
    guest.add("rxe0")
    sizes = (0, 1, 7, 4095, 4097, 100_001)
    lines = run(guest, sizes=",".join(map(str, sizes)), depth=2)
    assert good(lines, 2) == all_tests(sizes), lines
    assert lines[-1] == "traffic smoke success"
    assert results(guest)["ends"][0]["mtu"] == {1500: 1024, 9000: 4096}[mtu]


# What is refused, and why; no reason where it is the kernel that refuses: no number, or too long.
WRONG = (
    ("sizes=-1", "sizes=: entry 1 is not a number of bytes, such as in 8,4096"),
    ("sizes=8,x", "sizes=: entry 2 is not a number of bytes, such as in 8,4096"),
    ("sizes=", "sizes=: entry 1 is not a number of bytes, such as in 8,4096"),
    ("sizes=8,", "sizes=: entry 2 is not a number of bytes, such as in 8,4096"),
    ("sizes=4294967296", "sizes=: entry 1 is not a number of bytes, such as in 8,4096"),
    (f"sizes={','.join(['1'] * 500)}", "sizes=: there are more than 32"),
    (f"sizes={','.join(['1'] * 1000)}", None),
    ("depth=0", "depth=0: at least one message has to be outstanding"),
    ("depth=-1", None),
    ("traffic=-1", None),
    ("poll=", "poll= must be direct or workqueue"),
    ("poll=softirq", "poll= must be direct or workqueue"),
    ("gid_index=256", "gid_index=256: there are 0 to 255, and -1 for any"),
    ("gid_index=-2", "gid_index=-2: there are 0 to 255, and -1 for any"),
    ("peer_gid_index=256", "peer_gid_index=256: there are 0 to 255, and -1 for any"),
    ("peer_port=-1", None),
    ("connections=1025", "connections=1025: there can be 0 to 1024"),
    ("queue_pairs=0", "queue_pairs=0: there can be 1 to 4096"),
    ("queue_pairs=4097", "queue_pairs=4097: there can be 1 to 4096"),
    ("queue_pairs=-1", None),
)


def test_wrong_parameters(guest: Guest) -> None:
    """A parameter that cannot be right is refused before anything is done; the log says why."""
    guest.add("rxe0")
    for parameter, complaint in WRONG:
        result = guest.run(f"insmod /krdma_smoke.ko traffic=1 rdma_dev_name=rxe0 {parameter}")
        assert result.status != 0, parameter
        assert not complaint or said(result)[-1] == complaint
        assert "krdma_smoke" not in guest.do("lsmod").output


# What the device does not have, and what is said of it.
TOO_MUCH: tuple[tuple[dict[str, int], str], ...] = (
    ({"sizes": 4_000_000_000}, r"sizes= has 4000000000, which is more than the \d+ that can .*"),
    (
        {"sizes": 2 << 20, "depth": 33, "traffic": 33},
        "depth= messages of sizes= are more than 64 MiB",
    ),
    # Each takes 16 KiB.
    (
        {"sizes": 8193, "depth": 8191, "traffic": 8191},
        "depth= messages of sizes= are more than 64 MiB",
    ),
    ({"depth": 1_000_000}, r"depth= is more than the \d+ that the device can have"),
    ({"port": 2}, "no such port, the device has 1; see port="),
    ({"peer_port": 2}, "no such port, the peer has 1; see peer_port="),
    ({"gid_index": 200}, "the port has no GID with the index 200; see gid_index="),
    (
        {"peer_gid_index": 200},
        "the port of the peer has no GID with the index 200; see peer_gid_index=",
    ),
)


def test_too_much(guest: Guest) -> None:
    """What the device does not have is told, and how much it has."""
    guest.add("rxe0")
    for parameters, complaint in TOO_MUCH:
        lines = run(guest, **parameters)
        assert re.fullmatch(f"traffic smoke failed: {complaint}", lines[-1]), lines
        parsed = results(guest)
        assert parsed["state"] == "failed"
        assert lines[-1] == f"traffic smoke failed: {parsed['reason']}"
        guest.unload()
        nothing_left(guest)


def test_largest(guest: Guest) -> None:
    """As much as is allowed works: the deepest queue, the largest message, all the sizes."""
    guest.add("rxe0")
    lines = run(guest, sizes=8, depth=1_000_000)
    deepest = int(re.findall(r"the (\d+) that", lines[-1])[0])
    guest.unload()
    lines = run(guest, sizes=4_000_000_000)
    largest = int(re.findall(r"the (\d+) that", lines[-1])[0])
    guest.unload()
    for parameters in (
        {"sizes": 8, "depth": deepest, "traffic": deepest},
        {"sizes": largest, "traffic": 2},
        {"sizes": ",".join(map(str, range(1, 33))), "traffic": 1},
    ):
        assert run(guest, **parameters)[-1] == "traffic smoke success"
        guest.unload()
    nothing_left(guest)


def test_no_traffic(guest: Guest) -> None:
    """Without traffic=, nothing is posted, and nothing is in debugfs."""
    guest.add("rxe0")
    loaded = guest.load("rxe0")
    assert not [line for line in said(loaded) if "traffic" in line]
    guest.do("test ! -e /sys/kernel/debug/krdma_smoke")
    guest.unload()
    for parameter in ("connections=1", "errors=1", "peer=rxe1"):
        loaded = guest.do(f"insmod /krdma_smoke.ko rdma_dev_name=rxe0 {parameter}")
        assert said(loaded)[1] == "connections=, errors= and peer= have no effect without traffic="
        assert said(loaded)[-1] == "resource smoke success"
        guest.unload()


@pytest.mark.systems("kasan-siw")
def test_iwarp_is_skipped(guest: Guest) -> None:
    """A device that is connected by TCP cannot have traffic, which is no failure."""
    guest.driver = "siw"
    guest.add("siw0")
    lines = run(guest, rdma_dev_name="siw0")
    reason = "iWARP needs the connection manager"
    assert lines[-1] == f"traffic smoke skipped: {reason}"
    parsed = results(guest, "siw0")
    assert (parsed["state"], parsed["reason"], parsed["tests"]) == ("skipped", reason, [])
    guest.unload()
    nothing_left(guest)


def test_port_is_down(guest: Guest) -> None:
    """A port that is down before is told; it works as soon as it is up."""
    guest.add("rxe0")
    guest.do("ip link set net_rxe0 down")
    lines = run(guest)
    reason = "no port is up; see that one has a link and is configured"
    what = "is down; see that it has a link and is configured"
    assert lines[-1] == f"traffic smoke failed: {reason}"
    guest.unload()
    assert run(guest, port=1)[-1] == f"traffic smoke failed: port 1 {what}"
    guest.unload()
    guest.do("ip link set net_rxe0 up")
    assert run(guest, sizes=8)[-1] == "traffic smoke success"
    guest.unload()
    guest.add("rxe1")
    guest.do("ip link set net_rxe1 down")
    reason = "no port of the peer is up; see that one has a link and is configured"
    assert run(guest, peer="rxe1", port=1)[-1] == f"traffic smoke failed: {reason}"
    guest.unload()
    lines = run(guest, peer="rxe1", peer_port=1)
    assert lines[-1] == f"traffic smoke failed: port 1 of the peer {what}"


def test_several_devices(guest: Guest) -> None:
    """With every device taken, each has results of its own, and each line its name."""
    guest.add("rxe0", "rxe1")
    begin = start(guest, rdma_dev_name="", sizes="8,4096")
    guest.wait_for("rxe0: traffic smoke ")
    guest.wait_for("rxe1: traffic smoke ")
    lines = lines_since(guest, begin)
    for name in ("rxe0", "rxe1"):
        own = [line.removeprefix(f"{name}: ") for line in lines if line.startswith(f"{name}: ")]
        assert good(own) == all_tests((8, 4096))
        assert own[-1] == "traffic smoke success"
        guest.do(f"grep -q success /sys/kernel/debug/krdma_smoke/{name}/results")


def test_results_are_open(guest: Guest) -> None:
    """While somebody has the results open, the module cannot be unloaded; then it can."""
    guest.add("rxe0")
    run(guest, sizes=8)
    refused = guest.run(f"exec 3<{RESULTS}; head -c 1 <&3; rmmod krdma_smoke")
    assert "Module krdma_smoke is in use" in refused.output
    # The device may go meanwhile, and the file with it.
    shown = guest.run(f"exec 3<{RESULTS}; rdma link delete rxe0; cat <&3; ls {RESULTS}")
    assert "No such file" in shown.output
    guest.unload()
    nothing_left(guest)


def test_slash_in_name(guest: Guest) -> None:
    """A device can have a name that a directory cannot: it is changed as sysfs does."""
    guest.add("rxe0")
    guest.rename("rxe0", "rdma/0")
    run(guest, rdma_dev_name="rdma/0", sizes=8)
    assert guest.do("ls /sys/kernel/debug/krdma_smoke").output == "rdma!0\n"


def test_renamed(guest: Guest) -> None:
    """Results are found under the name that the device has now, and its former name is free."""
    guest.add("rxe0")
    run(guest, sizes=8)
    before = results(guest)
    guest.rename("rxe0", "other0")
    directory = "/sys/kernel/debug/krdma_smoke"
    assert guest.do(f"ls {directory}").output == "other0\n"
    assert json.loads(guest.do(f"cat {directory}/other0/results").output) == before
    guest.do("ip link add net_2 type dummy; ip link set net_2 up")
    begin = len(guest.log)
    guest.do("dmesg -c >/dev/null; rdma link add rxe0 type rxe netdev net_2")
    guest.wait_for("traffic smoke success")
    assert good(lines_since(guest, begin)) == all_tests((8,))
    assert results(guest)["ends"][0]["device"] == "rxe0"
    guest.unload()
    nothing_left(guest)


def test_same_name_in_two_namespaces(guest: Guest) -> None:
    """Devices of the same name have results of their own, wherever they and others go."""
    directory = "/sys/kernel/debug/krdma_smoke"

    def shown() -> dict[str, str]:
        names = guest.do(f"ls {directory}").output.split()
        parsed = {
            name: json.loads(guest.do(f"cat {directory}/{name}/results").output) for name in names
        }
        assert all(results["state"] == "success" for results in parsed.values())
        return {name: results["ends"][0]["gid"][-9:] for name, results in parsed.items()}

    def add(number: int) -> list[str]:
        begin = len(guest.log)
        guest.do(
            "dmesg -c >/dev/null\n"
            f"ip link add d{number} type dummy; ip addr add 10.0.{number}.1/24 dev d{number}\n"
            f"ip link set d{number} up; rdma link add new0 type rxe netdev d{number}\n"
            f"rdma dev set new0 netns n{number}\n"
            f"ip netns exec n{number} rdma dev set new0 name rxe0\n"
        )
        guest.wait_for("traffic smoke success")
        prefix = "the directory rxe0 is taken, the results of this device are in "
        lines = lines_since(guest, begin)
        return [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]

    guest.do("modprobe rdma_rxe; modprobe dummy; mkdir -p /run/netns")
    guest.do("rdma system set netns exclusive; for n in 1 2 3 4; do ip netns add n$n; done")
    start(guest, sizes=8)
    assert [add(number) for number in (1, 2, 3)] == [[], ["rxe0.2"], ["rxe0.3"]]
    gids = {"rxe0": "0a00:0101", "rxe0.2": "0a00:0201", "rxe0.3": "0a00:0301"}
    assert shown() == gids
    guest.do("ip netns exec n1 rdma link delete rxe0")
    del gids["rxe0"]
    assert shown() == gids
    assert add(4) == []
    assert shown() == {**gids, "rxe0": "0a00:0401"}
    guest.do("ip netns exec n2 rdma dev set rxe0 name other0")
    assert shown() == {"rxe0": "0a00:0401", "rxe0.3": "0a00:0301", "other0": "0a00:0201"}
    guest.do(
        "ip netns exec n4 rdma link delete rxe0; ip netns exec n2 rdma dev set other0 name rxe0"
    )
    assert shown() == {"rxe0": "0a00:0201", "rxe0.3": "0a00:0301"}
    guest.unload()
    nothing_left(guest)


@pytest.mark.parametrize("poll", POLLS)
def test_peer(guest: Guest, poll: str) -> None:
    """Between two devices, in different network namespaces, everything arrives."""
    veth(guest)
    lines = run(guest, peer="rxe1", poll=poll, depth=5, sizes="8,65536", errors=1)
    assert good(lines, 5) == all_tests((8, 65536)), lines
    assert lines[-1] == "traffic smoke success"
    assert [(device, gid) for device, _, _, gid in ends(guest)] == [
        ("rxe0", "0a01:0001"),
        ("rxe1", "0a01:0002"),
    ]
    guest.unload()
    nothing_left(guest)


def gid_index(guest: Guest, device: str, gid: str) -> int:
    """Return the index of the GID that ends like that."""
    table = f"/sys/class/infiniband/{device}/ports/1/gids"
    # ib_core takes in a new address a little later.
    script = f"cd {table}; until grep -ls '{gid}$' *; do usleep 20000; done"
    return int(guest.do(script).output)


def ends(guest: Guest) -> list[tuple[str, int, int, str]]:
    """Return between what there was traffic: devices, ports, indices and ends of GIDs."""
    return [
        (end["device"], end["port"], end["gid_index"], end["gid"][-9:])
        for end in results(guest)["ends"]
    ]


def test_peer_has_settings_of_its_own(guest: Guest) -> None:
    """What is said of one end is not of the other, and what is not said goes with what is."""
    veth(guest)
    guest.do(
        "ip addr add 10.1.0.3/24 dev v0; ip -n there addr add 10.1.0.4/24 dev v1\n"
        "ip addr add fd00::1/64 dev v0 nodad; ip -n there addr add fd00::2/64 dev v1 nodad\n"
        "until ip -n there addr show dev v1 | grep -q 'fe80.*link'; do usleep 20000; done"
    )
    for here, there, given in (
        ("0a01:0001", "0a01:0004", ("peer_gid_index",)),
        ("0a01:0003", "0a01:0002", ("gid_index",)),
        ("0a01:0003", "0a01:0004", ("gid_index", "peer_gid_index")),
        ("0000:0001", "0000:0002", ("gid_index",)),
        ("0000:0001", "0000:0002", ("peer_gid_index",)),
    ):
        indices = gid_index(guest, "rxe0", here), gid_index(guest, "rxe1", there)
        values = dict(zip(("gid_index", "peer_gid_index"), indices, strict=True))
        parameters = {name: values[name] for name in given}
        lines = run(guest, peer="rxe1", sizes=8, port=1, **parameters)
        assert lines[-1] == "traffic smoke success"
        assert ends(guest) == [("rxe0", 1, indices[0], here), ("rxe1", 1, indices[1], there)]
        guest.unload()
    mixed = {
        "gid_index": gid_index(guest, "rxe0", "0a01:0001"),
        "peer_gid_index": gid_index(guest, "rxe1", "0000:0002"),
    }
    complaint = (
        "the ports have no addresses of the same kind .*; see gid_index= and peer_gid_index="
    )
    lines = run(guest, peer="rxe1", sizes=8, **mixed)
    assert re.fullmatch(f"traffic smoke failed: {complaint}", lines[-1]), lines
    guest.unload()
    lines = run(guest, peer="rxe1", peer_port=2)
    assert lines[-1] == "traffic smoke failed: no such port, the peer has 1; see peer_port="


def test_same_device_with_two_addresses(guest: Guest) -> None:
    """The two ends may be addresses of one device, also where that is called its own peer."""
    guest.add("rxe0")
    guest.do("ip addr add 10.0.0.1/24 dev net_rxe0; ip addr add 10.0.0.2/24 dev net_rxe0")
    first, second = (gid_index(guest, "rxe0", f"0a00:000{number}") for number in (1, 2))
    for parameters, there in (
        ({"gid_index": second}, second),
        ({"gid_index": second, "peer_gid_index": first}, first),
        ({"gid_index": second, "peer_gid_index": first, "peer": "rxe0", "peer_port": 1}, first),
    ):
        lines = run(guest, sizes="8,4096", depth=3, **parameters)
        assert good(lines, 3) == all_tests((8, 4096)), lines
        assert lines[-1] == "traffic smoke success"
        indices = [index for _, _, index, _ in ends(guest)]
        assert indices == [second, there]
        guest.unload()


def test_peer_comes_and_goes(guest: Guest) -> None:
    """Traffic waits for a peer that is not there yet, and stops when it goes away."""
    guest.add("rxe0", "other")
    begin = start(guest, peer="rxe1", traffic=4_000_000_000, sizes=8)
    guest.wait_for("no RDMA device is named rxe1, traffic waits for it")
    guest.rename("other", "rxe1")
    guest.wait_for("traffic from rxe0 port 1")
    guest.delete("rxe1")
    guest.wait_for("traffic smoke stopped")
    assert lines_since(guest, begin)[-1] == "traffic smoke stopped"
    assert results(guest)["state"] == "stopped"
    guest.unload()
    nothing_left(guest)


def test_peer_is_who_bears_the_name(guest: Guest) -> None:
    """A peer that is renamed is none for new connections, and one again when it is renamed back."""
    guest.add("rxe1", "rxe2")
    start(guest, peer="rxe1", sizes=8)
    guest.rename("rxe1", "other")
    guest.rename("rxe2", "rxe1")
    guest.delete("rxe1")
    guest.add("rxe0")
    guest.wait_for("no RDMA device is named rxe1, traffic waits for it")
    guest.rename("other", "rxe1")
    # Whether anything arrives there is not the question.
    guest.wait_for("traffic from rxe0")
    assert [end["device"] for end in results(guest)["ends"]] == ["rxe0", "rxe1"]
    guest.unload()
    nothing_left(guest)


@pytest.mark.parametrize("is_gone", [False, True])
def test_peer_in_two_namespaces(guest: Guest, is_gone: bool) -> None:
    """Of two that bear the name it is the last to come; if that has gone, it is the other one."""
    guest.do("modprobe rdma_rxe; rdma system set netns exclusive")
    guest.do("mkdir -p /run/netns; ip netns add there")
    start(guest, peer="rxe1", sizes=8)
    gids = {}
    for device in ("rxe1", "new0"):
        guest.add(device)
        table = f"/sys/class/infiniband/{device}/ports/1/gids"
        gids[device] = guest.do(f"cat {table}/0").output.strip()
    guest.do("rdma dev set new0 netns there; ip netns exec there rdma dev set new0 name rxe1")
    if is_gone:
        guest.do("ip netns exec there rdma link delete rxe1")
    guest.add("rxe0")
    guest.wait_for("traffic from rxe0")
    there = results(guest)["ends"][1]
    assert (there["device"], there["gid"]) == ("rxe1", gids["rxe1" if is_gone else "new0"])
    guest.unload()
    nothing_left(guest)


# How the way between two ends is cut and joined again, and how work requests complete then.
CUTS = {
    # Both ports go down. What soft-RoCE cannot send at all, it flushes.
    "cable": ("down", "up", "RETRY_EXC|WR_FLUSH"),
    # The ports stay up, and nothing arrives any more.
    "silence": ("address 02:00:00:00:00:01", "address 02:00:00:00:00:02", "RETRY_EXC"),
}


@pytest.mark.parametrize("way", CUTS)
def test_cut(guest: Guest, way: str) -> None:
    """What is on its way when the way is cut fails; when it is joined again, the rest goes well."""
    cut, join, status = CUTS[way]
    veth(guest)
    # Soft-RoCE completes a request before it puts the queue pair in error.
    guest.count("rxe_qp_error", delay=20)
    begin = start(guest, peer="rxe1", traffic=500, sizes="8,4096")
    # In the guest, which does not wait for a host that is busy.
    guest.do(
        "until dmesg | grep -q 'traffic from rxe0'; do usleep 1000; done\n"
        f"ip -n there link set v1 {cut}"
    )
    guest.wait_for("failed, message ")
    guest.do(f"ip -n there link set v1 {join}")
    guest.wait_for("traffic smoke ")
    lines = lines_since(guest, begin)
    failed = [line for line in lines if ": failed, " in line]
    # Until they are joined, the next connection is as bad.
    pattern = re.compile(
        rf"(\w+ \d+B depth 1): failed, (message \d+: \w+ completed with IB_WC_({status})_ERR,"
        r" vendor_err \d+, queue pair in ERR)"
    )
    whats = [pattern.fullmatch(line) for line in failed]
    assert all(whats), failed
    first, *_ = [f"{what[1]}: {what[2]}" for what in whats if what]
    assert lines[-1] == f"traffic smoke failed: {len(failed)} of 12 tests, first {first}"
    assert len(good(lines, messages=500)) == 12 - len(failed)
    assert good(lines, messages=500)[-1] == ("fetch_add", 8)
    parsed = results(guest)
    assert parsed["state"] == "failed"
    errors = [test["error"] for test in parsed["tests"] if "error" in test]
    assert errors == [what[2] for what in whats if what]
    assert guest.calls() > 0
    guest.mend()


def test_address_goes(guest: Guest) -> None:
    """Traffic waits for the address that it has begun with, and does not take another one."""
    veth(guest)
    guest.do("until ip addr show dev v0 | grep -q 'fe80.*link'; do usleep 20000; done")
    gid_index(guest, "rxe0", "0a01:0001")
    begin = start(guest, peer="rxe1", traffic=500, sizes="8,4096")
    guest.do(
        "until dmesg | grep -q 'traffic from rxe0'; do usleep 1000; done\n"
        "ip addr del 10.1.0.1/24 dev v0"
    )
    guest.wait_for("failed, ")
    # There are others, by which it could go on.
    guest.do("sleep 3")
    lines = lines_since(guest, begin)
    assert ": failed, " in lines[-1], lines
    guest.do("ip addr add 10.1.0.1/24 dev v0")
    guest.wait_for("traffic smoke ")
    lines = lines_since(guest, begin)
    assert good(lines, messages=500)[-1] == ("fetch_add", 8)
    assert [gid for *_, gid in ends(guest)] == ["0a01:0001", "0a01:0002"]
    guest.unload()
    nothing_left(guest)


def test_no_connection_at_first(guest: Guest) -> None:
    """A connection that cannot be made while the link comes back is made a little later."""
    veth(guest)
    # Those of the resource smoke and of the first pair go well.
    guest.fail("rxe_create_qp", -12, times=1, after=3)
    begin = start(guest, peer="rxe1", traffic=5000, sizes="8,4096")
    guest.do(
        "until dmesg | grep -q 'traffic from rxe0'; do usleep 1000; done\n"
        f"ip -n there link set v1 {CUTS['silence'][0]}"
    )
    guest.wait_for("failed, message ")
    guest.do(f"ip -n there link set v1 {CUTS['silence'][1]}")
    guest.wait_for("traffic smoke ")
    assert guest.calls() > 4
    guest.mend()
    lines = lines_since(guest, begin)
    assert "; then " not in lines[-1]
    assert good(lines, messages=5000)[-1] == ("fetch_add", 8)
    guest.unload()
    nothing_left(guest)


def test_vlan(guest: Guest) -> None:
    """Addresses in the same VLAN are taken, where others come first."""
    veth(guest)
    # An address that is added takes the first place that is free.
    guest.do(
        "modprobe 8021q; ip addr del 10.1.0.1/24 dev v0\n"
        "ip link add link v0 name v0.10 type vlan id 10; ip link set v0.10 up\n"
        "ip addr add 10.10.0.1/24 dev v0.10\n"
        "ip -n there link add link v1 name v1.10 type vlan id 10; ip -n there link set v1.10 up\n"
        "ip -n there addr add 10.10.0.2/24 dev v1.10\n"
    )
    tagged = gid_index(guest, "rxe0", "0a0a:0001")
    guest.do("ip addr add 10.1.0.1/24 dev v0")
    assert tagged < gid_index(guest, "rxe0", "0a01:0001")
    assert gid_index(guest, "rxe1", "0a01:0002") < gid_index(guest, "rxe1", "0a0a:0002")
    for network, given in (
        ("0a0a", {}),
        ("0a0a", {"gid_index": tagged}),
        ("0a01", {"peer_gid_index": gid_index(guest, "rxe1", "0a01:0002")}),
    ):
        assert run(guest, peer="rxe1", sizes=8, **given)[-1] == "traffic smoke success"
        assert [gid for *_, gid in ends(guest)] == [f"{network}:0001", f"{network}:0002"]
        guest.unload()

    # Also if they are of another kind: IPv4 is in different VLANs now.
    guest.do(
        "ip addr del 10.1.0.1/24 dev v0; ip -n there addr del 10.10.0.2/24 dev v1.10\n"
        "cd /sys/class/infiniband\n"
        "while grep -q ffff:0a01:0001 rxe0/ports/1/gids/*; do usleep 20000; done\n"
        "while grep -q ffff:0a0a:0002 rxe1/ports/1/gids/*; do usleep 20000; done"
    )
    assert run(guest, peer="rxe1", sizes=8)[-1] == "traffic smoke success"
    assert not {gid for *_, gid in ends(guest)} & {"0a0a:0001", "0a01:0002"}
    guest.unload()


def test_no_connection_after_a_failure(guest: Guest) -> None:
    """What was first is told, and what made an end of it."""
    veth(guest)
    begin = start(guest, peer="rxe1", traffic=4_000_000_000, sizes="8,4096")
    guest.wait_for("traffic from rxe0")
    guest.fail("rxe_create_qp", -12)
    guest.do(f"ip -n there link set v1 {CUTS['silence'][0]}")
    guest.wait_for("traffic smoke ")
    guest.mend()
    test, reason = lines_since(guest, begin)[-2:]
    name, _, what = test.partition(": failed, ")
    assert reason == (
        f"traffic smoke failed: 1 of 1 tests, first {name}: {what}; then ib_create_qp failed,"
        " ret=-12"
    )
    guest.unload()
    nothing_left(guest)


@pytest.mark.parametrize("poll", POLLS)
@pytest.mark.parametrize("end", ["device", "module"])
def test_stopped(guest: Guest, end: str, poll: str) -> None:
    """The device's going, or the module's, in the midst of traffic stops it, and leaves nothing."""
    guest.add("rxe0")
    for number in range(20):
        begin = start(guest, traffic=4_000_000_000, poll=poll, depth=1 + number % 4, sizes=4096)
        guest.wait_for("traffic from rxe0")
        guest.do(f"usleep {number * 5000}")
        if end == "device":
            guest.delete("rxe0")
            assert not guest.objects()
            guest.add("rxe0")
        guest.unload()
        lines = lines_since(guest, begin)
        assert "traffic smoke stopped" in lines
        assert lines[-len(RETURNED) :] == list(RETURNED) or end == "device"
        nothing_left(guest)


@pytest.mark.parametrize("poll", POLLS)
@pytest.mark.parametrize("end", ["device", "module"])
def test_stopped_with_many_outstanding(guest: Guest, end: str, poll: str) -> None:
    """So it is with as many messages as there can be, also while memory is made for them."""
    guest.add("rxe0")
    lines = run(guest, sizes=8, depth=1_000_000)
    deepest = int(re.findall(r"the (\d+) that", lines[-1])[0])
    guest.unload()
    for number in range(8):
        begin = start(guest, traffic=4_000_000_000, poll=poll, depth=deepest, sizes=8)
        if number % 2:
            guest.wait_for("traffic from rxe0")
        guest.do(f"usleep {number * 50_000}")
        if end == "device":
            guest.delete("rxe0")
            assert not guest.objects()
            guest.add("rxe0")
        guest.unload()
        # Nothing else ends it, however late it is told.
        assert "traffic smoke stopped" in lines_since(guest, begin)
        nothing_left(guest)


@pytest.mark.parametrize("poll", POLLS)
def test_nothing_is_drained_in_vain(guest: Guest, poll: str) -> None:
    """In the end everything has completed, and nobody waits for more."""
    guest.add("rxe0")
    guest.count("ib_drain_qp")
    assert run(guest, poll=poll, depth=3)[-1] == "traffic smoke success"
    guest.unload()
    assert guest.calls() == 0
    guest.mend()
    nothing_left(guest)


@pytest.mark.debian  # kmemleak finds what is kept for the region
def test_memory_region_cannot_be_deregistered(guest: Guest) -> None:
    """A memory region that stays keeps all that it refers to, and the module."""
    guest.add("rxe0")
    # The first is one of ib_core's own, with a protection domain.
    guest.fail("rxe_dereg_mr", -16, times=1, after=1)
    lines = run(guest, sizes=8, traffic=1)
    assert "ib_dereg_mr failed, ret=-16" in lines
    assert guest.calls() == 2
    guest.mend()
    # Two of the resource smoke's stay, too.
    there = guest.objects()
    assert [there[f"rxe0 {kind}"] for kind in ("pd", "cq", "qp")] == [2, 1, 1]
    refused = guest.run("rmmod krdma_smoke")
    assert refused.status != 0
    assert "is in use" in refused.output


def test_few_memory_regions(guest: Guest) -> None:
    """There is not one for each message, but for as much as it can be of; and all data arrives."""
    guest.add("rxe0")
    for size, depth, regions in (
        (8, 1024, 2),
        (8, 1025, 3),
        (65536, 33, 2),
        (1 << 20, 5, 3),
        ((1 << 20) + 1, 2, 2),
        (2 << 20, 3, 3),
    ):
        lines = run(guest, sizes=size, depth=depth, traffic=depth + 1)
        assert lines[-1] == "traffic smoke success", lines
        guest.unload()
        start(guest, sizes=size, depth=depth, traffic=4_000_000_000)
        guest.wait_for("traffic from rxe0")
        assert guest.objects()["rxe0 mr"] == regions
        guest.unload()
        nothing_left(guest)


def test_depth_is_what_is_outstanding(guest: Guest) -> None:
    """No more can be outstanding than there are messages, and no more is said."""
    guest.add("rxe0")
    lines = run(guest, sizes=8, depth=5, traffic=3)
    assert good(lines, depth=3, messages=3) == all_tests((8,))
    assert results(guest)["depth"] == 3


# What goes wrong, in which tests, and what is said of it.
BUGS = {
    "corrupt-byte": (
        ("send_recv", "send_with_imm", "rdma_write", "rdma_write_with_imm"),
        "message 0: wrong data from offset 16",
    ),
    "nothing-written": (("rdma_write",), "message 0: wrong data from offset 0"),
    "lost-completion": (
        ("fetch_add",),
        "message 0: fetch_add has not completed for 30 s",
    ),
    "wrong-immediate": (
        ("send_with_imm", "rdma_write_with_imm"),
        "message 0: immediate 0x",
    ),
    "lost-receive": (
        ("send_with_imm",),
        "message 0: send_with_imm completed with IB_WC_RNR_RETRY_EXC_ERR",
    ),
    "wrong-wr_cqe": (
        ("rdma_read",),
        "message 0: rdma_read has completed more than once: a completion came again, or has the"
        " wr_cqe of another",
    ),
    "wrong-qp": (
        ("compare_swap",),
        "message 0: the completion of compare_swap names another queue pair",
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_bug_is_found(root: BuildRoot, chosen: Kernel, tmp_path: Path, bug: str) -> None:
    """What goes wrong in one place is told as just that, and the rest goes well.

    Twice the same size: what the first has left must not be taken for the second's.
    """
    tests, what = BUGS[bug]
    built = module.build(root, chosen, f"KRDMA_SMOKE_BUG={bug}", variant=f"bug-{bug}")
    files = {"krdma_smoke.ko": built.ko}
    expected = [test for test in all_tests((4096, 24, 24)) if test[0] in tests]
    with Guest(root, chosen, files, log=tmp_path / "kernel.log") as guest:
        guest.add("rxe0")
        for poll in POLLS:
            lines = run(guest, sizes="4096,24,24", depth=3, traffic=3, poll=poll)
            failed = [line for line in lines if ": failed, " in line]
            for line, (test, size) in zip(failed, expected, strict=True):
                assert line.startswith(f"{test} {size}B depth 3: failed, {what}"), line
            assert len(good(lines, 3, 3)) == len(all_tests((4096, 24, 24))) - len(failed)
            assert lines[-1].startswith(f"traffic smoke failed: {len(failed)} of ")
            guest.unload()
        assert not guest.splats()


@pytest.mark.parametrize("poll", POLLS)
def test_lost_flush_is_found(root: BuildRoot, chosen: Kernel, tmp_path: Path, poll: str) -> None:
    """After an error on purpose, it is what is not flushed that is wrong, not the error."""
    built = module.build(root, chosen, "KRDMA_SMOKE_BUG=lost-flush", variant="bug-lost-flush")
    files = {"krdma_smoke.ko": built.ko}
    with Guest(root, chosen, files, log=tmp_path / "kernel.log") as guest:
        guest.add("rxe0")
        lines = run(guest, sizes=8, depth=3, traffic=3, poll=poll, errors=1)
        what = "READ with a wrong key: failed, message 1: rdma_read has not completed for 30 s"
        assert what in lines, lines
        guest.unload()
        assert not guest.splats()


def test_others_keep_some_memory(root: BuildRoot, chosen: Kernel, ko: Path, tmp_path: Path) -> None:
    """Nobody is killed for the memory that traffic takes: at both ends, rounded up as it is."""
    log = tmp_path / "kernel.log"
    with Guest(root, chosen, {ko.name: ko}, log=log, memory="256M") as guest:
        guest.add("rxe0")
        available = guest.do("sed -n 's/^MemAvailable: *//p' /proc/meminfo").output
        pages = int(available.split()[0]) // 4
        too_much = "failed: allocating memory failed, ret=-12"
        # Of 6 pages each, for which 8 are taken, at either end: half of all is 1/32 of it for each.
        for size, count, end in (
            (4096, 16000, too_much),
            (5 * 4096 + 1, pages // 26, too_much),
            (5 * 4096 + 1, pages // 40, "success"),
        ):
            lines = run(guest, traffic=count, sizes=size, depth=count)
            assert lines[-1] == f"traffic smoke {end}"
            guest.unload()
        nothing_left(guest)
        assert not [line for line in guest.log if "oom-killer" in line]


@contextmanager
def null_device(
    root: BuildRoot, chosen: Kernel, ko: Path, tmp_path: Path, parameter: str
) -> Iterator[Guest]:
    """Boot a guest with a device that is nothing but memory; in the end its log must be clean."""
    provider = twin.build_provider(root, chosen).ko
    files = {path.name: path for path in (ko, twin.build(root, chosen).ko, provider)}
    with Guest(root, chosen, files, log=tmp_path / "kernel.log") as guest:
        guest.do(f"modprobe ib_core; insmod /{provider.name} {parameter}")
        yield guest
        assert not guest.splats()


def test_infiniband_by_dma(root: BuildRoot, chosen: Kernel, ko: Path, tmp_path: Path) -> None:
    """Everything arrives on an InfiniBand device to which memory has other addresses."""
    sizes = (0, 1, 8, 4097, 65536)
    with null_device(root, chosen, ko, tmp_path, "dma=1") as guest:
        lines = run(
            guest, rdma_dev_name="null0", sizes=",".join(map(str, sizes)), depth=5, errors=1
        )
        assert good(lines, depth=5) == all_tests(sizes), lines
        assert any(line.startswith("READ with a wrong key: IB_WC_REM_ACC") for line in lines)
        assert lines[-1] == "traffic smoke success"
        guest.do("rmmod krdma_smoke; rmmod krdma_null")


def test_cause_is_told(root: BuildRoot, chosen: Kernel, ko: Path, tmp_path: Path) -> None:
    """What has failed by itself is told, also if what it made others fail comes first."""
    # The first is that of opening the memory.
    with null_device(root, chosen, ko, tmp_path, "fail=4") as guest:
        lines = run(guest, rdma_dev_name="null0", sizes=8, depth=8)
        assert lines[-1] == (
            "traffic smoke failed: 1 of 7 tests, first send_recv 8B depth 8: message 2: send_recv"
            " completed with IB_WC_RETRY_EXC_ERR, vendor_err 0, queue pair in ERR"
        )


def test_failure_is_told_to_who_stops(
    root: BuildRoot, chosen: Kernel, ko: Path, tmp_path: Path
) -> None:
    """A test that has failed is not forgotten for traffic that is stopped later."""
    with null_device(root, chosen, ko, tmp_path, "fail=4") as guest:
        begin = start(guest, rdma_dev_name="null0", sizes=8, depth=8, traffic=4_000_000_000)
        guest.wait_for("send_recv 8B depth 8: failed, ")
        guest.unload()
        said = [line for line in lines_since(guest, begin) if line.startswith("traffic smoke ")]
        assert len(said) == 1
        assert re.fullmatch(
            r"traffic smoke failed: 1 of [12] tests, first send_recv 8B depth 8: message 2:"
            r" send_recv completed with IB_WC_RETRY_EXC_ERR, .*; then stopped",
            said[0],
        )


def test_patience_is_for_each(root: BuildRoot, chosen: Kernel, ko: Path, tmp_path: Path) -> None:
    """A batch may take longer than a completion may, as long as there is one now and then."""
    # The first is that of opening the memory; 13 of the others together take 32.5 s.
    with null_device(root, chosen, ko, tmp_path, "late=14") as guest:
        lines = run(guest, rdma_dev_name="null0", sizes=8, depth=16, traffic=16)
        assert lines[-1] == "traffic smoke success", lines
        (test,) = results(guest, "null0")["tests"][:1]
        assert test["elapsed_ns"] > PATIENCE_NS
        # More than is counted exactly, and not less than it was.
        assert test["latency_ns"]["p99"] == test["latency_ns"]["max"]
