# SPDX-License-Identifier: GPL-2.0
"""Which ib_core the module is built for: finds it, and proves that all that is used belongs to it.

MLNX_OFED and DOCA-OFED replace the kernel's own ib_core by one with other structures. The headers
of the one and the other lie side by side, and nothing in the kernel notices a module that was built
with the wrong ones; so the build has to.

    ib_core.py find KVER KDIR       print what Kbuild has to be told: OFED_DIR= and IB_CORE=
    ib_core.py digest KVER ...      print a digest of everything that the build depends on
    ib_core.py record KVER ...      check a build, and write the Rust source that says what for

`find` reads OFED_DIR, IB_CORE and ARCH of the environment; Kbuild runs the others (see there).
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import platform
import re
import shutil
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
SPECIAL = re.compile(r"[\s'\"$#:%\\;&()*?<>|`]")

# A function that is exported by ib_core and by nobody else.
_EXPORT = "ib_register_client"


class Mismatch(Exception):
    """Something does not belong together; the message says what, and what to do."""


def _output(*command: str | Path) -> str | None:
    """Return what a command prints, or `None` if it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None


BUILT_IN = Path("(builtin)")


def would_be_loaded(release: str) -> Path | None:
    """Return the file of the ib_core that modprobe takes for a kernel, if there is one.

    `BUILT_IN` stands for one that is part of the kernel.
    """
    name = (_output("modinfo", "-k", release, "-n", "ib_core") or "").strip()
    return Path(name) if name.startswith(("/", f"{BUILT_IN}")) else None


def _named(module: str, release: str) -> Path | None:
    """Return the ib_core to run with: the one that is named, or else what would be loaded."""
    if not module:
        return would_be_loaded(release)
    if module == "none":
        return None
    if module == f"{BUILT_IN}":
        return BUILT_IN
    _check_name(Path(module))
    if not Path(module).is_file():
        raise Mismatch(f"IB_CORE={module} is no file; leave it out, or name an ib_core.ko")
    magic = (_output("modinfo", "-F", "vermagic", module) or "").split()
    if not magic:
        raise Mismatch(f"IB_CORE={module} is no kernel module; name an ib_core.ko")
    # In weak-updates are modules of kernels that are compatible.
    if magic[0] != release and f"/lib/modules/{release}/" not in module:
        raise Mismatch(f"IB_CORE={module} is for Linux {magic[0]}, not for {release}")
    return Path(module)


def _check_name(path: Path) -> None:
    """Make sure that Kbuild can be given a path."""
    if SPECIAL.search(f"{path}"):
        raise Mismatch(
            f"Kbuild cannot use '{path}', whose name has a space or a special character; move it"
        )


def _is_own(module: Path) -> bool:
    """Tell whether a file of ib_core was built with the kernel, wherever it lies now."""
    return module == BUILT_IN or (_output("modinfo", "-F", "intree", module) or "").strip() == "Y"


def _own_ib_core(release: str) -> Path | None:
    """Return the kernel's own ib_core, where another one would be loaded."""
    directory = Path("/lib/modules") / release / "kernel/drivers/infiniband/core"
    return next((file for file in directory.glob("ib_core.ko*") if _is_own(file)), None)


def _machine() -> str:
    """Return what `uname -m` prints on the machine that is built for."""
    names = {"arm64": "aarch64", "x86": "x86_64"}
    arch = os.environ.get("ARCH") or platform.machine()
    return names.get(arch, arch)


def _kernel_of(tree: Path) -> str | None:
    """Return which kernel an OFED tree is for, if it says so."""
    configured = tree / "configure.mk.kernel"
    if configured.is_file():
        found = re.search(
            r"^(?:export\s+)?KVERSION\s*[:?]?=\s*[\"']?([^\s\"']+)",
            configured.read_text(errors="replace"),
            re.MULTILINE,
        )
        if found:
            return found[1]
    # The last part of the path, if it looks like a release at all.
    return tree.name if re.match(r"\d+\.\d+", tree.name) else None


def _check_tree(tree: Path, releases: Sequence[str], *, named: bool) -> None:
    """Make sure that an OFED tree is complete, and of one of the kernels."""
    release = releases[0]
    _check_name(tree)
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
    kernel = _kernel_of(tree)
    if kernel is None and not named:
        raise Mismatch(
            f"the OFED tree {tree} does not say which kernel it is for; set OFED_DIR to it if that"
            f" is {release}"
        )
    if kernel not in (None, *releases):
        raise Mismatch(
            f"the OFED tree {tree} is for Linux {kernel}, not for {release}; install OFED's kernel"
            f" modules for {release}, or set OFED_DIR to their tree"
        )
    if _EXPORT not in _exports(tree / "Module.symvers"):
        raise Mismatch(
            f"{tree}/Module.symvers has no symbols of ib_core ({_EXPORT}); reinstall OFED's kernel"
            " modules"
        )


def _search(releases: Sequence[str], loaded: Path | None) -> Path | None:
    """Return OFED's tree for a kernel, from where OFED puts it."""
    own = loaded is not None and _is_own(loaded)
    places = [
        _SOURCES / directory / _machine() / release
        for release in releases
        for directory in ("ofa_kernel", "ofa_kernel-dkms")
    ]
    # Before OFED 5.5. `default` may be a link, to the tree of whichever kernel came last.
    places += [
        _SOURCES / "ofa_kernel" / name
        for name in (*releases, releases[0].rpartition("-")[2], "default")
    ]
    for place in places:
        if not place.is_symlink() and not place.exists():
            continue
        if not place.exists():
            raise Mismatch(f"{place} leads to {place.readlink()}, which is missing; reinstall OFED")
        tree = place.resolve()
        try:
            _check_tree(tree, releases, named=False)
        except Mismatch as mismatch:
            # Whoever has OFED for other kernels only.
            if own and place.parent.name == "ofa_kernel":
                continue
            link = f" (found as {place})" if tree != place else ""
            raise Mismatch(f"{mismatch}{link}; OFED_DIR=none takes the kernel's headers") from None
        if own:
            raise Mismatch(
                f"OFED's tree {tree} is there, but Linux {releases[0]} would load its own ib_core"
                f" ({loaded}); OFED_DIR=none builds for that one"
            )
        return tree
    if loaded is not None and not own:
        raise Mismatch(
            f"the ib_core of {releases[0]} is {loaded}, not the kernel's own, and there is no OFED"
            f" tree to build with ({places[0]}); install OFED's development package for this"
            " kernel, or set OFED_DIR"
        )
    return None


def find(release: str) -> tuple[Path | None, Path | None]:
    """Return the OFED tree to build with for a kernel, and the ib_core to run with.

    Without a tree it is the kernel's own ib_core. Never falls back from one to the other: a tree
    that is not whole is an error.
    """
    wanted = os.environ.get("OFED_DIR", "").strip()
    named = os.environ.get("IB_CORE", "").strip()
    loaded = _named(named, release)
    if wanted == "none":
        if loaded is not None and not named and not _is_own(loaded):
            loaded = _own_ib_core(release)
        return None, loaded
    releases = [release]
    if loaded is not None:
        # What SLES and RHEL have in weak-updates is a link to a module for another kernel.
        found = re.search(r"/lib/modules/([^/]+)/", f"{loaded.resolve()}")
        if found and found[1] != release and f"/lib/modules/{release}/" in f"{loaded}":
            releases.append(found[1])
    if wanted:
        tree = Path(wanted).resolve()
        _check_tree(tree, releases, named=True)
        return tree, loaded
    return _search(releases, loaded), loaded


def _exports(symvers: Path, suffix: str = "/ib_core") -> set[str]:
    """Return what a `Module.symvers` says that ib_core exports; other modules by their suffix."""
    lines = (line.split("\t") for line in symvers.read_text(errors="replace").splitlines())
    return {fields[1] for fields in lines if len(fields) > 3 and f"/{fields[2]}".endswith(suffix)}


@dataclasses.dataclass(frozen=True)
class Build:
    """What is built, and with what; the fields are the options of the command line."""

    release: str
    kernel: Path
    """The kernel's build tree, with `Module.symvers` and perhaps `vmlinux`."""
    source: Path
    """The kernel's source tree, or the common part of its headers."""
    ofed: Path | None
    module: Path | None
    """The ib_core that the module is to run with."""
    symvers: Sequence[Path]
    """KBUILD_EXTRA_SYMBOLS."""
    layout: Path
    """`layout.s`, what the C compiler says of the structures."""
    bindings: Path
    readelf: str
    nm: str
    objcopy: str
    bpftool: str
    output: Path

    @property
    def include(self) -> Path:
        """Where the headers have to come from."""
        return (self.ofed or self.source) / "include"


def digest(build: Build) -> str:
    """Return a digest of everything that a build depends on and that may change unnoticed."""
    files = [
        *sorted((build.include / "rdma").glob("*.h")),
        *((build.ofed / name for name in _TREE) if build.ofed else ()),
        *(*build.symvers, build.kernel / "Module.symvers"),
        *([build.module] if build.module else ()),
    ]
    # What the types are read by, and on top of what; the kernel itself is large.
    kernel = build.kernel / "vmlinux"
    date = kernel.stat().st_mtime_ns if kernel.exists() else None
    total = hashlib.sha256(f"{shutil.which(build.bpftool)} {date}".encode())
    for file in filter(Path.is_file, files):
        total.update(f"{file}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def _check_headers(build: Build) -> None:
    """Make sure that the right headers were read, and no others."""
    wanted = ["rdma/ib_verbs.h"] + (["linux/compat-2.6.h"] if build.ofed else [])
    for output in (build.layout, build.bindings):
        # Kbuild's note of how the file was made, and of what.
        command = (output.parent / f".{output.name}.cmd").read_text()
        for name in wanted:
            read: set[str] = {word for word in command.split() if word.endswith(f"/{name}")}
            for file in {(output.parent / word).resolve() for word in read}:
                if not file.samefile(build.include / name):
                    raise Mismatch(
                        f"the headers of ib_core were read from {file.parent.parent}, not from"
                        f" {build.include}; set OFED_DIR to the tree that is meant, and leave"
                        " Kbuild's own flags alone"
                    )
            if not read:
                raise Mismatch(f"{output.name} was made without {build.include}/{name}")


def _check_symbols(build: Build) -> Path:
    """Make sure that modpost gets the symbols of the same ib_core; return the file it reads."""
    providers = [file for file in build.symvers if file.is_file() and _EXPORT in _exports(file)]
    if build.ofed is None:
        if providers:
            raise Mismatch(
                f"the headers of ib_core are the kernel's own ({build.include}), and its symbols"
                f" another one's ({providers[-1]}, from KBUILD_EXTRA_SYMBOLS); set OFED_DIR to the"
                " tree that they belong to, or leave them out"
            )
        return build.kernel / "Module.symvers"
    own = build.ofed / "Module.symvers"
    if not providers or providers[-1].resolve() != own.resolve():
        raise Mismatch(
            f"the headers of ib_core are OFED's ({build.include}), and its symbols come from"
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
    exported = set(re.findall(r" __ksymtab_(\S+)", _output(build.nm, unpacked) or ""))
    if _EXPORT not in exported:
        raise Mismatch(f"{build.nm} finds no {_EXPORT} in {module}; is it an ib_core.ko?")
    own = _is_own(unpacked)
    if build.ofed is None and not own:
        raise Mismatch(
            f"the headers of ib_core are the kernel's own, and the ib_core of {build.release} is"
            f" {module}; build with 'make', which finds its headers, or set OFED_DIR to them"
        )
    if build.ofed is not None and own:
        raise Mismatch(
            f"the headers of ib_core are OFED's ({build.ofed}), and Linux {build.release} would"
            f" load its own ib_core ({module}); OFED_DIR=none builds for that one"
        )
    differing = exported ^ _exports(symvers)
    if differing:
        raise Mismatch(
            f"{symvers} is of another build than {module}: only one of them has"
            f" {min(differing)} ({len(differing)} symbols differ)"
        )


def _members(layout: Path) -> list[tuple[str, str, int, int]]:
    """Return kind, name, offset and size of each structure, and of each `struct.member`."""
    text = layout.read_text()
    lines = re.findall(r'"->(\w+) (\S+) [$#]*(\d+) [$#]*(\d+)"', text)
    if not lines or len(lines) != text.count('"->'):
        raise Mismatch(f"{layout} cannot be understood")
    return [(kind, name, int(offset), int(size)) for kind, name, offset, size in lines]


def _check_types(
    types: btf.Types, members: Sequence[tuple[str, str, int, int]], module: Path
) -> None:
    """Make sure that a module's types are laid out as the headers say."""
    drivers = {name for kind, name, _, _ in members if kind == "driver"}
    for _, name, offset, size in members:
        structure, _, member = name.partition(".")
        layouts = list(types.layouts(structure))
        if not layouts and structure not in drivers:
            raise Mismatch(f"the types of {module} have no struct {structure}")
        for layout in layouts:
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


def _name(fields: dict[str, str]) -> str:
    """Return what an ib_core is called: whose it is, and the version if that is known."""
    return " ".join(filter(None, (fields["origin"], fields["version"])))


def _rust(members: Sequence[tuple[str, str, int, int]], fields: dict[str, str]) -> str:
    """Return the generated source: assertions on the bindings, and what the build is for."""
    lines = ["// Generated by scripts/ib_core.py; layout! is in bindings.rs.", ""]
    for kind, name, offset, size in members:
        if kind in ("struct", "driver"):
            lines.append(f"layout!({name}, {size});")
        elif kind in ("member", "anonymous"):
            # As bindgen names what has no name, or one that is a keyword.
            path = re.sub(r"\btype$", "type_", name)
            if kind == "anonymous":
                path = path.replace(".", ".__bindgen_anon_1.", 1)
            lines.append(f"layout!({path}, {offset}, {size});")
        else:
            constant = name.replace(".", "_").upper()
            lines.append(f"pub(crate) const {constant}: usize = {offset};")
    lines.append("")
    for field, value in fields.items():
        lines.append(f'crate::modinfo::modinfo!("ib_core_{field}=", {json.dumps(value)}, "\\0");')
    lines.append(f"pub(crate) const NAME: &str = {json.dumps(_name(fields))};")
    for origin in ("built-in", "in-tree"):
        constant = origin.upper().replace("-", "_")
        is_that = json.dumps(fields["origin"] == origin)
        lines.append(f"pub(crate) const {constant}: bool = {is_that};")
    identity = ", ".join(f"0x{byte:02x}" for byte in bytes.fromhex(fields["build_id"]))
    value = f"Some(&[{identity}])" if identity else "None"
    lines.append(f"pub(crate) const BUILD_ID: Option<&[u8]> = {value};")
    return "".join(f"{line}\n" for line in lines)


def _record_module(
    build: Build,
    module: Path,
    symvers: Path,
    members: Sequence[tuple[str, str, int, int]],
    fields: dict[str, str],
) -> str:
    """Check the ib_core to run with, and fill in what it says; return what was compared."""
    with tempfile.TemporaryDirectory() as directory:
        unpacked = _unpack(module, Path(directory))
        _check_module(build, module, unpacked, symvers)
        notes = _output(build.readelf, "-n", unpacked) or ""
        found = re.search(r"Build ID: ([0-9a-f]+)", notes)
        if not found:
            raise Mismatch(f"{build.readelf} finds no build-id in {module}")
        fields["build_id"] = found[1]
        fields["btf"] = _fingerprint(build, unpacked)
        if build.ofed is not None:
            version = _output("modinfo", "-F", "version", unpacked) or _output("ofed_info", "-s")
            fields["version"] = re.sub(r"[^ -~]", "", version or "").strip().rstrip(":")
        try:
            types = btf.types(unpacked, build.kernel, build.release, build.bpftool)
            _check_types(types, members, module)
        except btf.NoTypes as reason:
            # The kernel's own headers are made with the kernel's own ib_core.
            if build.ofed is not None and build.bpftool != "none":
                raise Mismatch(
                    f"whether OFED's headers are those of {module} cannot be told: {reason};"
                    " install bpftool, or say BPFTOOL=none to go without"
                ) from None
            return f"types not compared with {module}: {reason}"
        return f"types as in {module}"


def record(build: Build) -> str:
    """Check what Kbuild has made so far; return the generated source."""
    _check_headers(build)
    symvers = _check_symbols(build)
    members = _members(build.layout)
    fields = {
        "origin": "in-tree" if build.ofed is None else "OFED",
        "version": build.release if build.ofed is None else "",
        "build_id": "",
        "btf": "",
    }
    compared = "no ib_core.ko to compare with"
    if build.module == BUILT_IN and build.ofed is not None:
        raise Mismatch(
            f"the headers of ib_core are OFED's ({build.ofed}), and Linux {build.release} has its"
            " own ib_core built in; OFED_DIR=none builds for that one"
        )
    if build.module == BUILT_IN:
        fields["origin"] = "built-in"
        compared = "part of the kernel, which cannot be exchanged"
    elif build.module is not None:
        compared = _record_module(build, build.module, symvers, members, fields)
    print(
        f"  IB_CORE {_name(fields)} (headers {build.include}, symbols {symvers},"
        f" build-id {fields['build_id'] or 'unknown'}; {compared})",
        file=sys.stderr,
    )
    return _rust(members, fields)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="which ib_core the module is built for")
    parser.add_argument("action", choices=["find", "digest", "record"])
    parser.add_argument("release")
    parser.add_argument("kdir", nargs="?", type=Path)
    for name in ("kernel", "source", "layout", "bindings", "output"):
        parser.add_argument(f"--{name}", type=Path)
    for name in ("ofed", "module", "readelf", "nm", "objcopy", "bpftool"):
        parser.add_argument(f"--{name}", default="")
    parser.add_argument("--symvers", nargs="*", default=[], type=Path)
    return parser.parse_args()


def _main(options: argparse.Namespace) -> None:
    if options.action == "find":
        file = options.kdir / "include/config/kernel.release"
        release = file.read_text().strip() if file.is_file() else options.release
        tree, module = find(release)
        print(f"OFED_DIR={tree or ''} IB_CORE={module or 'none'}")
        return
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(Build)}
    values["ofed"] = Path(options.ofed) if options.ofed else None
    values["module"] = _named(options.module, options.release)
    build = Build(**values)
    if options.action == "digest":
        print(digest(build))
    else:
        build.output.write_text(record(build))


def main() -> int:
    """Run what the command line says."""
    # modinfo and bpftool are often there, and a user's PATH lacks it.
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    try:
        _main(_options())
    except (Mismatch, OSError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"ib_core: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
