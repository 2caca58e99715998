# SPDX-License-Identifier: GPL-2.0
"""A guest as the scenarios see it: RDMA devices to make, the module to load."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from buildroot import BuildRoot
from kernel import Kernel
from smoke import EXIT, RETURNED, TAKEN, said, says
from vm import Result, Vm

__all__ = ["EXIT", "RETURNED", "Guest", "found", "init", "said", "says", "taken"]


def init(target: str) -> list[str]:
    """Return what the module says when it is loaded for a device."""
    return [f"init, target rdma_dev_name={re.escape(target)}"]


def found(*devices: str) -> list[str]:
    """Return what the module says of devices that it sees."""
    return [f"found RDMA device {re.escape(device)}" for device in devices]


def taken(device: str) -> list[str]:
    """Return what the module says when it takes a device that has just appeared."""
    return [*found(device), *matched(device)]


def matched(device: str) -> list[str]:
    """Return what the module says when it takes a device that it knew already."""
    return [f"matched RDMA device {re.escape(device)}", *TAKEN[2:]]


def until_logged(text: str) -> str:
    """Return the script that waits until the kernel has logged a line with `text`."""
    return f"until dmesg | grep -qF {shlex.quote(text)}; do usleep 20000; done"


class Guest(Vm):
    """A virtual machine with commands for RDMA devices and for the module."""

    def __init__(
        self, root: BuildRoot, kernel: Kernel, files: Mapping[str, Path], **options: Any
    ) -> None:
        """Prepare a guest; `driver` is what RDMA devices are made of, soft-RoCE by default."""
        self.driver: str = options.pop("driver", "rxe")
        super().__init__(root, kernel, files, **options)

    def __enter__(self) -> Self:
        """Boot, and load what the module needs."""
        super().__enter__()
        self.do("modprobe ib_core")
        return self

    def do(self, script: str) -> Result:
        """Run a script that must succeed."""
        result = self.run(f"set -e\n{script}")
        assert result.status == 0, result
        return result

    def add(self, *devices: str) -> Result:
        """Add RDMA devices, each on a network device of its own."""
        # The name of a network device has at most 15 characters.
        netdevs = [f"net_{re.sub(r'[^a-z0-9]', '', device)}"[:15] for device in devices]
        return self.do(
            f"modprobe {self.driver_module}\n"
            + "".join(
                f"ip link show {netdev} >/dev/null 2>&1 || ip link add {netdev} type dummy\n"
                f"ip link set {netdev} up\n"
                f"rdma link add {shlex.quote(device)} type {self.driver} netdev {netdev}\n"
                for device, netdev in zip(devices, netdevs, strict=True)
            )
        )

    @property
    def driver_module(self) -> str:
        """The name of the module that is the driver."""
        return {"rxe": "rdma_rxe"}.get(self.driver, self.driver)

    def delete(self, device: str) -> Result:
        """Delete an RDMA device."""
        return self.do(f"rdma link delete {shlex.quote(device)}")

    def rename(self, device: str, name: str) -> Result:
        """Rename an RDMA device, as udev does."""
        return self.do(f"rdma dev set {shlex.quote(device)} name {shlex.quote(name)}")

    def load(self, target: str | None) -> Result:
        """Load the module for a device, or for its default."""
        argument = "" if target is None else shlex.quote(f"rdma_dev_name={target}")
        return self.do(f"insmod /krdma_smoke.ko {argument}")

    def unload(self) -> Result:
        """Unload the module."""
        return self.do("rmmod krdma_smoke")

    def fail(
        self, function: str, error: int, times: int | None = None, after: int = 0, delay: int = 0
    ) -> None:
        """Make a kernel function fail with `error` from now on, or the next few times.

        The first calls, as many as `after`, go well. Each takes `delay` ms more. `{driver}` in its
        name is that of the driver.
        """
        function = function.format(driver=self.driver)
        limit = "" if times is None else f"times={times}"
        self.do(
            f"insmod /failpoint.ko function={function} error={error} after={after} delay={delay}"
            f" {limit}"
        )

    def count(self, function: str, delay: int = 0) -> None:
        """Count the calls of a kernel function from now on; each takes `delay` ms more."""
        self.fail(function, 0, times=0, delay=delay)

    def calls(self) -> int:
        """Return how many calls there were of the function that was to fail, or to be counted."""
        return int(self.do("cat /sys/module/failpoint/parameters/calls").output)

    def mend(self) -> None:
        """Make the function work again."""
        self.do("rmmod failpoint")

    def objects(self) -> Counter[str]:
        """Return how many objects the module has, as `rxe0 pd`, `rxe0 cq`, `rxe0 qp`."""
        counts: Counter[str] = Counter()
        # One program for all of them: emulated, each takes its time.
        output = self.do("printf 'resource show %s\\n' pd cq qp mr | rdma -b -").output
        for line in output.splitlines():
            if "comm [krdma_smoke]" in line:
                device, kind = re.findall(r"^\S+ ([^ /]+)\S* l?(pd|cq|qp|mr)n ", line)[0]
                counts[f"{device} {kind}"] += 1
        return counts

    def leaks(self) -> list[str]:
        """Return what kmemleak finds to be unreferenced, with where it was allocated."""
        # A scan leaves out what is younger than 5 s, and what has changed since the scan before; a
        # third finds what something still pointed to in the first. The allocator keeps pointers to
        # what it hands out until it is told to give back what it can.
        output = self.do(
            "sleep 6 &\n"
            "for scan in 1 2 3; do\n"
            # It may take long, and who waits wants to hear something.
            "    echo leaks: scan $scan >/dev/kmsg\n"
            "    test $scan -lt 3 || wait $!\n"
            "    for cache in /sys/kernel/slab/*/shrink; do echo 1 >$cache; done\n"
            "    echo scan >/sys/kernel/debug/kmemleak\n"
            "done\n"
            "cat /sys/kernel/debug/kmemleak"
        ).output
        return re.split(r"^(?=unreferenced object)", output, flags=re.MULTILINE)[1:]

    def wait_for(self, text: str) -> Result:
        """Wait until the kernel has logged a line with `text`, then run nothing."""
        return self.do(until_logged(text))


def one_each(*devices: str) -> Counter[str]:
    """Return the objects that the module has when it has taken these devices."""
    return Counter(f"{device} {kind}" for device in devices for kind in ("pd", "cq", "qp"))
