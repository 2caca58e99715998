# SPDX-License-Identifier: GPL-2.0
"""How a kernel module lays out its structures, as the debugging information in it says (BTF)."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


class NoTypes(Exception):
    """The types of a module cannot be had; the message says why."""


class Types:
    """The types of a module, as its BTF has them."""

    def __init__(self, base: Sequence[dict[str, Any]], own: Sequence[dict[str, Any]]) -> None:
        self._by_id = {item["id"]: item for item in (*base, *own)}
        self._structures: dict[str, list[dict[str, Any]]] = {}
        # Those of the module itself, or else what the kernel has for everybody.
        for types in (own, base):
            mine: dict[str, list[dict[str, Any]]] = {}
            for item in types:
                if item["kind"] == "STRUCT":
                    mine.setdefault(item["name"], []).append(item)
            self._structures = {**mine, **self._structures}

    def _size(self, number: int) -> int | None:
        """Return the size of a type."""
        item = self._by_id[number]
        kind = item["kind"]
        if kind == "PTR":
            return 8
        if kind == "ARRAY":
            size = self._size(item["type_id"])
            return None if size is None else size * int(item["nr_elems"])
        if kind in ("TYPEDEF", "CONST", "VOLATILE", "RESTRICT", "TYPE_TAG"):
            return self._size(item["type_id"])
        size = item.get("size")
        return None if size is None else int(size)

    def _flat(self, item: dict[str, Any], start: int = 0) -> Iterator[tuple[str, int, int | None]]:
        """Give name, offset and size of each member, and of those inside one with no name or type.

        The latter are named by both, as `outer.inner`.
        """
        for member in item["members"]:
            offset = start + member["bits_offset"] // 8
            kind = self._by_id.get(member["type_id"], {})
            inner = self._flat(kind, offset) if kind.get("name") == "(anon)" else ()
            if member["name"] == "(anon)":
                yield from inner
                continue
            yield member["name"], offset, self._size(member["type_id"])
            for name, place, size in inner if "members" in kind else ():
                yield f"{member['name']}.{name}", place, size

    def layouts(self, structure: str) -> Iterator[dict[str, tuple[int, int | None]]]:
        """Give offset and size of each member, and of the whole as "", for each such structure."""
        for item in self._structures.get(structure, []):
            members = {name: (offset, size) for name, offset, size in self._flat(item)}
            yield {"": (0, item["size"]), **members}


def _dump(bpftool: str, *arguments: str | Path) -> list[dict[str, Any]]:
    command = [bpftool, "--json", *arguments]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True)
        types: list[dict[str, Any]] = json.loads(result.stdout)["types"]
    except FileNotFoundError:
        raise NoTypes(f"{bpftool} is not installed") from None
    except (OSError, subprocess.CalledProcessError, ValueError, KeyError, TypeError):
        raise NoTypes(f"{bpftool} cannot read those of {arguments[-1]}") from None
    return types


def types(module: Path, kernel: Path, release: str, bpftool: str) -> Types:
    """Return the types of a module for a kernel, whose build tree is `kernel`."""
    base = kernel / "vmlinux"
    if not base.exists() and release == platform.release():
        base = Path("/sys/kernel/btf/vmlinux")
    if not base.exists():
        raise NoTypes("those of the kernel are not there")
    return Types(
        _dump(bpftool, "btf", "dump", "file", base),
        _dump(bpftool, "--base-btf", base, "btf", "dump", "file", module),
    )
