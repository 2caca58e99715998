# SPDX-License-Identifier: GPL-2.0
"""Which device is meant: names of every kind, and devices that are renamed."""

from __future__ import annotations

import re

import pytest
from guest import EXIT, RETURNED, Guest, found, init, matched, one_each, said, says, taken


def notice(target: str, *devices: str) -> str:
    """Return the notice that nothing matched, as a pattern."""
    there = ", ".join(devices) or "none"
    return re.escape(f"no RDMA device is named {target}, waiting for it (there are: {there})")


def renamed(name: str) -> list[str]:
    """Return what the module says of a device that was renamed."""
    return [f"RDMA device renamed to {re.escape(name)}"]


@pytest.mark.rxe  # as the driver has no say in it
@pytest.mark.parametrize(
    ("target", "shown"),
    [
        ("mlx5_0", "mlx5_0"),
        ("rxe", "rxe"),
        ("rxe00", "rxe00"),
        ("RXE0", "RXE0"),
        (" rxe0", " rxe0"),
        ("rxe0 ", "rxe0 "),
        ("x" * 63, "x" * 63),
        ("x" * 64, "x" * 64),
        ("x" * 200, "x" * 64 + "..."),
        ("x" * 1024, "x" * 64 + "..."),
        ("%s%n%p", "%s%n%p"),
        ("a b  c", "a b  c"),
        ("a'b`c$d;e\\", "a'b`c$d;e\\"),
        ("x\nkrdma_smoke: resource smoke success", r"x\nkrdma_smoke: resource smoke success"),
        ("x\r\t\x1b[31m", r"x\r\t\x1b[31m"),
        ("ünïcödé", r"\xc3\xbcn\xc3\xafc\xc3\xb6d\xc3\xa9"),
    ],
    ids=lambda value: re.sub(r"\W", "_", value)[:16],
)
def test_other_name(guest: Guest, target: str, shown: str) -> None:
    """Nothing but the whole name matches, and no name can forge a line of the log."""
    guest.add("rxe0")
    result = guest.load(f'"{target}"')
    assert says(result, [*init(shown), *found("rxe0"), notice(shown, "rxe0")]), said(result)
    assert not guest.objects()
    value = guest.do("cat /sys/module/krdma_smoke/parameters/rdma_dev_name").output
    assert value == f"{target}\n"
    assert says(guest.unload(), EXIT)


def test_too_long_for_the_kernel(guest: Guest) -> None:
    """The kernel itself refuses a value of more than 1024 bytes; nothing is cut to match."""
    guest.add("x" * 63)
    for length in (1025, 4000):
        result = guest.run(f"insmod /krdma_smoke.ko rdma_dev_name={'x' * length}")
        assert result.status != 0
        assert "rdma_dev_name: string parameter too long" in result.log
        assert not any(line.startswith("init") for line in said(result))
    assert says(guest.load("x" * 63), init("x" * 63) + taken("x" * 63))
    assert says(guest.unload(), [*EXIT, *RETURNED])


def test_default(guest: Guest) -> None:
    """Without a parameter the device is mlx5_0."""
    guest.add("rxe0", "mlx5_0")
    assert says(guest.load(None), init("mlx5_0") + found("rxe0") + taken("mlx5_0"))
    assert guest.objects() == one_each("mlx5_0")
    assert says(guest.unload(), [*EXIT, *RETURNED])


def test_last_value_wins(guest: Guest) -> None:
    """A parameter that is given twice has the second value, as in every module."""
    guest.add("rxe0", "rxe1")
    result = guest.do("insmod /krdma_smoke.ko rdma_dev_name=rxe0 rdma_dev_name=rxe1")
    assert says(result, init("rxe1") + found("rxe0") + taken("rxe1"))
    assert says(guest.unload(), [*EXIT, *RETURNED])


def test_every_device(guest: Guest) -> None:
    """An empty name means every device, those that come later included."""
    assert says(guest.load(""), [*init(""), "no RDMA device yet, waiting for one"])
    for device in ("rxe0", "rxe1"):
        assert says(guest.add(device), taken(device))
    assert says(guest.unload(), [*EXIT, *RETURNED, *RETURNED])
    guest.add(*(f"rxe{i}" for i in range(2, 8)))
    result = guest.load("")
    assert says(result, init("") + [line for i in range(8) for line in taken(f"rxe{i}")])
    assert guest.objects() == one_each(*(f"rxe{i}" for i in range(8)))
    assert says(guest.unload(), [*EXIT, *RETURNED * 8])
    assert not guest.objects()


@pytest.mark.parametrize("count", [2, 8])
def test_one_of_several(guest: Guest, count: int) -> None:
    """Among several devices the one with the name is taken."""
    devices = [f"rxe{i}" for i in range(count)]
    guest.add(*devices)
    result = guest.load("rxe1")
    others = found(*devices[2:])
    assert says(result, init("rxe1") + found("rxe0") + taken("rxe1") + others)
    assert guest.objects() == one_each("rxe1")
    assert says(guest.unload(), [*EXIT, *RETURNED])


def test_notice_names_the_first_devices(guest: Guest) -> None:
    """The notice that nothing matched names eight devices and counts the rest."""
    devices = [f"rxe{i}" for i in range(10)]
    guest.add(*devices)
    expected = notice("mlx5_0", *devices[:8]).replace(r"\)", r" and 2 more\)")
    assert says(guest.load("mlx5_0"), [*init("mlx5_0"), *found(*devices), expected])
    assert says(guest.unload(), EXIT)


def test_no_notice_for_later_devices(guest: Guest) -> None:
    """The notice comes once, not for each device that is not the one."""
    assert says(guest.load("mlx5_0"), [*init("mlx5_0"), notice("mlx5_0")])
    assert says(guest.add("rxe0"), found("rxe0"))
    assert says(guest.delete("rxe0"), [])
    assert says(guest.unload(), EXIT)


def test_device_name_cannot_forge_a_line(guest: Guest) -> None:
    """A device's name is shown escaped as well."""
    name = "x\nkrdma_smoke: resource smoke success"
    shown = name.replace("\n", "\\n")
    guest.load("mlx5_0")
    guest.add("rxe0")
    assert says(guest.rename("rxe0", name), renamed(shown))
    assert says(guest.unload(), EXIT)
    assert says(guest.load("mlx5_0"), [*init("mlx5_0"), *found(shown), notice("mlx5_0", shown)])
    assert says(guest.unload(), EXIT)
    assert says(guest.load(f'"{name}"'), init(shown) + taken(shown))
    assert says(guest.unload(), [*EXIT, *RETURNED])


def test_renamed_to_the_wanted_name(guest: Guest) -> None:
    """A device that comes to bear the name is taken then, and kept."""
    guest.add("rxe0")
    guest.load("mlx5_0")
    assert says(guest.rename("rxe0", "rxe1"), renamed("rxe1"))
    assert not guest.objects()
    assert says(guest.rename("rxe1", "mlx5_0"), renamed("mlx5_0") + matched("mlx5_0"))
    assert guest.objects() == one_each("mlx5_0")
    assert says(guest.unload(), [*EXIT, *RETURNED])


def test_renamed_away_and_back(guest: Guest) -> None:
    """A device that was taken stays taken under any name, and is not taken twice."""
    guest.add("rxe0")
    guest.load("rxe0")
    assert says(guest.rename("rxe0", "rxe9"), renamed("rxe9"))
    assert guest.objects() == one_each("rxe9")
    assert says(guest.rename("rxe9", "rxe0"), renamed("rxe0"))
    assert guest.objects() == one_each("rxe0")
    guest.rename("rxe0", "rxe9")
    assert says(guest.delete("rxe9"), RETURNED)
    assert says(guest.unload(), EXIT)


def test_swapped_names(guest: Guest) -> None:
    """When two devices swap names, each is taken once: the second bears the name now."""
    guest.add("rxe0", "rxe1")
    guest.load("rxe0")
    assert says(guest.rename("rxe0", "rxe2"), renamed("rxe2"))
    assert says(guest.rename("rxe1", "rxe0"), renamed("rxe0") + matched("rxe0"))
    assert says(guest.rename("rxe2", "rxe1"), renamed("rxe1"))
    assert guest.objects() == one_each("rxe0", "rxe1")
    guest.rename("rxe0", "rxe3")
    assert says(guest.rename("rxe1", "rxe0"), renamed("rxe0"))
    assert guest.objects() == one_each("rxe0", "rxe3")
    assert says(guest.unload(), [*EXIT, *RETURNED, *RETURNED])
    assert not guest.objects()


@pytest.mark.rxe  # as the driver has no say in it
@pytest.mark.parametrize("name", ["a\tb", "\x7f", "x" * 63, "ü", "%s", "a b"])
def test_odd_device(guest: Guest, name: str) -> None:
    """A device may have an odd name and is a device all the same."""
    guest.add("rxe0")
    guest.rename("rxe0", name)
    result = guest.do("insmod /krdma_smoke.ko rdma_dev_name=")
    assert said(result)[-1] == "resource smoke success"
    assert says(guest.unload(), [*EXIT, *RETURNED])
