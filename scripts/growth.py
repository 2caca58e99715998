# SPDX-License-Identifier: GPL-2.0
"""Measures what the module takes as there are more devices, and more queue pairs of one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import twin
from buildroot import BuildRoot
from count import CountingVm
from figures import Figure, Part
from kernel import Kernel
from objects import Object
from report import Step, step

DEVICES = (1, 2, 4, 8, 16, 32, 64)
QUEUE_PAIRS = (1, 4, 16, 64, 256, 1024, 4096)

# What one of many may cost, of what the one alone does.
_GROWTH_MAX = 1.10

_NOTES = (
    "Instructions are counted as in the comparison with C, of the modules without their log lines,"
    " when all devices come (`rdma_dev_name=`) or one device does (`queue_pairs=`), and when they"
    " go; each figure is that, divided by how many there are. The bar is 1.1 times that of one.",
    "Memory is what the slab caches have more of when all are there, divided by how many there"
    " are: what `ib_core` and the provider keep of each, and the client, which keeps a pointer of a"
    " queue pair, and of a device its context.",
)

# What is in use of all slab caches, and how large the objects are.
_SLABS = "tail -n +3 /proc/slabinfo | awk '{ sum += $2 * $4 } END { print sum }'"

# Counts by what is many, how many they are, and what is counted.
_Counts = dict[tuple[str, int, str], float]


def _count(vm: CountingVm, it: Object, progress: Step) -> _Counts:
    """Count it all for one module, per object."""
    found: _Counts = {}

    def measure(kind: str, number: int, most: int, *parameters: str) -> None:
        devices = number if kind == "device" else 1
        loaded = vm.load(it, *parameters)
        taken, removed = vm.come_and_go(loaded, devices)
        found[kind, number, "taken"] = taken.total() / number
        found[kind, number, "removed"] = removed.total() / number
        # Of few objects it is less than what comes and goes meanwhile.
        if number == most:
            before = int(vm.do(_SLABS))
            vm.do(f"insmod /{twin.PROVIDER}.ko devices={devices}")
            found[kind, number, "memory"] = (int(vm.do(_SLABS)) - before) / number
            vm.do(f"rmmod {twin.PROVIDER}")
        vm.do(f"rmmod {it.ko.stem}")
        progress.beat(lambda: f"{it.ko.name}: {number} {kind}s")

    for number in DEVICES:
        measure("device", number, DEVICES[-1], "rdma_dev_name=")
    for number in QUEUE_PAIRS:
        parameters = ("rdma_dev_name=null0", f"queue_pairs={number}")
        measure("queue pair", number, QUEUE_PAIRS[-1], *parameters)
    return found


def _figures(rust: _Counts, c: _Counts) -> Iterable[Figure]:
    for kind, number, what in rust:
        is_memory = what == "memory"
        bar = None if is_memory or number == 1 else _GROWTH_MAX * rust[kind, 1, what]
        plural = "s" if number > 1 else ""
        yield Figure(
            f"{number:,} {kind}{plural}, {what}",
            "bytes each" if is_memory else "instructions each",
            round(rust[kind, number, what], 1),
            round(c[kind, number, what], 1),
            value_max=bar if bar is None else round(bar, 1),
        )


def measure(root: BuildRoot, chosen: Kernel) -> Part:
    """Build both modules, and count."""
    with step("Building the module and its twin in C, both without log lines, and the provider"):
        modules = [Object(root, built.ko) for built in twin.build_quiet(root, chosen)]
        provider = twin.build_provider(root, chosen).ko
    with (
        step("Counting instructions in QEMU as there are more") as progress,
        CountingVm(root, chosen, modules, provider) as vm,
    ):
        vm.start_counting()
        rust, c = (_count(vm, it, progress) for it in modules)
    series: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for name, counts in (("rust", rust), ("c", c)):
        for (kind, number, what), value in counts.items():
            series[name][f"{kind}, {what}"].append(value)
            if what == "taken":
                series[name][kind].append(number)
    return Part("As it grows", list(_figures(rust, c)), _NOTES, dict(series))
