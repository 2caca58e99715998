# SPDX-License-Identifier: GPL-2.0
"""Counts the instructions of a kernel module that a guest executes, by a plugin of QEMU's.

The guest has one processor, and its time is the number of instructions it has executed, so that a
run is the same each time. What is counted is the module's own code; and where that is in Rust, also
the Rust code of the kernel and the helpers by which it reaches what is inline in C.
"""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import twin
from buildroot import BuildRoot
from kernel import Kernel
from module import PROJECT
from objects import Object
from report import Failure
from vm import Vm

DIRECTORY = PROJECT / "build" / "bench"

# Marks that the plugin writes down, as in bench/guest/mark.h.
USER = 1
OPEN = 2
CLOSE = 3
POST = 4

# The first list of messages that is marked by POST; the others are twice as many, and so on.
FIRST_POST = 64

# Prints where in the kernel there is Rust code, with its names, and the helpers of Rust.
_RUST_SYMBOLS = """
awk '$2 ~ /[tT]/ && NF == 3 {
    if (name) print start, $1, name
    name = ""
    if ($3 ~ /^(_R|rust_helper_|rust_fmt_argument)/) { start = $1; name = $3 }
}' /proc/kallsyms
"""


_PROVIDER = f"{twin.PROVIDER}.ko"


def _file(module: Object) -> str:
    """Return what a module is called in the guest: several are built of the same sources."""
    return f"{module.ko.parent.name}.ko"


@dataclass(frozen=True)
class Dump:
    """What was executed since the dump before it: how often, by address."""

    mark: int
    counts: Mapping[int, int]


@dataclass(frozen=True)
class Code:
    """A piece of code that is loaded."""

    start: int
    end: int
    name: str


def is_formatting(name: str) -> bool:
    """Tell by its mangled name whether a function of Rust makes text of something."""
    return "3fmt" in name or name == "rust_fmt_argument"


class Loaded:
    """A module that is loaded in a guest, by the addresses of its code."""

    def __init__(self, module: Object, sections: Mapping[str, int], rust: Iterable[Code]) -> None:
        """Join what the file says with where its sections are, and with the kernel's Rust code."""
        own = [
            Code(
                sections[it.section] + it.start, sections[it.section] + it.start + it.size, it.name
            )
            for it in module.functions
            if it.section in sections and it.size
        ]
        self._code = sorted([*own, *rust], key=lambda code: code.start)
        self._starts = [code.start for code in self._code]
        # Repeating instructions, with the ones behind them, which are executed once for them.
        self._repeating: dict[int, int] = {}
        for it, behind in zip(module.instructions, module.instructions[1:], strict=False):
            if it.repeats and it.section in sections:
                base = sections[it.section]
                self._repeating[base + it.offset] = base + behind.offset

    def _name(self, address: int) -> str:
        index = bisect.bisect_right(self._starts, address) - 1
        if index >= 0 and address < self._code[index].end:
            return self._code[index].name
        return ""

    def by_function(self, dumps: Iterable[Dump]) -> Counter[str]:
        """Return how many instructions were executed of each function, formatting aside."""
        total: Counter[str] = Counter()
        for dump in dumps:
            for address, count in dump.counts.items():
                name = self._name(address)
                if not name or is_formatting(name):
                    continue
                if address in self._repeating:
                    count = min(count, dump.counts.get(self._repeating[address], 0))
                total[name] += count
        return total


class CountingVm(Vm):
    """A guest in which the instructions of kernel modules are counted."""

    def __init__(
        self,
        root: BuildRoot,
        kernel: Kernel,
        modules: Iterable[Object],
        provider: Path,
        directory: Path = DIRECTORY,
    ) -> None:
        """Prepare a guest with modules and what they run on; the plugin uses the directory."""
        directory.mkdir(parents=True, exist_ok=True)
        self._ranges = directory / "ranges"
        self._out = directory / "dumps"
        self.rust: list[Code] = []
        plugin = twin.build_plugin(root)
        files = {_file(module): module.ko for module in modules}
        super().__init__(
            root,
            kernel,
            {**files, _PROVIDER: provider, "mark": twin.build_mark(root)},
            log=directory / "count.log",
            processors=1,
            options=[
                *("-icount", "shift=0"),
                *("-plugin", f"{plugin},ranges={self._ranges},out={self._out}"),
            ],
            directories=[directory, plugin.parent],
        )

    def start_counting(self) -> None:
        """Tell the plugin where the kernel's Rust code is; modules are always counted."""
        self.output("modprobe ib_core")
        lines = self.run(_RUST_SYMBOLS).output.splitlines()
        for line in lines:
            start, end, name = line.split()
            self.rust.append(Code(int(start, 16), int(end, 16), name))
        merged: list[list[int]] = []
        for code in sorted(self.rust, key=lambda code: code.start):
            if merged and code.start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], code.end)
            else:
                merged.append([code.start, code.end])
        self._ranges.write_text("".join(f"{start:x} {end:x}\n" for start, end in merged))
        self.run("/mark load")
        self.take_dumps()

    def take_dumps(self, marks: Sequence[int] | None = None) -> list[Dump]:
        """Return what was written down since the last time, which are those that are expected."""
        dumps: list[Dump] = []
        if self._out.exists():
            for part in re.split(r"^dump ", self._out.read_text(), flags=re.MULTILINE)[1:]:
                mark, *lines = part.splitlines()
                pairs = (line.split() for line in lines)
                dumps.append(Dump(int(mark), {int(a, 16): int(n) for a, n in pairs}))
            self._out.unlink()
        found = [dump.mark for dump in dumps]
        if marks is not None and found != list(marks):
            raise Failure(f"the guest marked {found}, and not {list(marks)}")
        return dumps

    def load(self, module: Object, *parameters: str) -> Loaded:
        """Load a module, which waits for devices."""
        self.output(f"insmod /{_file(module)} {' '.join(parameters)}")
        return self._loaded(module)

    def come_and_go(self, loaded: Loaded, devices: int = 1) -> tuple[Counter[str], Counter[str]]:
        """Have devices come and go; return what a module does when they come, and when they go."""
        self.take_dumps()
        self.output(
            f"/mark; insmod /{_PROVIDER} devices={devices}; /mark; rmmod {twin.PROVIDER}; /mark"
        )
        _, came, went = self.take_dumps([USER] * 3)
        return loaded.by_function([came]), loaded.by_function([went])

    def _loaded(self, module: Object) -> Loaded:
        """Return where a module is that has been loaded."""
        name = module.ko.stem
        script = f"cd /sys/module/{name}/sections && for s in .*text*; do echo $s $(cat $s); done"
        pairs = (line.split() for line in self.run(script).output.splitlines())
        # What was for its beginning only is gone, and other code may be there by now.
        sections = {name: int(at, 16) for name, at in pairs if not name.startswith(".init")}
        return Loaded(module, sections, self.rust)
