# SPDX-License-Identifier: GPL-2.0
"""Debian's perftest for the virtual machine, and a program of our own that uses libibverbs, too."""

from __future__ import annotations

import functools
import re
import shutil
from pathlib import Path

import cache
import module
from archive import Archive
from buildroot import BuildRoot
from report import run, step

# To be raised when `_make` makes something else of the same build root.
_RECIPE = "2"

# What is not in the build root already: the programs, what they load and are linked with, and what
# others are compiled with.
_PACKAGES = ("perftest", "ibverbs-providers", "libibumad3", "libpci3", "libibverbs-dev")

# What is kept of the programs, and of what says that there is a driver: that of soft-RoCE.
_KEPT = re.compile(r"ib_(send|write|read)_(lat|bw)|(lib)?rxe[-.].*")


def _make(root: BuildRoot, path: Path) -> None:
    packages, guest = path / "packages", path / "guest"
    with step("Downloading perftest (1 MB)") as progress:
        Archive(root).download(progress, [*_PACKAGES], packages)
        for package in sorted(packages.iterdir()):
            unpack: list[str | Path] = ["dpkg-deb", "-x", package, guest]
            run(progress, root.command(unpack, writable=[path]), cache.logs() / "perftest.log")
        shutil.rmtree(packages)
        shutil.rmtree(guest / "usr/share")
        (guest / "usr/include").rename(path / "include")
        libraries = guest / "usr/lib" / root.recipe.arch.triplet
        for pattern in ("*.a", "*.so", "pkgconfig/*"):
            for file in libraries.glob(pattern):
                file.unlink()
        for directory in (guest / "usr/bin", libraries / "libibverbs", guest / "etc/libibverbs.d"):
            for file in directory.iterdir():
                if not _KEPT.fullmatch(file.name):
                    file.unlink()


def ensure(root: BuildRoot) -> Path:
    """Return a tree with the programs for a guest; make it unless it is in the cache."""
    name = f"perftest-{cache.key(_RECIPE, root.recipe.name, *_PACKAGES)}"
    return cache.entry(name, functools.partial(_make, root), space=1 << 27) / "guest"


def build_connect(root: BuildRoot) -> Path:
    """Build the program that makes connections from user space."""
    headers = ensure(root).parent / "include"
    flags = (f"-I{headers}", "-l:libibverbs.so.1")
    source = module.PROJECT / "bench/guest/connect.c"
    target = module.PROJECT / "build/bench/connect"
    return module.compile_program(root, source, target, *flags, readable=[headers])
