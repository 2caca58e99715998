# SPDX-License-Identifier: GPL-2.0
"""The twin in C, which the module is compared with, does and says the same."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import jsonschema
import module
import pytest
import twin
from guest import Guest, until_logged
from test_traffic import SCHEMA, WRONG, gid_index, veth

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
        guest.run(script.format(name))
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
    # Of the first work request, how many pieces it has, its opcode and its flags.
    "rxe_post_send": "+24($arg2):u32 +28($arg2):u32 +32($arg2):x32",
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
    return [f"{call} {rest}".strip() for call, caller, rest in found if int(caller, 16) in own]


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
        "ip link add d1 type dummy; ip link set d1 up\n"
        "rdma link add new0 type rxe netdev d1; rdma dev set new0 netns n1"
    )
    said = both(
        guest,
        "dmesg -c >/dev/null; insmod /{}.ko rdma_dev_name=rxe0 traffic=1 sizes=8",
        f"{until_logged('traffic smoke ')}; dmesg -c >/dev/null",
        "ip netns exec n1 rdma dev set new0 name rxe0",
        until_logged("traffic smoke "),
        "until test -e /sys/kernel/debug/{}/rxe0.2/results; do usleep 20000; done",
        "rmmod {}",
        "ip netns exec n1 rdma dev set rxe0 name new0",
    )
    assert said.count("traffic smoke success") == 2
    assert "the directory rxeN is taken, the results of this device are in rxeN" in said
