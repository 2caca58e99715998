# SPDX-License-Identifier: GPL-2.0
"""Devices and the module come and go, in every order."""

from __future__ import annotations

import pytest
from guest import EXIT, RETURNED, Guest, init, one_each, said, says, taken
from systems import System

pytestmark = pytest.mark.systems("in-tree", "devices-clients")


def test_device_before_insmod(guest: Guest) -> None:
    """A device that is there is taken while the module is loaded, and given back by rmmod."""
    guest.add("rxe0")
    assert says(guest.load("rxe0"), init("rxe0") + taken("rxe0"))
    assert guest.objects() == one_each("rxe0")
    assert says(guest.unload(), [*EXIT, *RETURNED])
    assert not guest.objects()


def test_device_after_insmod(guest: Guest) -> None:
    """A device that comes later is taken when it comes."""
    notice = r"no RDMA device is named rxe0, waiting for it \(there are: none\)"
    assert says(guest.load("rxe0"), [*init("rxe0"), notice])
    assert says(guest.add("rxe0"), taken("rxe0"))
    assert guest.objects() == one_each("rxe0")
    assert says(guest.unload(), [*EXIT, *RETURNED])
    assert not guest.objects()


def test_device_deleted(guest: Guest) -> None:
    """A device that goes gets its objects back then, not at rmmod."""
    guest.add("rxe0")
    guest.load("rxe0")
    assert says(guest.delete("rxe0"), RETURNED)
    assert says(guest.unload(), EXIT)


def test_driver_unloaded(guest: Guest, system: System) -> None:
    """A driver that is unloaded takes its devices along."""
    if system.debug and system.driver == "rxe":
        pytest.skip("with lockdep, a queue pair keeps soft-RoCE loaded (sk_owner_set())")
    guest.add("rxe0")
    guest.load("rxe0")
    assert says(guest.do(f"modprobe -r {guest.driver_module}"), RETURNED)
    assert says(guest.unload(), EXIT)


def test_netdev_deleted(guest: Guest) -> None:
    """A network device that is deleted takes the RDMA device on it along, a little later."""
    guest.add("rxe0")
    guest.load("rxe0")
    before = len(guest.log)
    guest.do("ip link delete net_rxe0")
    guest.wait_for("krdma_smoke: ib_dealloc_pd success")
    lines = [line for line in guest.log[before:] if line.startswith("krdma_smoke: ")]
    assert lines == [f"krdma_smoke: {line}" for line in RETURNED]
    assert says(guest.unload(), EXIT)


def test_netdev_down(guest: Guest) -> None:
    """Resources do not need a port that is up."""
    guest.add("rxe0")
    guest.do("ip link set net_rxe0 down")
    assert says(guest.load("rxe0"), init("rxe0") + taken("rxe0"))
    assert guest.objects() == one_each("rxe0")
    assert says(guest.unload(), [*EXIT, *RETURNED])


def test_delete_and_add_20_times(guest: Guest) -> None:
    """A device is taken each time that it comes."""
    guest.add("rxe0")
    guest.load("rxe0")
    for _ in range(20):
        assert says(guest.delete("rxe0"), RETURNED)
        assert not guest.objects()
        assert says(guest.add("rxe0"), taken("rxe0"))
    assert guest.objects() == one_each("rxe0")
    assert says(guest.unload(), [*EXIT, *RETURNED])


def test_load_and_unload_20_times(guest: Guest) -> None:
    """The module can be loaded again after it was unloaded."""
    guest.add("rxe0")
    for _ in range(20):
        assert says(guest.load("rxe0"), init("rxe0") + taken("rxe0"))
        assert says(guest.unload(), [*EXIT, *RETURNED])
    assert not guest.objects()


def test_loaded_twice(guest: Guest) -> None:
    """The kernel refuses to load the module a second time, and nothing happens."""
    guest.add("rxe0")
    guest.load("rxe0")
    second = guest.run("insmod /krdma_smoke.ko rdma_dev_name=rxe0")
    assert second.status != 0
    assert "File exists" in second.output
    assert said(second) == []
    assert guest.objects() == one_each("rxe0")
    assert says(guest.unload(), [*EXIT, *RETURNED])


def test_unloaded_while_a_device_appears(guest: Guest) -> None:
    """Loading, unloading and a device coming and going do not trip over one another."""
    # One device at a time comes and goes: two at once trip over soft-RoCE's shared sockets.
    guest.add("rxe0", "rxe1")
    result = guest.do(
        f"driver={guest.driver}"
        """
        appear() {
            i=0
            while [ $i -lt 50 ]; do
                rdma link delete rxe0
                rdma link add rxe0 type $driver netdev net_rxe0
                i=$((i + 1))
            done
        }
        appear &
        appearing=$!
        i=0
        while [ $i -lt 50 ]; do
            insmod /krdma_smoke.ko rdma_dev_name=
            rmmod krdma_smoke
            i=$((i + 1))
        done
        wait $appearing
    """
    )
    lines = said(result)
    assert lines.count("init, target rdma_dev_name=") == 50
    assert lines.count("exit") == 50
    # The device that stays was taken each time, the other one whenever it was there.
    successes = lines.count("resource smoke success")
    assert successes >= 50
    for line in RETURNED:
        assert lines.count(line) == successes
    assert not any("failed" in line for line in lines)
    assert not guest.objects()
    guest.load("")
    assert guest.objects() == one_each("rxe0", "rxe1")
    assert says(guest.unload(), [*EXIT, *RETURNED * 2])


def test_other_clients(guest: Guest) -> None:
    """Other clients of ib_core, loaded before or after, neither disturb nor are disturbed."""
    others = "ib_uverbs ib_umad rdma_cm rdma_ucm"
    guest.add("rxe0")
    guest.do(f"modprobe -a {others}")
    assert says(guest.load("rxe0"), init("rxe0") + taken("rxe0"))
    # iWARP has no management datagrams.
    umad = ["umad0"] if guest.driver == "rxe" else []
    assert guest.do("ls /dev/infiniband").output.split() == ["rdma_cm", *umad, "uverbs0"]
    assert guest.objects() == one_each("rxe0")
    guest.do("modprobe -r rdma_ucm ib_umad")
    assert not guest.do("lsmod").output.count("ib_umad")
    assert guest.objects() == one_each("rxe0")
    guest.do(f"modprobe -a {others}")
    assert says(guest.delete("rxe0"), RETURNED)
    assert says(guest.add("rxe0"), taken("rxe0"))
    assert says(guest.unload(), [*EXIT, *RETURNED])
    assert "rxe0" in guest.do("rdma dev show").output


@pytest.mark.rxe  # siw cannot be moved
def test_net_namespace(guest: Guest) -> None:
    """A device that is moved to another network namespace is given back and taken there."""
    guest.do("rdma system set netns exclusive")
    guest.add("rxe0")
    guest.load("rxe0")
    guest.do("mkdir -p /run/netns; ip netns add other")
    assert says(guest.do("rdma dev set rxe0 netns other"), [*RETURNED, *taken("rxe0")])
    assert says(guest.unload(), [*EXIT, *RETURNED])
