# SPDX-License-Identifier: GPL-2.0
"""Kernels of our own: built by LLVM from Debian's source, as small as the virtual machine allows.

What is in such a kernel is said by fragments of configuration, files in `configs/`, which are put
on top of each other and of nothing (`allnoconfig`). `vm.config` is what every one needs.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import buildroot
import cache
from archive import Archive, Version, choose
from buildroot import TRIXIE_LLVM, BuildRoot
from kernel import Kernel, Maker, parse_config
from report import Failure, Step, step

# To be raised when `_CustomMaker` makes something else of the same source and fragments.
_RECIPE = "1"

_CONFIGS = Path(__file__).resolve().parent.parent / "configs"

# What `make` has to be told, for the kernel and for its modules.
_LLVM = ("LLVM=1",)


def refused(fragments: Sequence[str], config: dict[str, str]) -> list[str]:
    """Return the settings of fragments, put together, that a finished configuration has not."""
    wanted: dict[str, str] = {}
    for fragment in fragments:
        wanted |= parse_config(fragment)
    return [f"{name}={value}" for name, value in wanted.items() if config.get(name, "n") != value]


class _CustomMaker(Maker):
    """Makes the entry of a kernel of our own."""

    def __init__(
        self,
        root: BuildRoot,
        version: Version,
        release: str,
        fragments: Sequence[str],
        path: Path,
    ) -> None:
        super().__init__(root, version, release, path)
        self._fragments = fragments
        self._make += [*_LLVM, f"LOCALVERSION={release.removeprefix(version.number)}"]

    def make(self, archive: Archive) -> None:
        """Make the entry."""
        with step(f"Downloading the source of Linux {self._version.number} (170 MB)") as progress:
            self._fetch(progress, archive, self._version.source)
        with step("Unpacking the source of Linux") as progress:
            self._unpack_source(progress)
        with step(f"Configuring Linux {self._release}") as progress:
            self._configure(progress)
        with step(f"Building Linux {self._release} (several minutes)") as progress:
            self._run(progress, *self._make)
            install = (f"INSTALL_MOD_PATH={self._tree}/usr", "DEPMOD=true", "modules_install")
            self._run(progress, *self._make, *install)
            self._keep_headers(progress)
            self._keep_infiniband()
            self._keep_modules(progress)
            image = f"arch/{self._root.recipe.arch.kbuild}/boot/bzImage"
            shutil.copy(self._objects / image, self._path / "vmlinuz")
            shutil.rmtree(self._tree)

    def _configure(self, progress: Step) -> None:
        config = self._objects / ".config"
        self._run(progress, *self._make, "allnoconfig")
        files = [self._tree / f"{number}.config" for number in range(len(self._fragments))]
        for file, fragment in zip(files, self._fragments, strict=True):
            file.write_text(fragment)
        merge = self._source / "scripts/kconfig/merge_config.sh"
        self._run(progress, merge, "-m", "-O", self._objects, config, *files)
        self._run(progress, *self._make, "olddefconfig")
        lost = refused(self._fragments, parse_config(config.read_text()))
        if lost:
            raise Failure(f"Linux {self._release} cannot be configured with {', '.join(lost)}")

    def _keep_headers(self, progress: Step) -> None:
        """Keep what a module is built against: what the kernel's own packages have, and Rust."""
        self._headers.parent.mkdir()
        script = "$(srctree)/scripts/package/install-extmod-build"
        command = f"KBUILD_RUN_COMMAND={script} {self._headers}"
        self._run(progress, *self._make, "run-command", command)
        shutil.copy(self._objects / ".config", self._headers)
        shutil.copytree(self._source / "rust", self._headers / "rust")
        for pattern in ("*.rmeta", "*.so"):
            for file in (self._objects / "rust").glob(pattern):
                shutil.copy(file, self._headers / "rust")


def ensure_custom(
    name: str, fragments: Sequence[str], wanted: str = ""
) -> tuple[BuildRoot, Kernel]:
    """Return a build root and the kernel `name` of our own; make what is not in the cache.

    `fragments` are names of files in `configs/`, of which a later one has the last word. `wanted`
    is the version of Debian's source, by default the newest.
    """
    root = buildroot.ensure(TRIXIE_LLVM)
    archive = Archive(root)
    version = choose(archive.versions(), wanted, root.recipe.kernels)[0]
    release = f"{version.number}-{name}"
    texts = [(_CONFIGS / fragment).read_text() for fragment in fragments]
    key = cache.key(_RECIPE, version.package, root.recipe.name, *texts)

    def make(path: Path) -> None:
        _CustomMaker(root, version, release, texts, path).make(archive)

    path = cache.entry(f"linux-{release}-{key}", make, space=6 << 30)
    return root, Kernel(release, path, make=_LLVM)
