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
from guest import Guest
from test_traffic import SCHEMA, WRONG, veth

pytestmark = pytest.mark.rxe

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
        for key in ("elapsed_ns", "latency_ns"):
            test.pop(key, None)
    return parsed


@pytest.mark.parametrize("depth", [1, 16])
@pytest.mark.parametrize("poll", ["direct", "workqueue"])
def test_traffic(guest: Guest, poll: str, depth: int) -> None:
    """Every kind of message, and an error from which it recovers."""
    guest.add("rxe0")
    parameters = {"poll": poll, "depth": depth, "errors": 1, "traffic": 40, "sizes": "0,8,4097"}
    arguments = " ".join(shlex.quote(f"{name}={value}") for name, value in parameters.items())
    found: list[tuple[list[str], dict[str, Any]]] = []
    for name in NAMES:
        begin = len(guest.log)
        guest.do(f"dmesg -c >/dev/null; insmod /{name}.ko rdma_dev_name=rxe0 {arguments}")
        guest.wait_for("traffic smoke ")
        parsed = results(guest, name)
        guest.do(f"rmmod {name}")
        found.append((lines(guest, name, begin), parsed))
    rust, c = found
    assert rust == c
    assert "traffic smoke success" in rust[0]
    assert rust[1]["state"] == "success"


def test_peer(guest: Guest) -> None:
    """Traffic that waits for its peer, and stops when that goes; an event that is told."""
    veth(guest)
    guest.do("ip netns exec there rdma link delete rxe1")
    said = both(
        guest,
        "dmesg -c >/dev/null; insmod /{}.ko rdma_dev_name=rxe0 traffic=40 sizes=8 peer=rxe1",
        "until dmesg | grep -q 'traffic waits'; do usleep 20000; done",
        "ip netns exec there rdma link add rxe1 type rxe netdev v1",
        "until dmesg | grep -q 'traffic smoke '; do usleep 20000; done",
        "ip netns exec there rdma link delete rxe1",
        "rmmod {}",
    )
    assert "no RDMA device is named rxeN, traffic waits for it" in said
    assert "traffic smoke success" in said


def test_failures(guest: Guest) -> None:
    """Calls that fail, and what the device does not have."""
    guest.add("rxe0")
    load = "insmod /{}.ko rdma_dev_name=rxe0"
    for function in ("rxe_alloc_pd", "rxe_create_cq", "rxe_create_qp"):
        guest.fail(function, -12)
        assert any("ret=-N" in line for line in both(guest, load, "rmmod {}"))
        guest.mend()
    for parameter in ("sizes=4000000000", "depth=1000000", "port=2", "gid_index=200"):
        said = both(
            guest,
            f"dmesg -c >/dev/null; {load} traffic=1 {parameter}",
            "until dmesg | grep -q 'traffic smoke '; do usleep 20000; done",
            "rmmod {}",
        )
        assert any(line.startswith("traffic smoke failed: ") for line in said)
