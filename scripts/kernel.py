# SPDX-License-Identifier: GPL-2.0
"""Debian's kernels with Rust: chosen, downloaded, and given the crates that Debian leaves out.

Debian builds its kernels with CONFIG_RUST but does not package the compiled crates that a Rust
module is built against. They are rebuilt here from Debian's source of the same version by Debian's
compilers. The kernel exports the crates' functions under names that hold a hash of the crate; that
every one of these names is among the rebuilt crates' proves that they fit the kernel as it is.

    python3 kernel.py headers RELEASE   complete this machine's headers of a kernel
    python3 kernel.py update            look for newer kernels
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import buildroot
import cache
from archive import Archive, Version, choose
from buildroot import SID, TRIXIE, TRIXIE_ARM64, BuildRoot, Recipe
from report import Failure, Step, main, run, step

# To be raised when `_make` makes something else of the same packages.
_RECIPE = "4"

# What of the kernel can be loaded in the virtual machine, besides what these need; one that a
# kernel does not have is left out.
_GUEST_MODULES = (
    *("ib_core", "ib_uverbs", "ib_umad", "rdma_cm", "rdma_ucm", "rdma_rxe", "siw"),
    *("dummy", "veth", "8021q"),
)

# The file of an entry that lists what was added to Debian's headers, as paths below /usr/src.
_ADDED = "added"


# What of the kernel's source neither the configuration nor the crates need, nor drivers/infiniband
# is: most of its size.
_UNUSED_SOURCE = (
    *("drivers/[!i]*.c", "drivers/i[!n]*.c", "drivers/in[!f]*.c", "drivers/infiniband/[!cs]*.c"),
    *("sound/*.c", "drivers/gpu/drm/amd/include/*", "arch/*/boot/dts/*"),
    *("tools/testing/*", "tools/perf/*", "Documentation/*.rst", "Documentation/*.yaml"),
)


@dataclass(frozen=True)
class Kernel:
    """A kernel in the cache, ready to be built against and to be booted."""

    release: str
    path: Path
    make: tuple[str, ...] = ()
    """What `make` has to be told to build a module for it."""
    vendor: Path | None = None
    """What takes the place of the guest, if a vendor's RDMA stack does."""
    ofed: Path | None = None
    """The tree to build with for that stack, as OFED_DIR names it."""

    @property
    def image(self) -> Path:
        """The bootable image."""
        return self.path / "vmlinuz"

    @property
    def guest(self) -> Path:
        """What of the kernel is in the guest: its modules, as a tree below `/`."""
        return (self.vendor or self.path) / "guest"

    @property
    def ib_core(self) -> Path:
        """The ib_core that the guest loads."""
        modules = self.guest / "usr/lib/modules" / self.release
        return modules / (
            "updates/ib_core.ko" if self.vendor else "kernel/drivers/infiniband/core/ib_core.ko"
        )

    @property
    def sources(self) -> Path:
        """What belongs in `/usr/src`: the headers, with the crates."""
        return self.path / "src"

    @property
    def infiniband(self) -> Path:
        """The source of `ib_core` and of soft-RoCE, as below `drivers/infiniband`."""
        return self.path / "infiniband"

    @functools.cached_property
    def config(self) -> dict[str, str]:
        """What its configuration sets."""
        return parse_config((self.sources / f"linux-headers-{self.release}/.config").read_text())

    @property
    def headers(self) -> str:
        """Where in the build root the headers are."""
        return f"/usr/src/linux-headers-{self.release}"


def parse_config(text: str) -> dict[str, str]:
    """Return what a kernel's `.config` sets."""
    lines = (line.partition("=") for line in text.splitlines())
    return {name: value.strip('"') for name, _, value in lines if name.startswith("CONFIG_")}


class NoRust(Failure):
    """A kernel was built without CONFIG_RUST."""


def compare_symbols(symvers: Path, rust: Path) -> int:
    """Compare the Rust symbols of a kernel with those of crates; return how many there are.

    `symvers` is the kernel's `Module.symvers`, `rust` the directory that the crates were built in.
    """
    exported = {line.split("\t")[1] for line in symvers.read_text().splitlines()}
    exported = {symbol for symbol in exported if symbol.startswith("_R")}
    rebuilt: set[str] = set()
    for header in rust.glob("exports_*_generated.h"):
        rebuilt.update(re.findall(r"\b_R\w+", header.read_text()))
    missing = exported - rebuilt
    if missing or not exported:
        raise Failure(
            f"the rebuilt crates do not fit the kernel: {len(missing)} of {len(exported)} Rust"
            f" symbols differ, such as {min(missing, default='none')}"
        )
    return len(exported)


class Maker:
    """What makes the cache's entry of one kernel, in the directory `path`."""

    def __init__(self, root: BuildRoot, version: Version, release: str, path: Path) -> None:
        self._root = root
        self._version = version
        self._release = release
        self._path = path
        self._log = cache.logs() / f"linux-{release}.log"
        self._log.unlink(missing_ok=True)
        # Where the packages are unpacked, among them the source, and where that is built.
        self._tree = path / "tree"
        self._source = self._tree / "source"
        self._objects = self._tree / "objects"
        # The headers that a module is built against.
        self._headers = path / "src" / f"linux-headers-{release}"
        arch = root.recipe.arch
        # How the kernel is configured and built.
        self._make = [
            *("make", "-C", f"{self._source}", f"O={self._objects}", f"-j{os.cpu_count() or 1}"),
            *(f"ARCH={arch.kbuild}", f"CROSS_COMPILE={arch.triplet}-"),
        ]

    def _run(self, progress: Step, *argv: str | Path) -> None:
        run(progress, self._root.command(argv, writable=[self._path]), self._log)

    def _fetch(self, progress: Step, archive: Archive, *names: str) -> None:
        """Download and unpack packages."""
        packages = self._path / "packages"
        wanted = [f"{name}={self._version.package}" for name in names]
        archive.download(progress, wanted, packages)
        for package in sorted(packages.iterdir()):
            self._run(progress, "dpkg-deb", "-x", package, self._tree)
        shutil.rmtree(packages)

    def _unpack_source(self, progress: Step, unused: Iterable[str] = ()) -> None:
        """Unpack the kernel's source, but not what is `unused`."""
        (tarball,) = (self._tree / "usr/src").glob("linux-source-*.tar.*")
        self._source.mkdir()
        self._objects.mkdir()
        self._run(
            progress,
            *("tar", "-C", self._source, "--strip-components=1", "-xf", tarball),
            "--anchored",
            *(f"--exclude={self._version.source}/{pattern}" for pattern in unused),
        )

    def _keep_infiniband(self) -> None:
        """Keep the source of `ib_core` and of soft-RoCE."""
        for part in ("core", "sw/rxe"):
            target = self._path / "infiniband" / part
            target.parent.mkdir(parents=True, exist_ok=True)
            (self._source / "drivers/infiniband" / part).rename(target)

    def _keep_modules(self, progress: Step) -> None:
        """Keep the guest's kernel modules, with what they need, unpacked and ready for modprobe."""
        modules = Path("usr/lib/modules") / self._release
        there = {
            path.name.partition(".")[0].replace("-", "_"): path
            for path in (self._tree / modules / "kernel").rglob("*.ko*")
        }
        wanted = [name for name in _GUEST_MODULES if name in there]
        taken: dict[str, Path] = {}
        while wanted:
            name = wanted.pop()
            if name in taken:
                continue
            taken[name] = there[name]
            depends = self._root.output(
                ["modinfo", "-F", "depends", there[name]], readable=[self._tree]
            )
            wanted += [name for name in depends.strip().replace("-", "_").split(",") if name]
        guest = self._path / "guest"
        for origin in taken.values():
            target = guest / origin.relative_to(self._tree)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(origin, target)
        for name in ("modules.builtin", "modules.builtin.modinfo", "modules.order"):
            shutil.copy(self._tree / modules / name, guest / modules / name)
        packed = [f"{path}" for path in guest.rglob("*.ko.xz")]
        if packed:
            self._run(progress, "xz", "-d", *packed)
        (guest / "lib").symlink_to("usr/lib")
        self._run(progress, "depmod", "-b", guest, self._release)


class _DebianMaker(Maker):
    """Makes the entry of a kernel as Debian has built it."""

    def __init__(self, root: BuildRoot, version: Version, path: Path) -> None:
        super().__init__(root, version, version.release, path)
        # The names of the other two directories of headers.
        self._common = f"linux-headers-{version.base}-common"
        self._kbuild = f"linux-kbuild-{version.base}"
        gcc = root.recipe.gcc
        self._make += [f"CC={root.recipe.arch.triplet}-{gcc}", f"HOSTCC={gcc}"]

    def make(self, archive: Archive) -> None:
        """Make the entry."""
        with step(f"Downloading Linux {self._release} and its source (about 300 MB)") as progress:
            self._fetch_all(progress, archive)
        self._check_compilers()
        with step("Unpacking the source of Linux") as progress:
            self._unpack_source(progress, _UNUSED_SOURCE)
        with step("Building the Rust crates that Debian leaves out (1 to 2 minutes)") as progress:
            self._build_crates(progress)
        count = compare_symbols(self._headers / "Module.symvers", self._objects / "rust")
        print(f"    all {count} Rust symbols that the kernel exports are in the rebuilt crates")
        self._add_crates()
        self._keep_infiniband()
        with step("Unpacking the guest's kernel modules") as progress:
            self._keep_modules(progress)
        image = self._tree / f"usr/lib/modules/{self._release}/vmlinuz"
        shutil.copy(image, self._path / "vmlinuz")
        shutil.rmtree(self._tree)

    def _fetch_all(self, progress: Step, archive: Archive) -> None:
        """Download and unpack the packages; the headers go where they are to stay."""
        parts = ("base", "binary", "modules", "headers")
        self._fetch(
            progress,
            archive,
            *(f"linux-{part}-{self._release}" for part in parts),
            *(self._common, self._kbuild, self._version.source),
        )
        sources = self._headers.parent
        sources.mkdir()
        (self._tree / "usr/lib" / self._kbuild).rename(sources / self._kbuild)
        for name in (self._headers.name, self._common):
            (self._tree / "usr/src" / name).rename(sources / name)
            for part in ("scripts", "tools"):
                link = sources / name / part
                link.unlink(missing_ok=True)
                link.symlink_to(f"../{self._kbuild}/{part}")

    def _check_compilers(self) -> None:
        """Make sure that the kernel has Rust, and that the build root has the same compiler."""
        config = parse_config((self._headers / ".config").read_text())
        if config.get("CONFIG_RUST") != "y":
            raise NoRust(f"Linux {self._release} is built without CONFIG_RUST")
        for setting, command in (
            ("CONFIG_RUSTC_VERSION_TEXT", ["rustc", "--version"]),
            ("CONFIG_BINDGEN_VERSION_TEXT", ["bindgen", "--version", "workaround-for-0.69.0"]),
        ):
            there = self._root.output(command).strip()
            if there != config.get(setting):
                raise Failure(
                    f"Linux {self._release} was built by {config.get(setting)} and the"
                    f" build root has {there}; make a new one: rm -r {self._root.path}"
                )

    def _build_crates(self, progress: Step) -> None:
        """Configure the kernel as Debian did and build its crates."""
        config = self._objects / ".config"
        shutil.copy(self._headers / ".config", config)
        self._run(progress, *self._make, "olddefconfig")
        if parse_config(config.read_text()).get("CONFIG_RUST") != "y":
            raise Failure(f"the build root cannot build Rust for the kernel (see {self._log})")
        self._run(progress, *self._make, "prepare")

    def _add_crates(self) -> None:
        """Add to the headers what a Rust module and its checks need, and note what that is."""
        rust = self._objects / "rust"
        added = {
            f"{self._headers.name}/rust/{file.name}": file
            for file in (*rust.glob("*.rmeta"), *rust.glob("*.so"))
        }
        # Where rustc itself does not know the kernel's target.
        for file in (self._objects / "scripts").glob("target.json"):
            added[f"{self._kbuild}/scripts/{file.name}"] = file
        # For an editor: the generated sources, and what 'make rust-analyzer' is made of.
        for file in rust.rglob("*.rs"):
            added[f"{self._headers.name}/rust/{file.relative_to(rust)}"] = file
        for pattern in ("*rust_analyzer.py", "rust_is_available*", "*-version.sh", "Makefile"):
            for file in (self._source / "scripts").glob(pattern):
                added[f"{self._kbuild}/scripts/{file.name}"] = file
        for name in ("rust", ".clippy.toml", ".rustfmt.toml"):
            added[f"{self._common}/{name}"] = self._source / name
        for name, origin in added.items():
            target = self._headers.parent / name
            target.parent.mkdir(parents=True, exist_ok=True)
            origin.rename(target)
        # The crates come last: whoever has the kernel crate has everything.
        names = sorted(added, key=lambda name: (name.endswith(".rmeta"), "libkernel" in name))
        (self._path / _ADDED).write_text("".join(f"{name}\n" for name in names))


def _make(root: BuildRoot, archive: Archive, version: Version, path: Path) -> None:
    _DebianMaker(root, version, path).make(archive)


def ensure(wanted: str = "", recipe: Recipe = TRIXIE) -> tuple[BuildRoot, Kernel]:
    """Return a build root and a kernel of Debian for it; make what is not in the cache.

    `wanted` is a version, or the whole release; by default it is the newest kernel with Rust.
    """
    root = buildroot.ensure(recipe)
    archive = Archive(root)
    for version in choose(archive.versions(), wanted, recipe.kernels):
        name = f"linux-{version.release}-{cache.key(_RECIPE, version.package, recipe.name)}"
        make = functools.partial(_make, root, archive, version)
        try:
            path = cache.entry(name, make, space=3 << 30)
        except NoRust as failure:
            if wanted:
                raise
            print(f"    {failure}; trying the next one")
            continue
        return root, Kernel(version.release, path)
    raise Failure(f"no kernel of {recipe.kernels} is built with CONFIG_RUST")


def _update() -> int:
    for recipe in (TRIXIE, TRIXIE_ARM64, SID):
        # The others are there if the matrix has been run.
        if recipe == TRIXIE or (cache.directory() / recipe.name).exists():
            archive = Archive(buildroot.ensure(recipe))
            archive.update()
            offered = ", ".join(version.release for version in archive.versions())
            print(f"{recipe.kernels} offers {offered or 'no kernel'}")
    return 0


def _complete_headers(release: str) -> int:
    """Add the crates to the headers of a Debian kernel that are installed on this machine."""
    installed = Path(os.environ.get("HEADERS_ROOT", "/usr/src"))
    headers = installed / f"linux-headers-{release}"
    if not headers.is_dir():
        raise Failure(f"{headers} is missing: apt-get install linux-headers-{release}")
    _, kernel = ensure(release)
    symvers = f"linux-headers-{release}/Module.symvers"
    if (installed / symvers).read_bytes() != (kernel.sources / symvers).read_bytes():
        raise Failure(f"{headers} is of another build than the suite's Linux {release}")
    if not os.access(headers, os.W_OK):
        raise Failure(
            f"{headers} is not writable; run: sudo env XDG_CACHE_HOME={cache.directory().parent}"
            f" make headers KVER={release}"
        )
    for name in (kernel.path / _ADDED).read_text().splitlines():
        origin, target = kernel.sources / name, installed / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if origin.is_dir():
            shutil.copytree(origin, target, dirs_exist_ok=True)
        else:
            unfinished = target.with_name(f"{target.name}.unfinished")
            shutil.copy(origin, unfinished)
            unfinished.rename(target)
    print(f"{headers} has the Rust crates now; type 'make KVER={release}'")
    return 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["headers", release]:
            main(lambda: _complete_headers(release))
        case ["update"]:
            main(_update)
        case _:
            sys.exit(__doc__)
