# SPDX-License-Identifier: GPL-2.0
"""What a kernel module's object file says: its sections, functions, instructions and stack."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from buildroot import BuildRoot
from module import PROJECT
from report import Failure

# What a call takes of the stack for its return address.
_RETURN_ADDRESS = 8

# What gcc calls the part of a function that is seldom executed.
_COLD = ".cold"


def _signed(digits: str) -> int:
    """Return an operand of 64 bits, in hexadecimal, as the number that it stands for."""
    return (int(digits, 16) ^ (1 << 63)) - (1 << 63)


@dataclass(frozen=True)
class Section:
    """A section of an object file."""

    name: str
    size: int
    flags: str


@dataclass(frozen=True)
class Function:
    """A function, by where it is in its section."""

    name: str
    section: str
    start: int
    size: int


@dataclass(frozen=True)
class Instruction:
    """An instruction as objdump shows it, with the symbol that the linker puts into it."""

    section: str
    offset: int
    text: str
    symbol: str

    @property
    def repeats(self) -> bool:
        """Whether it is a string instruction that repeats itself."""
        return re.match(r"rep(n?[ez])? ", self.text) is not None


@dataclass
class _Frame:
    """What a function takes of the stack, and what it goes on to."""

    size: int = 0
    calls: set[str] = field(default_factory=set)
    jumps: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Chain:
    """The deepest chain of calls from a function."""

    bytes: int
    functions: tuple[str, ...]


class Object:
    """A kernel module, as it lies in its file."""

    def __init__(self, root: BuildRoot, ko: Path) -> None:
        """Read a module in the build root."""
        self._root = root
        self.ko = ko

    def _output(self, *command: str) -> str:
        return self._root.output([*command, self.ko], readable=[PROJECT])

    @functools.cached_property
    def sections(self) -> list[Section]:
        """All sections, by their number."""
        pattern = re.compile(
            r"^ *\[ *\d+\] (\S*) +\S+ +[0-9a-f]+ [0-9a-f]+ ([0-9a-f]+) [0-9a-f]+ +([A-Za-z]*) ",
            re.MULTILINE,
        )
        found = pattern.findall(self._output("readelf", "-SW"))
        return [Section("", 0, ""), *(Section(n, int(s, 16), f) for n, s, f in found if n)]

    @property
    def loadable(self) -> list[Section]:
        """What is in memory when the module is loaded, without the types (BTF)."""
        return [it for it in self.sections if "A" in it.flags and not it.name.startswith(".BTF")]

    @functools.cached_property
    def functions(self) -> list[Function]:
        """All functions."""
        pattern = re.compile(
            r"^ *\d+: ([0-9a-f]+) +(\d+|0x[0-9a-f]+) FUNC +\S+ +\S+ +(\d+) (\S+)", re.MULTILINE
        )
        return [
            Function(name, self.sections[int(section)].name, int(start, 16), int(size, 0))
            for start, size, section, name in pattern.findall(self._output("readelf", "-sW"))
            # The room in front of each, for the mitigations.
            if not name.startswith("__pfx_")
        ]

    @functools.cached_property
    def instructions(self) -> list[Instruction]:
        """All instructions, in their order."""
        found: list[Instruction] = []
        section = ""
        for line in self._output("objdump", "-drw", "--no-show-raw-insn").splitlines():
            if line.startswith("Disassembly of section "):
                section = line.removeprefix("Disassembly of section ").rstrip(":")
            elif match := re.match(r" *([0-9a-f]+):\t([^\t]+)(.*)", line):
                symbol = re.search(r"R_X86_64_(?:PLT32|PC32)\t([^\s]+)", match[3])
                text = " ".join(match[2].split())
                name = symbol[1] if symbol else ""
                found.append(Instruction(section, int(match[1], 16), text, name))
        return found

    def callbacks(self) -> set[str]:
        """Return the functions whose address is taken: those that the kernel may call."""
        names = {it.name for it in self.functions}
        starts = {(it.section, it.start): it.name for it in self.functions}
        found: set[str] = set()
        # Relocations of data, and of instructions that are no calls, with `section+offset`.
        pattern = re.compile(
            r"^[0-9a-f]+ +[0-9a-f]+ (R_X86_64_\w+) +[0-9a-f]* *(\S+)(?: ([+-] \w+))?"
        )
        section = ""
        for line in self._output("readelf", "-rW").splitlines():
            if head := re.match(r"Relocation section '\.rela(\S+)'", line):
                section = head[1]
            match = pattern.match(line)
            if not match or section.startswith(
                (".debug", ".orc", "__mcount", ".return", ".retpol")
            ):
                continue
            if section.startswith((".call_sites", ".ibt_endbr", ".static_call", "__jump", ".alt")):
                continue
            kind, symbol, addend = match.groups()
            if kind == "R_X86_64_PLT32":
                continue
            offset = int(addend.replace(" ", ""), 16) if addend else 0
            if kind == "R_X86_64_PC32":
                # Of an instruction: from its end, which is four bytes on.
                offset += 4
            name = symbol if symbol in names else starts.get((symbol, offset), "")
            if name and not name.endswith(_COLD):
                found.add(name)
        return found

    def _by_function(self) -> Iterator[tuple[Function, list[Instruction]]]:
        by_section: dict[str, list[Instruction]] = {}
        for instruction in self.instructions:
            by_section.setdefault(instruction.section, []).append(instruction)
        for function in self.functions:
            end = function.start + function.size
            yield (
                function,
                [
                    it
                    for it in by_section.get(function.section, [])
                    if function.start <= it.offset < end
                ],
            )

    @functools.cached_property
    def _frames(self) -> dict[str, _Frame]:
        """What each function takes of the stack, and what it calls of this module."""
        names = {it.name for it in self.functions}
        frames: dict[str, _Frame] = {}
        for function, instructions in self._by_function():
            # A part that is seldom executed lies elsewhere, and has the same frame.
            own = function.name.removesuffix(_COLD)
            frame = frames.setdefault(own, _Frame())
            size = pushed = most = 0
            for it in instructions:
                if re.match(r"push\b", it.text):
                    pushed += 8
                elif re.match(r"pop\b", it.text):
                    pushed -= 8
                elif found := re.match(r"(sub|add) \$0x([0-9a-f]+),%rsp", it.text):
                    size = max(size, _signed(found[2]) * (1 if found[1] == "sub" else -1))
                elif re.match(r"ret|jmp .*__x86_return_thunk", it.text):
                    # What follows was not reached by here.
                    pushed = most
                most = max(most, pushed)
                target = self._target(it, own, names)
                if target and it.text.startswith("call"):
                    frame.calls.add(target)
                elif target:
                    frame.jumps.add(target)
            frame.size = max(frame.size, size + most + _RETURN_ADDRESS)
        return frames

    @staticmethod
    def _target(it: Instruction, own: str, names: set[str]) -> str:
        """Return the function of this module that an instruction goes to, if it does."""
        if not re.match(r"(call|j\w+)\b", it.text):
            return ""
        found = re.search(r"<([^>+]+)(\+0x[0-9a-f]+)?>", it.text)
        symbol = re.sub(r"[+-]0x[0-9a-f]+$", "", it.symbol)
        name = symbol or (found[1] if found and not found[2] else "")
        target = name.removesuffix(_COLD)
        return target if name in names and target != own else ""

    def _deepest(self, name: str, above: tuple[str, ...]) -> Chain:
        if name in above:
            raise Failure(f"{name} of {self.ko} calls itself")
        frame = self._frames[name]
        best = Chain(frame.size, (name,))
        for own, targets in ((frame.size, frame.calls), (0, frame.jumps)):
            for target in targets:
                chain = self._deepest(target, (*above, name))
                if own + chain.bytes > best.bytes:
                    best = Chain(own + chain.bytes, (name, *chain.functions))
        return best

    def deepest_chain(self, roots: Iterable[str]) -> Chain:
        """Return the deepest chain of own functions from any of these."""
        return max((self._deepest(name, ()) for name in roots), key=lambda chain: chain.bytes)

    def largest_frame(self) -> Chain:
        """Return the function that takes most of the stack, by itself."""
        size, name = max((frame.size, name) for name, frame in self._frames.items())
        return Chain(size, (name,))
