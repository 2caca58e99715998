# SPDX-License-Identifier: GPL-2.0
"""Steps that fail: what was done before is undone, and the module stays harmless."""

from __future__ import annotations

import pytest
from guest import EXIT, RETURNED, Guest, found, init, matched, one_each, said, says, taken

ENOMEM, EBUSY, EIO = -12, -16, -5

KEPT = "the driver keeps an object that refers to this module; reboot"

# Each step: what it is called, which of the driver's functions does it, and what was done before.
STEPS = [
    ("ib_alloc_pd", "{driver}_alloc_pd", 0),
    ("ib_create_cq", "{driver}_create_cq", 1),
    ("ib_create_qp", "{driver}_create_qp", 2),
]


def failed(step: str, done: int, error: int, advice: str = ".*") -> list[str]:
    """Return what the module says when a step fails after `done` others."""
    return [
        "matched RDMA device rxe0",
        *(f"{name} success" for name, _, _ in STEPS[:done]),
        f"{step} failed, ret={error}",
        *RETURNED[len(RETURNED) - done :],
        f"resource smoke failed on rxe0, ret={error}: {advice}",
    ]


@pytest.mark.parametrize(("step", "function", "done"), STEPS, ids=[step for step, _, _ in STEPS])
@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ENOMEM, "out of memory; .*"),
        (EIO, "the driver's own messages .*"),
    ],
)
def test_creation_fails(
    guest: Guest, step: str, function: str, done: int, error: int, advice: str
) -> None:
    """A step that fails is reported with its errno, and the steps before it are undone."""
    guest.add("rxe0")
    guest.fail(function, error)
    result = guest.load("rxe0")
    expected = [*init("rxe0"), *found("rxe0"), *failed(step, done, error, advice)]
    assert says(result, expected), said(result)
    assert not guest.objects()

    # The device is not taken, and bearing the name again is a new chance.
    guest.rename("rxe0", "rxe1")
    guest.mend()
    result = guest.rename("rxe1", "rxe0")
    assert says(result, ["RDMA device renamed to rxe0", *matched("rxe0")]), said(result)
    assert guest.objects() == one_each("rxe0")
    assert says(guest.unload(), [*EXIT, *RETURNED])
    assert not guest.objects()

    # Nothing is left that would be in the way.
    assert says(guest.load("rxe0"), init("rxe0") + taken("rxe0"))
    assert says(guest.unload(), [*EXIT, *RETURNED])


def test_unload_after_failure(guest: Guest) -> None:
    """A module whose device failed unloads without a word about objects, and loads again."""
    guest.add("rxe0")
    guest.fail("{driver}_create_qp", ENOMEM)
    guest.load("rxe0")
    assert says(guest.unload(), EXIT)
    guest.mend()
    assert says(guest.load("rxe0"), init("rxe0") + taken("rxe0"))
    assert says(guest.unload(), [*EXIT, *RETURNED])


def test_one_device_fails_of_two(guest: Guest) -> None:
    """A device that fails does not take another one along."""
    guest.add("rxe0")
    guest.load("")
    guest.fail("{driver}_create_cq", ENOMEM)
    result = guest.add("rxe1")
    assert "ib_create_cq failed, ret=-12" in said(result)
    guest.mend()
    assert guest.objects() == one_each("rxe0")
    assert says(guest.add("rxe2"), taken("rxe2"))
    assert says(guest.unload(), [*EXIT, *RETURNED, *RETURNED])


def test_registration_fails(guest: Guest) -> None:
    """Where the client cannot be registered, insmod says so; loading works again later."""
    guest.add("rxe0")
    guest.fail("ib_register_client", ENOMEM)
    result = guest.run("insmod /krdma_smoke.ko rdma_dev_name=rxe0")
    assert result.status != 0
    assert "Cannot allocate memory" in result.output
    assert says(result, [*init("rxe0"), "ib_register_client failed, ret=-12"]), said(result)
    guest.mend()
    assert says(guest.load("rxe0"), init("rxe0") + taken("rxe0"))
    assert says(guest.unload(), [*EXIT, *RETURNED])


def test_queue_pair_cannot_be_destroyed(guest: Guest) -> None:
    """A queue pair that stays keeps its completion queue and its protection domain."""
    guest.add("rxe0")
    guest.load("rxe0")
    guest.fail("{driver}_destroy_qp", EBUSY)
    assert says(guest.unload(), [*EXIT, "ib_destroy_qp failed, ret=-16", KEPT])


MANY = "insmod /krdma_smoke.ko rdma_dev_name=rxe0 queue_pairs=64"


def test_many_queue_pairs(guest: Guest) -> None:
    """A device has as many queue pairs as are wanted, which go with it, and come back with it."""
    guest.add("rxe0")
    many = taken("rxe0")
    many[many.index(r"ib_create_qp success, qpn=\d+")] += " and 63 more"
    result = guest.do(MANY)
    assert says(result, [*init("rxe0"), *many]), said(result)
    there = {"rxe0 pd": 1, "rxe0 cq": 1, "rxe0 qp": 64}
    assert guest.objects() == there
    assert says(guest.delete("rxe0"), RETURNED)
    assert says(guest.add("rxe0"), many)
    assert guest.objects() == there
    assert says(guest.unload(), [*EXIT, *RETURNED])
    assert not guest.objects()


def test_one_of_many_queue_pairs_fails(guest: Guest) -> None:
    """It is said after how many, and those are undone."""
    guest.add("rxe0")
    guest.fail("{driver}_create_qp", ENOMEM, after=5)
    result = guest.do(MANY)
    expected = failed("ib_create_qp", 2, ENOMEM)
    place = expected.index("ib_create_qp failed, ret=-12")
    expected[place : place + 1] = [f"{expected[place]}, after 5 queue pairs", RETURNED[0]]
    assert says(result, [*init("rxe0"), *found("rxe0"), *expected]), said(result)
    assert not guest.objects()
    assert says(guest.unload(), EXIT)


def test_one_of_many_queue_pairs_cannot_be_destroyed(guest: Guest) -> None:
    """It keeps what they share, and the others go."""
    guest.add("rxe0")
    guest.do(MANY)
    guest.fail("{driver}_destroy_qp", EBUSY, times=1, after=5)
    assert says(guest.unload(), [*EXIT, "ib_destroy_qp failed, ret=-16", KEPT])
    assert guest.calls() == 64


@pytest.mark.rxe  # siw cannot be moved
def test_module_stays_for_what_refers_to_it(guest: Guest) -> None:
    """A module that an object still refers to cannot be unloaded."""
    guest.do("rdma system set netns exclusive")
    guest.add("rxe0")
    guest.load("rxe0")
    # The last client to come is the first to go.
    guest.fail("{driver}_destroy_qp", EBUSY, times=1)
    # This takes the device from all clients, but does not end it.
    guest.do("mkdir -p /run/netns; ip netns add other")
    result = guest.do("rdma dev set rxe0 netns other")
    assert said(result)[:2] == ["ib_destroy_qp failed, ret=-16", KEPT]
    guest.mend()
    refused = guest.run("rmmod krdma_smoke")
    assert refused.status != 0
    assert "is in use" in refused.output
    # What is listed as ours can still be listed.
    listed = guest.do("ip netns exec other rdma resource show qp").output
    assert listed.count("comm [krdma_smoke]") == 2


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("{driver}_destroy_cq", [RETURNED[0], "ib_destroy_cq failed, ret=-16", KEPT, RETURNED[2]]),
        ("{driver}_dealloc_pd", [*RETURNED[:2], "ib_dealloc_pd failed, ret=-16", KEPT]),
    ],
    ids=["cq", "pd"],
)
def test_other_object_cannot_be_destroyed(guest: Guest, function: str, expected: list[str]) -> None:
    """An object that cannot be destroyed is reported, and the others go."""
    guest.add("rxe0")
    guest.load("rxe0")
    guest.fail(function, EBUSY)
    assert says(guest.unload(), [*EXIT, *expected])
