# SPDX-License-Identifier: GPL-2.0
"""What Debian offers: the kernels of a suite, and their packages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import buildroot
import cache
from arch import AMD64
from buildroot import BuildRoot
from report import Failure, Step, run, step


@dataclass(frozen=True)
class Version:
    """A kernel that a suite offers."""

    release: str
    """What `uname -r` prints: `7.3.4+deb13-amd64`."""
    package: str
    """The version of its packages: `7.3.4-1~bpo13+1`."""

    @property
    def base(self) -> str:
        """The release without the flavour: `7.3.4+deb13`."""
        return self.release.rpartition("-")[0]

    @property
    def number(self) -> str:
        """What the kernel's own Makefile calls it: `7.3.4`."""
        return self.base.partition("+")[0]

    @property
    def source(self) -> str:
        """The name of the package with its source."""
        major, minor = self.release.split(".")[:2]
        return f"linux-source-{major}.{minor}"

    @property
    def order(self) -> tuple[int, ...]:
        """What versions are sorted by."""
        return tuple(int(number) for number in re.findall(r"\d+", self.base))


class Archive:
    """The package lists of a build root's suites, kept in the cache, and downloads from there."""

    def __init__(self, root: BuildRoot) -> None:
        self._root = root
        self._recipe = root.recipe
        self._state = cache.directory() / self._recipe.lists
        self._complete = self._state / "complete"
        self._log = cache.logs() / f"{self._recipe.lists}.log"

    def _apt(self, *argv: str) -> list[str]:
        options = {
            **buildroot.apt_options(self._recipe),
            "APT::Architectures": ",".join(sorted({AMD64.debian, self._recipe.arch.debian})),
            "Dir::State": f"{self._state}",
            "Dir::State::status": "/var/lib/dpkg/status",
            "Dir::Cache": f"{self._state}",
            "APT::Sandbox::User": "root",
        }
        return [*argv, *(f"-o{option}={value}" for option, value in options.items())]

    def update(self) -> None:
        """Fetch the package lists."""
        with cache.lock(self._recipe.lists), step("Fetching the package lists") as progress:
            (self._state / "lists/partial").mkdir(parents=True, exist_ok=True)
            self._complete.unlink(missing_ok=True)
            self._run(progress, self._apt("apt-get", "update", "--error-on=any"))
            self._complete.touch()

    def _run(self, progress: Step, command: list[str], directory: Path | None = None) -> None:
        self._log.unlink(missing_ok=True)
        writable = [self._state] if directory is None else [self._state, directory]
        if directory is not None:
            command = ["env", "-C", f"{directory}", *command]
        run(progress, self._root.command(command, writable=writable, network=True), self._log)

    def versions(self) -> list[Version]:
        """Return the kernels that are offered with headers and source, newest first."""
        if not self._complete.exists():
            self.update()
        pattern = rf"linux-headers-([0-9.]+\+deb[0-9]+-{self._recipe.arch.debian})"
        names = self._query("search", "--names-only", f"^({pattern}|linux-source-[0-9.]+)$")
        packages = [line.split()[0] for line in names.splitlines()]
        offered = set()
        for line in self._query("madison", *packages).splitlines():
            package, version, where = (column.strip() for column in line.split("|"))
            if f" {self._recipe.kernels}/" in where:
                # One of another architecture has that in its name: `linux-headers-…:arm64`.
                offered.add((package.partition(":")[0], version))
        versions = [
            Version(match[1], version)
            for package, version in offered
            if (match := re.fullmatch(pattern, package))
        ]
        usable = (v for v in versions if (v.source, v.package) in offered)
        return sorted(usable, key=lambda version: version.order, reverse=True)

    def _query(self, *argv: str) -> str:
        return self._root.output(self._apt("apt-cache", *argv), writable=[self._state])

    def download(self, progress: Step, packages: list[str], directory: Path) -> None:
        """Download packages, given as `name=version`, into a directory."""
        directory.mkdir()
        with cache.lock(self._recipe.lists):
            self._run(progress, self._apt("apt-get", "download", *packages), directory)


def choose(versions: list[Version], wanted: str, suite: str) -> list[Version]:
    """Return the versions to try, of those that `suite` offers: all, or what `wanted` names."""
    if not versions:
        raise Failure(f"{suite} offers no kernel; type 'make update', or set MIRROR")
    wanted = wanted.strip()
    if not wanted:
        return versions
    chosen = [v for v in versions if wanted in (v.release, v.base, v.number)]
    if not chosen:
        offered = ", ".join(version.number for version in versions)
        raise Failure(f"KERNEL={wanted}: {suite} offers {offered}")
    return chosen


def newest_of_older_series(versions: list[Version]) -> Version | None:
    """Return the newest version of another series than the first: a 7.2 if that is a 7.3."""
    return next((v for v in versions if v.source != versions[0].source), None)
