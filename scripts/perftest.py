# SPDX-License-Identifier: GPL-2.0
"""Debian's perftest for the virtual machine: what people measure RDMA with from user space."""

from __future__ import annotations

import functools
import re
import shutil
from pathlib import Path

import cache
from archive import Archive
from buildroot import BuildRoot
from report import run, step

# To be raised when `_make` makes something else of the same build root.
_RECIPE = "1"

# What is not in the build root already: the programs, and what they load and are linked with.
_PACKAGES = ("perftest", "ibverbs-providers", "libibumad3", "libpci3")

# What is kept of the programs, and of what says that there is a driver: that of soft-RoCE.
_KEPT = re.compile(r"ib_(send|write|read)_(lat|bw)|(lib)?rxe[-.].*")


def _make(root: BuildRoot, path: Path) -> None:
    packages = path / "packages"
    with step("Downloading perftest (1 MB)") as progress:
        Archive(root).download(progress, [*_PACKAGES], packages)
        for package in sorted(packages.iterdir()):
            unpack: list[str | Path] = ["dpkg-deb", "-x", package, path]
            run(progress, root.command(unpack, writable=[path]), cache.logs() / "perftest.log")
        shutil.rmtree(packages)
        shutil.rmtree(path / "usr/share")
        providers = path / "usr/lib" / root.recipe.arch.triplet / "libibverbs"
        for directory in (path / "usr/bin", providers, path / "etc/libibverbs.d"):
            for file in directory.iterdir():
                if not _KEPT.fullmatch(file.name):
                    file.unlink()


def ensure(root: BuildRoot) -> Path:
    """Return a tree with the programs for a guest; make it unless it is in the cache."""
    name = f"perftest-{cache.key(_RECIPE, root.recipe.name, *_PACKAGES)}"
    return cache.entry(name, functools.partial(_make, root), space=1 << 27)
