# SPDX-License-Identifier: GPL-2.0
"""Measures what the module takes as there are more devices, and more queue pairs of one."""

from __future__ import annotations

from collections import defaultdict

import twin
from buildroot import BuildRoot
from count import CountingVm
from figures import Figure, Part
from kernel import Kernel
from objects import Object
from report import Step, step

DEVICES = (1, 2, 4, 8, 16, 32, 64)
QUEUE_PAIRS = (1, 4, 16, 64, 256, 1024, 4096)

# What each one more may cost, of what it costs where there are fewest.
_GROWTH_MAX = 1.10

_NOTES = (
    "Instructions are counted as in the comparison with C, of the modules without their log lines,"
    " when all devices come (`rdma_dev_name=`) or one device does (`queue_pairs=`), and when they"
    " go. The first row of each kind is that of one; from then on it is what each one more takes:"
    " what all take, less what one does, divided by how many more there are. The bar is 1.1 times"
    " that where there are fewest.",
    "Memory is what the slab caches have more of when all are there, divided by how many there"
    " are: what `ib_core`, the provider and the client keep of each. (The client's pointers to"
    " 4,096 queue pairs, 8 bytes each, are not in it: such a list is not of the slab.)",
)

# What is in use of all slab caches, and how large the objects are. What is freed after a grace
# period of RCU has been so by then.
_SLABS = "sleep 2; tail -n +3 /proc/slabinfo | awk '{ sum += $2 * $4 } END { print sum }'"

# What all take, by what is many, how many they are, and what is counted.
Counts = dict[tuple[str, int, str], int]


def _count(vm: CountingVm, it: Object, progress: Step) -> Counts:
    """Count it all for one module."""
    found: Counts = {}

    def measure(kind: str, number: int, most: int, *parameters: str) -> None:
        devices = number if kind == "device" else 1
        loaded = vm.load(it, *parameters)
        taken, removed = vm.come_and_go(loaded, devices)
        found[kind, number, "taken"] = taken.total()
        found[kind, number, "removed"] = removed.total()
        if number == most:
            # What is made only once has been made by now.
            before = int(vm.output(_SLABS))
            vm.output(f"insmod /{twin.PROVIDER}.ko devices={devices}")
            found[kind, number, "memory"] = int(vm.output(_SLABS)) - before
            vm.output(f"rmmod {twin.PROVIDER}")
        vm.output(f"rmmod {it.ko.stem}")
        progress.beat(lambda: f"{it.ko.name}: {number} {kind}s")

    for number in DEVICES:
        measure("device", number, DEVICES[-1], "rdma_dev_name=")
    for number in QUEUE_PAIRS:
        parameters = ("rdma_dev_name=null0", f"queue_pairs={number}")
        measure("queue pair", number, QUEUE_PAIRS[-1], *parameters)
    return found


def each(counts: Counts, kind: str, number: int, what: str) -> float:
    """Return what each of them takes, or each one more than the first."""
    total = counts[kind, number, what]
    if number == 1 or what == "memory":
        return total / number
    return (total - counts[kind, 1, what]) / (number - 1)


def figures(rust: Counts, c: Counts) -> list[Figure]:
    """Return what is compared, in the order in which it was counted."""
    found = []
    fewest: dict[tuple[str, str], float] = {}
    for kind, number, what in rust:
        value = each(rust, kind, number, what)
        bar = None
        if number > 1 and what != "memory":
            bar = round(_GROWTH_MAX * fewest.setdefault((kind, what), value), 1)
        name = f"{kind}, {what}" if number == 1 else f"each of {number:,} {kind}s, {what}"
        found.append(
            Figure(
                name,
                "bytes" if what == "memory" else "instructions",
                round(value, 1),
                round(each(c, kind, number, what), 1),
                value_max=bar,
            )
        )
    return found


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
    for name, counts in (("Rust", rust), ("C", c)):
        for kind, number, what in counts:
            if number > 1 and what != "memory":
                series[name][f"{kind}, {what}"].append(each(counts, kind, number, what))
                if what == "taken":
                    series[name][kind].append(number)
    return Part("As it grows", figures(rust, c), _NOTES, dict(series))
