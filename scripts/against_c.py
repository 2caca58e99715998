# SPDX-License-Identifier: GPL-2.0
"""Compares the module with its twin in C: instructions, size and stack."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence

import module
import twin
from buildroot import BuildRoot
from count import CLOSE, FIRST_POST, OPEN, POST, CountingVm
from figures import Figure, Part
from kernel import Kernel
from objects import Chain, Object
from report import Failure, Step, step

# How many lists of messages are posted in each test, and how many of them are counted: from one of
# them to another, so that nothing else is counted.
_POSTS = 1024
_COUNTED = _POSTS - FIRST_POST

_DEPTHS = (1, 16)

# What goes through each window, in the order of the tests; the others are not compared.
_TESTS = (
    *("send_recv", "send_with_imm", "rdma_write", "rdma_write_with_imm", "rdma_read"),
    *("compare_swap", "fetch_add"),
)
_MESSAGES = {"SEND": "send_recv", "WRITE": "rdma_write", "READ": "rdma_read"}

# How often a device comes and goes: each time the same has to be counted.
_ROUNDS = 3

_STACK_MAX = 1024
_CALLBACKS = "deepest stack of what `ib_core` calls"

# The functions that ib_core calls, in Rust and in C.
_IB_CORE = re.compile(
    r"_callback|5Entry\d+done|krdma_smoke_(add|remove|rename)$|entry_done$|smoke_(completion|\w+_event)$"
)

_NOTES = (
    "Instructions are those of the client's own code, and for Rust also those of the kernel's Rust"
    " code and of the helpers (`rust_helper_*`) by which it reaches what is inline in C. Driver,"
    " `ib_core` and the kernel's C functions (`memset`, `kmalloc`, `_printk`) count on neither"
    " side. A string instruction with a REP prefix counts as one.",
    "They are counted one by one, by a plugin of QEMU's emulation, under `-icount` with one"
    " processor, on a provider that completes at once (`bench/provider`), so nothing is waited"
    " for.",
    "A device is taken from the call of `add` to its return, and given back from the call of"
    " `remove` to its return. In the rows with a bar both modules are built without their log"
    " lines, so that nothing is logged in the window. In the rows `with log lines` they are as they"
    " are shipped, and what makes text of values, within `_printk`, is not counted; what prepares"
    " the call is.",
    "A message is of 8 bytes: filling it in, posting it, its completion, and checking it, by"
    " `poll=direct`. Counted is from the posting of one batch of `depth` messages to that of"
    f" another, {_COUNTED} batches later. SEND has its receive, and WRITE the read behind each"
    " batch.",
    "The loadable size is that of all sections that are allocated, without types (BTF).",
    "The stack is that of the deepest chain of the module's own functions, by the disassembly:"
    " pushes, what is subtracted from the stack pointer, and return addresses. What the kernel's"
    " functions in between take, and those that it calls, is not in it. The bar is for what runs on"
    " somebody else's stack. What is deepest of all is traffic's work item, which begins on the"
    " empty stack of a kernel thread; the twin's takes more than the bar, too.",
)


class _Windows:
    """What was counted of one module."""

    def __init__(self) -> None:
        self.taken: list[Counter[str]] = []
        self.removed: list[Counter[str]] = []
        self.messages: dict[tuple[str, int], Counter[str]] = {}


def _devices(vm: CountingVm, it: Object) -> tuple[list[Counter[str]], list[Counter[str]]]:
    """Count what a module does when a device comes, and when it goes."""
    loaded = vm.load(it, "rdma_dev_name=null0")
    rounds = [vm.come_and_go(loaded) for _ in range(_ROUNDS)]
    vm.output(f"rmmod {it.ko.stem}")
    return [taken for taken, _ in rounds], [removed for _, removed in rounds]


def _traffic(vm: CountingVm, it: Object, depth: int) -> dict[str, Counter[str]]:
    """Count what a module does for the messages of each test."""
    parameters = ("rdma_dev_name=null0", f"traffic={_POSTS * depth}", "sizes=8", f"depth={depth}")
    loaded = vm.load(it, *parameters)
    vm.take_dumps()
    vm.output(
        f"dmesg -c >/dev/null; insmod /{twin.PROVIDER}.ko\n"
        "until dmesg | grep -q 'traffic smoke '; do usleep 20000; done\n"
        "dmesg | grep -q 'traffic smoke success'",
    )
    posts = (_POSTS // FIRST_POST).bit_length()
    marks = [OPEN, *[POST] * posts, CLOSE]
    dumps = vm.take_dumps(marks * len(_TESTS))
    vm.output(f"rmmod {twin.PROVIDER}; rmmod {it.ko.stem}")
    found = {}
    for index, test in enumerate(_TESTS):
        start = index * len(marks)
        # Each has what was before its mark, so the first is not of messages alone.
        found[test] = loaded.by_function(dumps[start + 2 : start + 1 + posts])
    return found


def _count(vm: CountingVm, shipped: Object, quiet: Object, progress: Step) -> dict[str, _Windows]:
    found: dict[str, _Windows] = {}
    for name, it in (("quiet", quiet), ("shipped", shipped)):
        windows = found[name] = _Windows()
        windows.taken, windows.removed = _devices(vm, it)
        progress.beat(lambda it=it: f"{it.ko.name}: devices")  # type: ignore[misc]
    for depth in _DEPTHS:
        for test, counter in _traffic(vm, shipped, depth).items():
            found["shipped"].messages[test, depth] = counter
        progress.beat(lambda depth=depth: f"{shipped.ko.name}: depth {depth}")  # type: ignore[misc]
    return found


def _same(counters: Sequence[Counter[str]]) -> int:
    """Return what was counted, each time the same."""
    totals = [counter.total() for counter in counters]
    if len(set(totals)) != 1:
        raise Failure(f"what was counted differs each time: {totals}")
    return totals[0]


def _per_message(counter: Counter[str], depth: int) -> float:
    return round(counter.total() / (_COUNTED * depth), 2)


def _sizes(it: Object) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for section in it.loadable:
        sizes[section.name] += section.size
    return dict(sizes.most_common())


def _stacks(it: Object) -> dict[str, Chain]:
    """Return the deepest chains of calls, by what is deepest in which sense."""
    called = it.callbacks()
    return {
        _CALLBACKS: it.deepest_chain(filter(_IB_CORE.search, called)),
        "deepest stack of what anybody calls": it.deepest_chain(called),
        "largest frame": it.largest_frame(),
    }


def _functions(counter: Counter[str], divisor: int = 1) -> dict[str, float]:
    return {name: round(n / divisor, 2) for name, n in counter.most_common() if n}


def compare(root: BuildRoot, chosen: Kernel) -> Part:
    """Build both modules, count, and compare."""
    with step("Building the module, its twin in C, both without log lines, and the provider"):
        rust = module.build(root, chosen).ko
        c = twin.build(root, chosen).ko
        quiet_rust, quiet_c = (built.ko for built in twin.build_quiet(root, chosen))
        provider = twin.build_provider(root, chosen).ko
    modules = {
        "rust": (Object(root, rust), Object(root, quiet_rust)),
        "c": (Object(root, c), Object(root, quiet_c)),
    }
    counted: dict[str, dict[str, _Windows]] = {}
    with (
        step("Counting instructions in QEMU") as progress,
        CountingVm(root, chosen, [*itertools.chain(*modules.values())], provider) as vm,
    ):
        vm.start_counting()
        for name, (shipped, quiet) in modules.items():
            counted[name] = _count(vm, shipped, quiet, progress)
    with step("Reading the objects"):
        chains = {name: _stacks(shipped) for name, (shipped, _) in modules.items()}
        sizes = {name: _sizes(shipped) for name, (shipped, _) in modules.items()}
    return _part(counted, sizes, chains)


def _part(
    counted: dict[str, dict[str, _Windows]],
    sizes: dict[str, dict[str, int]],
    chains: dict[str, dict[str, Chain]],
) -> Part:
    rust, c = counted["rust"], counted["c"]
    figures = []
    for build, suffix, bar in (("quiet", "", 1.0), ("shipped", " with log lines", None)):
        for what in ("taken", "removed"):
            figures.append(
                Figure(
                    f"a device {what}{suffix}",
                    "instructions",
                    _same(getattr(rust[build], what)),
                    _same(getattr(c[build], what)),
                    bar,
                )
            )
    figures += [
        Figure(
            f"{kind} at depth {depth}",
            "instructions per message",
            _per_message(rust["shipped"].messages[test, depth], depth),
            _per_message(c["shipped"].messages[test, depth], depth),
            1.0,
        )
        for depth in _DEPTHS
        for kind, test in _MESSAGES.items()
    ]
    total = {name: sum(it.values()) for name, it in sizes.items()}
    figures += [
        Figure("loadable size", "bytes", total["rust"], total["c"], 1.25),
        *(
            Figure(
                what,
                "bytes",
                chain.bytes,
                chains["c"][what].bytes,
                value_max=_STACK_MAX if what == _CALLBACKS else None,
            )
            for what, chain in chains["rust"].items()
        ),
    ]
    details = {
        name: {
            "sections": sizes[name],
            "stack": {what: list(chain.functions) for what, chain in chains[name].items()},
            "functions": {
                **{
                    f"{what}, {build}": _functions(getattr(windows[build], what)[-1])
                    for build in ("quiet", "shipped")
                    for what in ("taken", "removed")
                },
                **{
                    f"{test}, depth {depth}": _functions(counter, _COUNTED * depth)
                    for (test, depth), counter in windows["shipped"].messages.items()
                },
            },
        }
        for name, windows in counted.items()
    }
    return Part("Against C", figures, _NOTES, details)
