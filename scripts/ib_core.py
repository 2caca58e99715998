# SPDX-License-Identifier: GPL-2.0
"""Which ib_core the module is built for: finds it, and proves that all that is used belongs to it.

MLNX_OFED and DOCA-OFED replace the kernel's own ib_core by one with other structures. The headers
of the one and the other lie side by side, and nothing in the kernel notices a module that was built
with the wrong ones; so the build has to.

    ib_core.py find KVER KDIR     print the OFED tree to build with, or nothing for the kernel's own
    ib_core.py record KVER ...    check a build, and print the Rust source that tells what it is for

`find` reads OFED_DIR, IB_CORE and ARCH of the environment; `record` is run by Kbuild (see there).
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import btf

_SOURCES = Path("/usr/src")

# What a tree needs so that something can be built with it, and what is wrong without it.
_TREE = {
    "include/rdma/ib_verbs.h": "has no headers of ib_core",
    "include/linux/compat-2.6.h": "has no compatibility headers",
    "compat/config.h": "is not configured for a kernel",
    "Module.symvers": "has no symbols of ib_core",
}

# What Kbuild would take for something else in the name of a file.
_SPECIAL = re.compile(r"[\s'\"$#:%\\;&()*?<>|`]")

# Where a kernel's own ib_core is.
_IN_TREE = "/kernel/drivers/infiniband/core/"

# A function that is exported by ib_core and by nobody else.
_EXPORT = "ib_register_client"

_HEADER = "rdma/ib_verbs.h"


class Mismatch(Exception):
    """Something does not belong together; the message says what, and what to do."""


def _output(*command: str | Path) -> str | None:
    """Return what a command prints, or `None` if it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


def would_be_loaded(release: str) -> Path | None:
    """Return the file of the ib_core that modprobe takes for a kernel, if there is one."""
    # Often below /sbin, which a user's PATH lacks.
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    name = (_output("modinfo", "-k", release, "-n", "ib_core") or "").strip()
    return Path(name) if name.startswith("/") else None


def _machine() -> str:
    """Return what `uname -m` prints on the machine that is built for."""
    names = {"arm64": "aarch64", "x86": "x86_64"}
    arch = os.environ.get("ARCH") or platform.machine()
    return names.get(arch, arch)


def _check_tree(tree: Path, release: str) -> None:
    """Make sure that an OFED tree is complete, and of a kernel."""
    if _SPECIAL.search(f"{tree}"):
        raise Mismatch(
            f"Kbuild cannot use '{tree}', whose name has a space or a special character; move it"
        )
    if not tree.is_dir():
        raise Mismatch(f"OFED_DIR={tree} is no directory; leave it out, or name OFED's tree")
    for name, fault in _TREE.items():
        file = tree / name
        if not file.is_file() or file.stat().st_size == 0:
            what = "is empty" if file.is_file() else "is missing"
            raise Mismatch(
                f"the OFED tree {tree} {fault} ({name} {what}); reinstall OFED's kernel modules"
                f" for {release}, or set OFED_DIR to the tree of that kernel"
            )
    configured = tree / "configure.mk.kernel"
    if configured.is_file():
        found = re.search(r"^KVERSION\s*:?=\s*(\S+)", configured.read_text(), re.MULTILINE)
        kernel = found[1] if found else None
    else:
        # The last part of the path, if it looks like a release at all.
        kernel = tree.name if re.match(r"\d+\.\d+", tree.name) else None
    if kernel not in (None, release):
        raise Mismatch(
            f"the OFED tree {tree} is for Linux {kernel}, not for {release}; install OFED's kernel"
            f" modules for {release}, or set OFED_DIR to their tree"
        )
    if _EXPORT not in _exports(tree / "Module.symvers"):
        raise Mismatch(
            f"{tree}/Module.symvers has no symbols of ib_core ({_EXPORT}); reinstall OFED's kernel"
            " modules"
        )


def find(release: str) -> Path | None:
    """Return the OFED tree to build with for a kernel; `None` stands for the kernel's own ib_core.

    Never falls back from one to the other: a tree that is not whole is an error.
    """
    wanted = os.environ.get("OFED_DIR", "").strip()
    if wanted == "none":
        return None
    module = os.environ.get("IB_CORE")
    loaded = Path(module) if module else would_be_loaded(release)
    own = loaded is not None and _IN_TREE in f"{loaded}"
    if wanted:
        tree = Path(wanted).resolve()
        _check_tree(tree, release)
        return tree
    places = [
        _SOURCES / "ofa_kernel" / _machine() / release,
        _SOURCES / "ofa_kernel-dkms" / _machine() / release,
        _SOURCES / "ofa_kernel" / release,
        # A link that is turned to whichever kernel OFED was installed for last.
        _SOURCES / "ofa_kernel/default",
    ]
    for place in places:
        if not place.is_symlink() and not place.exists():
            continue
        if not place.exists():
            raise Mismatch(f"{place} leads to {place.readlink()}, which is missing; reinstall OFED")
        tree = place.resolve()
        try:
            _check_tree(tree, release)
        except Mismatch as mismatch:
            # Whoever has OFED for other kernels only.
            if own and place.name == "default":
                continue
            link = f" (found as {place})" if tree != place else ""
            raise Mismatch(f"{mismatch}{link}; OFED_DIR=none takes the kernel's headers") from None
        if own:
            raise Mismatch(
                f"OFED's tree {tree} is there, but Linux {release} would load its own ib_core"
                f" ({loaded}); OFED_DIR=none builds for that one, OFED_DIR={tree} for OFED's"
            )
        return tree
    if loaded is not None and not own:
        raise Mismatch(
            f"the ib_core of {release} is {loaded}, not the kernel's own, and there is no OFED tree"
            f" to build with ({places[0]}); install OFED's development package for this kernel, or"
            " set OFED_DIR"
        )
    return None


def _exports(symvers: Path, suffix: str = "/ib_core") -> set[str]:
    """Return what a `Module.symvers` says that ib_core exports; other modules by their suffix."""
    lines = (line.split("\t") for line in symvers.read_text().splitlines())
    return {fields[1] for fields in lines if len(fields) > 3 and f"/{fields[2]}".endswith(suffix)}


@dataclasses.dataclass(frozen=True)
class Build:
    """What Kbuild has made so far, and with what."""

    release: str
    layout: Path
    """`layout.s`, what the C compiler says of the structures."""
    outputs: Sequence[Path]
    """The files whose dependencies Kbuild knows."""
    kernel: Path
    """The kernel's build tree, with `Module.symvers` and perhaps `vmlinux`."""
    source: Path
    """The kernel's source tree, or the common part of its headers."""
    ofed: Path | None
    symvers: Sequence[Path]
    """KBUILD_EXTRA_SYMBOLS."""
    module: Path | None
    """The ib_core that the module is to run with."""
    readelf: str
    nm: str
    objcopy: str
    bpftool: str


def _header(output: Path) -> Path:
    """Return which `rdma/ib_verbs.h` was read for an output, by Kbuild's note of it."""
    command = (output.parent / f".{output.name}.cmd").read_text()
    found: set[str] = {name for name in re.findall(r"\S+", command) if name.endswith(f"/{_HEADER}")}
    if len(found) != 1:
        raise Mismatch(f"{output.name} was made of {len(found)} files {_HEADER}: {sorted(found)}")
    return (output.parent / found.pop()).resolve()


def _check_headers(build: Build) -> Path:
    """Make sure that the right headers were read, and no others; return their directory."""
    headers = {_header(output) for output in build.outputs}
    if len(headers) != 1:
        raise Mismatch(f"more than one {_HEADER} was read: {sorted(map(str, headers))}")
    include = headers.pop().parent.parent
    expected = ((build.ofed or build.source) / "include").resolve()
    if include != expected:
        raise Mismatch(
            f"the headers of ib_core were read from {include}, not from {expected};"
            " set OFED_DIR to the tree that is meant, and leave Kbuild's own flags alone"
        )
    return include


def _check_symbols(build: Build, include: Path) -> Path:
    """Make sure that modpost gets the symbols of the same ib_core; return the file it reads."""
    providers = [file for file in build.symvers if file.is_file() and _EXPORT in _exports(file)]
    if build.ofed is None:
        if providers:
            raise Mismatch(
                f"the headers of ib_core are the kernel's own ({include}), and its symbols another"
                f" one's ({providers[-1]}, from KBUILD_EXTRA_SYMBOLS); set OFED_DIR to the tree"
                " that they belong to, or leave them out"
            )
        return build.kernel / "Module.symvers"
    own = build.ofed / "Module.symvers"
    if not providers or providers[-1].resolve() != own.resolve():
        raise Mismatch(
            f"the headers of ib_core are OFED's ({include}), and its symbols come from"
            f" {providers[-1] if providers else 'the kernel'}; leave KBUILD_EXTRA_SYMBOLS out"
        )
    if _exports(own, "/vmlinux"):
        raise Mismatch(
            f"{own} is the kernel's own, not OFED's: it lists what vmlinux exports; reinstall"
            " OFED's kernel modules"
        )
    return own


def _check_module(build: Build, module: Path, unpacked: Path, symvers: Path) -> None:
    """Make sure that the ib_core to run with is the one whose headers and symbols are used."""
    own = _IN_TREE in f"{module}"
    if build.ofed is None and not own:
        raise Mismatch(
            f"the headers of ib_core are the kernel's own, and the ib_core of {build.release} is"
            f" {module}; build with 'make', which finds its headers, or set OFED_DIR"
        )
    if build.ofed is not None and own:
        raise Mismatch(
            f"the headers of ib_core are OFED's ({build.ofed}), and Linux {build.release} would"
            f" load its own ib_core ({module}); OFED_DIR=none builds for that one"
        )
    exported = set(
        re.findall(r" __ksymtab_(\S+)", _output(build.nm, unpacked) or ""),
    )
    differing = exported ^ _exports(symvers)
    if exported and differing:
        raise Mismatch(
            f"{symvers} is of another build than {module}: only one of them has"
            f" {min(differing)} ({len(differing)} symbols differ)"
        )


def _members(layout: Path) -> dict[str, tuple[int, int]]:
    """Return offset and size of each member, `struct.member`, and of each structure, at 0."""
    found: dict[str, tuple[int, int]] = {}
    for name, offset, size in re.findall(r'"->(\S+) [$#]*(\d+) [$#]*(\d+)"', layout.read_text()):
        found[name] = int(offset), int(size)
    if not found:
        raise Mismatch(f"{layout} has no structures in it")
    return found


def _check_types(types: btf.Types, members: dict[str, tuple[int, int]], module: Path) -> None:
    """Make sure that a module's types are laid out as the headers say."""
    for name, (offset, size) in members.items():
        structure, _, path = name.partition(".")
        member = path.rpartition(".")[2]
        for layout in types.layouts(structure):
            there = layout.get(member)
            if there is None:
                raise Mismatch(f"struct {structure} of {module} has no member {member}")
            if there[0] != offset or there[1] not in (None, size):
                raise Mismatch(
                    f"{name} is at {offset} with size {size} in the headers, and at {there[0]} with"
                    f" size {there[1]} in {module}: they do not belong together; reinstall both"
                )


def _unpack(module: Path, directory: Path) -> Path:
    """Return a module that may be compressed as it is without that."""
    tools = {".xz": "xz", ".gz": "gzip", ".zst": "zstd"}
    if module.suffix not in tools:
        return module
    unpacked = directory / module.stem
    command = [tools[module.suffix], "-d", "-c", f"{module}"]
    with unpacked.open("wb") as file:
        subprocess.run(command, stdout=file, check=True)
    return unpacked


def _fingerprint(build: Build, unpacked: Path) -> str:
    """Return the SHA-256 of a module's BTF, if it looks the same in `/sys/kernel/btf`."""
    sections = _output(build.readelf, "-S", "-W", unpacked) or ""
    # With .BTF.base the kernel rewrites it.
    if ".BTF " not in sections or ".BTF.base " in sections:
        return ""
    with tempfile.NamedTemporaryFile() as file:
        command = [build.objcopy, "-O", "binary", "--only-section=.BTF"]
        subprocess.run(
            [*command, "--set-section-flags", ".BTF=alloc,readonly", unpacked, file.name],
            check=True,
        )
        return hashlib.sha256(Path(file.name).read_bytes()).hexdigest()


def _rust(members: dict[str, tuple[int, int]], fields: dict[str, str]) -> str:
    """Return the generated source: assertions on the bindings, and what the build is for."""
    lines = ["// Generated by scripts/ib_core.py; layout! is in bindings.rs.", ""]
    for name, (offset, size) in members.items():
        lines.append(
            f"layout!({name}, {offset}, {size});" if "." in name else f"layout!({name}, {size});"
        )
    lines.append("")
    for field, value in fields.items():
        lines.append(f'crate::modinfo::modinfo!("ib_core_{field}=", {json.dumps(value)}, "\\0");')
    lines += [
        f"pub(crate) const {name}: &str = {json.dumps(fields[name.lower()])};"
        for name in ("ORIGIN", "VERSION")
    ]
    identity = ", ".join(f"0x{byte:02x}" for byte in bytes.fromhex(fields["build_id"]))
    value = f"Some(&[{identity}])" if identity else "None"
    lines.append(f"pub(crate) const BUILD_ID: Option<&[u8]> = {value};")
    return "\n".join(lines)


def record(build: Build) -> str:
    """Check what Kbuild has made so far; return the generated source."""
    include = _check_headers(build)
    symvers = _check_symbols(build, include)
    members = _members(build.layout)
    fields = {
        "origin": "in-tree" if build.ofed is None else "OFED",
        "version": build.release if build.ofed is None else "",
        "build_id": "",
        "btf": "",
    }
    compared = "nothing to compare its types with"
    if build.module is not None:
        with tempfile.TemporaryDirectory() as directory:
            unpacked = _unpack(build.module, Path(directory))
            _check_module(build, build.module, unpacked, symvers)
            notes = _output(build.readelf, "-n", unpacked) or ""
            if found := re.search(r"Build ID: ([0-9a-f]+)", notes):
                fields["build_id"] = found[1]
            fields["btf"] = _fingerprint(build, unpacked)
            if build.ofed is not None:
                version = _output("modinfo", "-F", "version", unpacked) or _output(
                    "ofed_info", "-s"
                )
                fields["version"] = re.sub(r"[^ -~]", "", version or "").strip().rstrip(":")
            try:
                types = btf.types(unpacked, build.kernel, build.release, build.bpftool)
                _check_types(types, members, build.module)
                compared = f"types as in {build.module}"
            except btf.NoTypes as reason:
                compared = f"types not compared with {build.module}: {reason}"
    name = " ".join(filter(None, (fields["origin"], fields["version"])))
    print(
        f"  IB_CORE {name} (headers {include}, symbols {symvers},"
        f" build-id {fields['build_id'] or 'unknown'}; {compared})",
        file=sys.stderr,
    )
    return _rust(members, fields)


def main() -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description="which ib_core the module is built for")
    parser.add_argument("action", choices=["find", "record"])
    parser.add_argument("release")
    parser.add_argument("kdir", nargs="?")
    for name in ("layout", "kernel", "source", "ofed", "module"):
        parser.add_argument(f"--{name}")
    for name in ("readelf", "nm", "objcopy", "bpftool"):
        parser.add_argument(f"--{name}", default=name)
    for name in ("outputs", "symvers"):
        parser.add_argument(f"--{name}", nargs="*", default=[], type=Path)
    options = parser.parse_args()
    try:
        if options.action == "find":
            file = Path(options.kdir) / "include/config/kernel.release"
            release = file.read_text().strip() if file.is_file() else options.release
            print(find(release) or "")
            return 0
        module = Path(options.module) if options.module else would_be_loaded(options.release)
        build = Build(
            release=options.release,
            layout=Path(options.layout),
            outputs=options.outputs,
            kernel=Path(options.kernel),
            source=Path(options.source),
            ofed=Path(options.ofed) if options.ofed else None,
            symvers=options.symvers,
            module=module,
            readelf=options.readelf,
            nm=options.nm,
            objcopy=options.objcopy,
            bpftool=options.bpftool,
        )
        print(record(build))
    except Mismatch as mismatch:
        print(f"ib_core: {mismatch}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
