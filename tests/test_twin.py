# SPDX-License-Identifier: GPL-2.0
"""The twin in C, which the module is compared with, does and says the same."""

from __future__ import annotations

import itertools
import json
import re
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import module
import pytest
import twin
from buildroot import BuildRoot
from guest import Guest, until_logged
from kernel import Kernel
from test_traffic import SCHEMA, WRONG, gid_index, null_device, veth

pytestmark = pytest.mark.debian

NAMES = (module.NAME, twin.NAME)


def without_numbers(text: str) -> str:
    """Return a text in which any number is the same."""
    return re.sub(r"\d+(\.\d+)?", "N", text)


def lines(guest: Guest, name: str, begin: int) -> list[str]:
    """Return what a module has said since then, numbers aside."""
    said = [line for line in guest.log[begin:] if line.startswith(f"{name}: ")]
    said = [line.removeprefix(f"{name}: ") for line in said]
    # What the kernel says: of the first time, and of a parameter, as much as fits into the line.
    said = [line for line in said if "taint" not in line and not line.startswith("`")]
    return [without_numbers(line) for line in said]


def run(guest: Guest, name: str, *scripts: str) -> list[str]:
    """Run scripts, in which `{}` is the module's name; return what that says."""
    begin = len(guest.log)
    for script in scripts:
        guest.run(script.replace("{}", name))
    return lines(guest, name, begin)


def both(guest: Guest, *scripts: str) -> list[str]:
    """Run scripts with either module, which say the same; return that."""
    rust, c = (run(guest, name, *scripts) for name in NAMES)
    assert rust == c
    assert guest.do("lsmod").output.count("krdma_smoke") == 0
    return rust


def test_devices(guest: Guest) -> None:
    """Devices that come, go and are renamed, with the names that were seen."""
    guest.add("rxe0", "other")
    load = "insmod /{}.ko rdma_dev_name=rxe0"
    add = "rdma link add rxe0 type rxe netdev net_rxe0"
    delete = "rdma link delete rxe0"
    # It is the latter one of the two from now on.
    guest.do(f"{delete}; {add}")
    assert len(both(guest, load, delete, add, "rmmod {}")) > 20
    assert "exit" in both(guest, "insmod /{}.ko rdma_dev_name=", "rmmod {}")
    said = both(
        guest,
        "insmod /{}.ko rdma_dev_name=wanted",
        "rdma dev set other name wanted",
        "rdma dev set wanted name other",
        "rmmod {}",
    )
    assert "no RDMA device is named wanted, waiting for it (there are: other, rxeN)" in said
    both(guest, "insmod /{}.ko rdma_dev_name=rxe0 check_ib_core=0", "rmmod {}")
    both(guest, "insmod /{}.ko rdma_dev_name=rxe0 connections=1", "rmmod {}")


def test_wrong_parameters(guest: Guest) -> None:
    """What is refused, and why."""
    guest.add("rxe0")
    for parameter, complaint in WRONG:
        said = both(guest, f"insmod /{{}}.ko traffic=1 rdma_dev_name=rxe0 {parameter}")
        assert said[1:] == ([] if complaint is None else [without_numbers(complaint)])


def results(guest: Guest, name: str) -> dict[str, Any]:
    """Return the results, numbers aside."""
    text = guest.do(f"cat /sys/kernel/debug/{name}/rxe0/results").output
    parsed: dict[str, Any] = json.loads(text)
    jsonschema.validate(parsed, SCHEMA)
    for test in parsed["tests"]:
        for key in ("elapsed_ns", "latency_ns", "delivery_ns"):
            if key in test:
                test[key] = None
    return parsed


def traffic(guest: Guest, name: str, parameters: str) -> tuple[list[str], dict[str, Any]]:
    """Load a module, which runs traffic, and unload it; return what it says, and the results."""
    begin = len(guest.log)
    guest.do(f"dmesg -c >/dev/null; insmod /{name}.ko rdma_dev_name=rxe0 {parameters}")
    guest.wait_for("traffic smoke ")
    parsed = results(guest, name)
    guest.do(f"rmmod {name}")
    return lines(guest, name, begin), parsed


def test_traffic(guest: Guest) -> None:
    """Every kind of message, and an error from which it recovers."""
    guest.add("rxe0")
    guest.do("ip addr add 10.0.0.1/24 dev net_rxe0; ip addr add 10.0.0.2/24 dev net_rxe0")
    second = gid_index(guest, "rxe0", "0a00:0002")
    for parameters in (
        "poll=direct depth=1",
        f"poll=direct depth=16 peer_gid_index={second}",
        f"poll=workqueue depth=1 gid_index={second} peer_port=1",
        "poll=workqueue depth=16",
    ):
        parameters = f"traffic=40 sizes=0,8,4097 errors=1 connections=7 {parameters}"
        rust, c = (traffic(guest, name, parameters) for name in NAMES)
        assert rust == c
        assert "traffic smoke success" in rust[0]
        assert rust[1]["state"] == "success"


def test_peer(guest: Guest) -> None:
    """Traffic that waits for its peer, and stops when that goes."""
    veth(guest)
    guest.do("ip netns exec there rdma link delete rxe1")

    for messages, end in ((40, "success"), (4_000_000_000, "stopped")):
        said = both(
            guest,
            "dmesg -c >/dev/null; insmod /{}.ko"
            f" rdma_dev_name=rxe0 traffic={messages} sizes=8 peer=rxe1",
            until_logged("traffic waits"),
            "ip netns exec there rdma link add rxe1 type rxe netdev v1",
            until_logged("traffic smoke success" if end == "success" else "traffic from"),
            "ip netns exec there rdma link delete rxe1",
            until_logged(f"traffic smoke {end}"),
            "rmmod {}",
        )
        assert "no RDMA device is named rxeN, traffic waits for it" in said
        assert f"traffic smoke {end}" in said


def test_failures(guest: Guest) -> None:
    """Calls that fail, and what the device does not have."""
    guest.add("rxe0")
    guest.do("ip addr add 10.0.0.1/24 dev net_rxe0; ip addr add fd00::1/64 dev net_rxe0 nodad")
    four, six = (gid_index(guest, "rxe0", gid) for gid in ("ffff:0a00:0001", ":0000:0000:0001"))
    load = "insmod /{}.ko rdma_dev_name=rxe0"
    for function in ("rxe_alloc_pd", "rxe_create_cq", "rxe_create_qp"):
        guest.fail(function, -12)
        assert any("ret=-N" in line for line in both(guest, load, "rmmod {}"))
        guest.mend()
    said = both(
        guest,
        "insmod /failpoint.ko function=rxe_create_qp error=-12 after=2",
        f"{load} queue_pairs=3",
        "rmmod {}",
        "rmmod failpoint",
    )
    assert "ib_create_qp failed, ret=-N, after N queue pairs" in said
    assert "ib_create_qp success, qpn=N and N more" in both(
        guest, f"{load} queue_pairs=3", "rmmod {}"
    )
    for parameter in (
        *("sizes=4000000000", "depth=1000000"),
        *("port=2", "peer_port=2", "gid_index=200", "peer_gid_index=200"),
        f"gid_index={four} peer_gid_index={six}",
    ):
        said = both(
            guest,
            f"dmesg -c >/dev/null; {load} traffic=1 {parameter}",
            until_logged("traffic smoke "),
            "rmmod {}",
        )
        assert any(line.startswith("traffic smoke failed: ") for line in said)


# What is asked of ib_core, and of the driver where that is inline, with which arguments.
CALLS = {
    "__ib_alloc_pd": "$arg2:u32",
    "ib_dealloc_pd_user": "",
    "__ib_create_cq": "",
    "ib_destroy_cq_user": "",
    "__ib_alloc_cq": "$arg3:u32 $arg4:u32 $arg5:u32",
    "ib_free_cq": "",
    "ib_create_qp_kernel": "",
    "ib_destroy_qp_user": "",
    "ib_drain_qp": "",
    # The state, and the mask.
    "ib_modify_qp": "+0($arg2):u32 $arg3:x32",
    "ib_alloc_mr": "$arg2:u32 $arg3:u32",
    "ib_map_mr_sg": "$arg3:u32 $arg5:u32",
    "ib_dereg_mr_user": "",
    "ib_query_port": "$arg2:u32",
    # Of the first work request, how many pieces it has, its opcode, its flags, and, if it registers
    # memory, under which key, as far as that is for the consumer to choose, and for what.
    "rxe_post_send": "+24($arg2):u32 opcode=+28($arg2):u32 +32($arg2):x32 key=+48($arg2):x8"
    " access=+52($arg2):x32",
    "rxe_post_recv": "+24($arg2):u32",
}


def code(guest: Guest, name: str) -> range:
    """Return where the code of a module is."""
    symbols = guest.do(f"grep -i ' t .*\\[{name}\\]$' /proc/kallsyms").output.splitlines()
    addresses = [int(line.split()[0], 16) for line in symbols]
    return range(min(addresses), max(addresses) + 4096)


def calls(guest: Guest, name: str, parameters: str) -> list[str]:
    """Return what a module calls while it is loaded, runs and is unloaded."""
    guest.do("echo >/sys/kernel/tracing/trace; dmesg -c >/dev/null")
    guest.do(f"insmod /{name}.ko rdma_dev_name=rxe0 {parameters}")
    own = code(guest, name)
    guest.wait_for("traffic smoke success")
    guest.do(f"rmmod {name}")
    trace = guest.do("cat /sys/kernel/tracing/trace").output
    found = re.findall(r": (\w+): \(.*?\) caller=0x(\w+) ?(.*)", trace)
    # The cache of ib_core calls some of these, too.
    made = [f"{call} {rest}".strip() for call, caller, rest in found if int(caller, 16) in own]
    # In what does not register memory, something else is there.
    other = re.compile(rf"(opcode=(?!{REGISTER} ).*) key=\w+ access=\w+")
    return [other.sub(r"\1", call) for call in made]


# `enum ib_wr_opcode`.
REGISTER = 0x20
INVALIDATE = 7


# What memory is open for, in the order of the tests: messages need nothing, writes and atomics also
# the read behind them. `enum ib_access_flags`: 1 local write, 2 write, 4 read, 8 atomics.
OPEN_FOR = ["0x1", "0x1", "0x7", "0x3", "0x5", "0xd", "0xd"]


def test_calls(guest: Guest) -> None:
    """The same calls in the same order."""
    guest.add("rxe0")
    probes = "".join(f"p:{call} {call} caller=$stack0:x64 {CALLS[call]}\n" for call in CALLS)
    guest.do(
        "mount -t tracefs tracefs /sys/kernel/tracing; cd /sys/kernel/tracing\n"
        f"echo 4096 >buffer_size_kb; echo {shlex.quote(probes)} >kprobe_events\n"
        "echo 1 >events/kprobes/enable"
    )
    for poll in ("direct", "workqueue"):
        parameters = (
            f"poll={poll} depth=33 traffic=34 sizes=65536 errors=1 queue_pairs=3 connections=2"
        )
        rust, c = (calls(guest, name, parameters) for name in NAMES)
        assert rust == c
        posted = re.findall(r"opcode=(\d+)", "\n".join(c))
        opened = re.findall(r"access=(\w+)", "\n".join(c))
        # Then there is the error on purpose, a read, and a message after that.
        assert opened == [*OPEN_FOR, "0x5", "0x1"]
        # It was closed each time, but where the queue pair was in error; and the keys change.
        assert posted.count(f"{INVALIDATE}") == len(opened) - 1
        keys = [int(key, 16) for key in re.findall(r"key=(\w+) access", "\n".join(c))]
        assert all(a != b for a, b in itertools.pairwise(keys))
        # Every memory region is of 32 messages.
        assert sum(call.startswith("ib_alloc_mr ") for call in c) == 2 * 2
        assert {call.partition(" ")[0] for call in c} == set(CALLS) - {"ib_drain_qp"}
    # The driver can go again.
    guest.do("cd /sys/kernel/tracing; echo 0 >events/kprobes/enable; echo >kprobe_events")


def test_same_name(guest: Guest) -> None:
    """The second device of a name has results of its own."""
    guest.add("rxe0")
    guest.do(
        "modprobe dummy; mkdir -p /run/netns; rdma system set netns exclusive; ip netns add n1\n"
        "ip link add d1 type dummy; ip link set d1 up"
    )
    said = both(
        guest,
        "dmesg -c >/dev/null; insmod /{}.ko rdma_dev_name=rxe0 traffic=1 sizes=8",
        f"{until_logged('traffic smoke ')}; dmesg -c >/dev/null",
        # Not there before: it would be found while the first one's traffic runs.
        "rdma link add new0 type rxe netdev d1; rdma dev set new0 netns n1",
        "ip netns exec n1 rdma dev set new0 name rxe0",
        until_logged("traffic smoke "),
        "until test -e /sys/kernel/debug/{}/rxe0.2/results; do usleep 20000; done",
        "rmmod {}",
        "ip netns exec n1 rdma link delete rxe0",
    )
    assert said.count("traffic smoke success") == 2
    assert "the directory rxeN is taken, the results of this device are in rxeN" in said


# What a driver does not have, what is said of that, and how many tests there are of each size: of
# five kinds, and of the atomics, which have a size of their own.
LACKS: dict[str, tuple[tuple[str, ...], dict[int, int]]] = {
    "atomics=1": (
        (
            "compare_swap NB depth N: skipped, ib_post_send of compare_swap failed, ret=-N",
            "fetch_add NB depth N: skipped, ib_post_send of fetch_add failed, ret=-N",
            "traffic smoke success",
        ),
        {8: 5 + 2, 4096: 5, 65536: 5, 1048576: 5},
    ),
    "atomics=0": (("traffic smoke success",), {8: 5, 4096: 5, 65536: 5, 1048576: 5}),
    "no_registration=1": (
        (
            "traffic smoke skipped: the driver of nullN has no fast registration of memory"
            " (IB_DEVICE_MEM_MGT_EXTENSIONS)",
        ),
        {},
    ),
    # The two larger ones of the default sizes are one.
    "message_max=5000": (("traffic smoke success",), {8: 5 + 2, 4096: 5, 5000: 5}),
}


@pytest.mark.parametrize("lack", LACKS)
def test_what_a_driver_lacks(
    root: BuildRoot, chosen: Kernel, ko: Path, tmp_path: Path, lack: str
) -> None:
    """What a driver lacks is left out, or skipped if it says that it has it, as mlx5 does."""
    what, sizes = LACKS[lack]
    with null_device(root, chosen, ko, tmp_path, lack) as guest:
        said = both(
            guest,
            "dmesg -c >/dev/null; insmod /{}.ko rdma_dev_name=null0 traffic=40 depth=16",
            until_logged("traffic smoke "),
            "cat /sys/kernel/debug/{}/null0/results >/{}.json",
            "rmmod {}",
        )
        assert tuple(line for line in said if "skipped" in line or "smoke s" in line) == (
            "resource smoke success",
            *what,
        )
        for name in NAMES:
            parsed = json.loads(guest.do(f"cat /{name}.json").output)
            jsonschema.validate(parsed, SCHEMA)
            assert Counter(test["size"] for test in parsed["tests"]) == sizes
            skipped = [test["test"] for test in parsed["tests"] if "skipped" in test]
            assert skipped == [line.split()[0] for line in what if ": skipped, " in line]


# The post that fails: which, of all of the module's, how, and what is said of that. Of each of the
# five tests before there are one that opens memory and 12 messages, and between them those that
# close it.
_BEFORE = 5 * 13 + 4
REFUSED = (
    (0, -22, "failed, ib_post_send of IB_WR_LOCAL_INV failed"),
    (1, -22, "skipped, ib_post_send of IB_WR_REG_MR failed"),
    (1, -12, "failed, ib_post_send of IB_WR_REG_MR failed"),
    (2, -95, "skipped, ib_post_send of compare_swap failed"),
    (2, -22, "failed, ib_post_send of compare_swap failed"),
    (3, -95, "failed, ib_post_send of compare_swap failed"),
)


def test_what_is_skipped(guest: Guest) -> None:
    """An atomic is skipped if it is the first thing that is refused, by what means that."""
    guest.add("rxe0")
    for number, error, what in REFUSED:
        said = both(
            guest,
            f"insmod /failpoint.ko function=rxe_post_send error={error} times=1"
            f" after={_BEFORE + number}",
            "dmesg -c >/dev/null; insmod /{}.ko rdma_dev_name=rxe0 traffic=12 sizes=8",
            until_logged("traffic smoke "),
            "rmmod {}; rmmod failpoint",
        )
        assert f"compare_swap NB depth N: {what}, ret=-N" in said
        end = "failed" if what.startswith("failed") else "success"
        assert [line for line in said if line.startswith(f"traffic smoke {end}")]
