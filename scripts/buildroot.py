# SPDX-License-Identifier: GPL-2.0
"""The build roots: Debians of their own with the compilers that Debian's kernels were built with.

rustc and bindgen must be the very ones that built the kernel (the version is part of the hash of
every crate), whatever the machine itself has. QEMU and the guest's tools come from there, too. A
build root is made by mmdebstrap and entered by bubblewrap, both of which do without root.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cache
from arch import AMD64, ARM64, Arch
from report import Failure, Step, run, step

# To be raised when `_make` makes something else of the same packages.
_RECIPE = "1"

# What runs in the virtual machine.
_GUEST_PACKAGES = ("kmod", "busybox-static", "iproute2")


@dataclass(frozen=True)
class Recipe:
    """What a build root is made of."""

    suite: str
    """Debian's suite that its compilers are of."""
    kernels: str
    """The suite that the kernels are of, which these compilers have built: this one, or its
    backports."""
    gcc: str
    """The package of the C compiler."""
    arch: Arch = AMD64
    """What is built for."""
    more: tuple[str, ...] = ()
    """The packages that others have not got."""
    lists: str = "apt"
    """The name of the cache's package lists; build roots of the same suites share them."""

    @property
    def packages(self) -> tuple[str, ...]:
        """All packages that are named; what they need comes with them."""
        return (
            # what builds the kernel's Rust crates and the module
            *("rustc", "rust-src", "rustfmt", "rust-clippy", "bindgen", self.gcc, "make", "bc"),
            *("bison", "flex", "libelf-dev", "libssl-dev", "openssl", "pahole", "python3"),
            # what compares its types with those of ib_core
            "bpftool",
            # what makes and runs the virtual machine, and what runs in it
            *("qemu-system-x86", "cpio", "xz-utils", *_GUEST_PACKAGES),
            # what checks the sources
            "shellcheck",
            *self.more,
        )

    @property
    def name(self) -> str:
        """The name of the build root's entry in the cache."""
        return f"buildroot-{self.suite}-{cache.key(_RECIPE, *self.packages, *_LEFT_OUT)}"


TRIXIE = Recipe("trixie", "trixie-backports", "gcc-14")
TRIXIE_LLVM = replace(TRIXIE, more=("clang", "lld", "llvm"))
TRIXIE_ARM64 = replace(
    TRIXIE,
    arch=ARM64,
    more=("gcc-14-aarch64-linux-gnu", "qemu-system-arm"),
    lists="apt-arm64",
)
SID = Recipe("sid", "sid", "gcc-16", lists="apt-sid")

# What mmdebstrap needs for temporary files, in bytes, with room to spare.
_TEMPORARY_SPACE = 3 << 30

# Nobody reads these in there, and they are a third of it.
_LEFT_OUT = (
    *("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*"),
    *(f"/usr/src/rustc-*/src/{name}/*" for name in ("tools", "doc", "etc", "llvm-project")),
)


@dataclass(frozen=True)
class BuildRoot:
    """A build root in the cache."""

    path: Path
    recipe: Recipe = TRIXIE

    @property
    def guest(self) -> Path:
        """Where the programs are that run in the virtual machine, as in `/`."""
        return self.path if self.recipe.arch == AMD64 else self.path / "guest"

    def command(
        self,
        argv: Sequence[str | Path],
        *,
        writable: Iterable[Path] = (),
        readable: Iterable[Path] = (),
        sources: Iterable[Path] = (),
        devices: Iterable[str] = (),
        network: bool = False,
    ) -> list[str]:
        """Return the command that runs `argv` in the build root.

        The build root is read-only. `writable` and `readable` are what is visible of the machine,
        under the same paths; what is in the directories `sources` appears in `/usr/src`.
        """
        command = [
            *("bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc"),
            *(() if network else ("--unshare-net",)),
            *(() if os.geteuid() == 0 else ("--unshare-user", "--uid", "0", "--gid", "0")),
            *("--clearenv", "--setenv", "PATH", "/usr/sbin:/usr/bin", "--setenv", "HOME", "/tmp"),
            *("--setenv", "LC_ALL", "C.UTF-8"),
            *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
        ]
        for name in ("usr", "etc", "var/lib/dpkg"):
            command += ["--ro-bind", f"{self.path / name}", f"/{name}"]
        for name in ("bin", "sbin", "lib", "lib64"):
            command += ["--symlink", f"usr/{name}", f"/{name}"]
        command += ["--tmpfs", "/usr/src"]
        for directory in (self.path / "usr/src", *sources):
            for source in directory.iterdir():
                command += ["--ro-bind", f"{source}", f"/usr/src/{source.name}"]
        if network:
            command += ["--ro-bind", f"{Path('/etc/resolv.conf').resolve()}", "/etc/resolv.conf"]
        for device in devices:
            command += ["--dev-bind", device, device]
        for path in readable:
            command += ["--ro-bind", f"{path}", f"{path}"]
        for path in writable:
            command += ["--bind", f"{path}", f"{path}"]
        return [*command, "--", *(f"{word}" for word in argv)]

    def output(self, argv: Sequence[str | Path], **options: Any) -> str:
        """Run a command in the build root, options as for `command`; return what it prints."""
        result = subprocess.run(
            self.command(argv, **options), capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if result.returncode != 0:
            lines = result.stderr.strip().splitlines() or ["no message"]
            raise Failure(f"{Path(argv[0]).name}: {lines[-1]}")
        return result.stdout


def host_apt_options() -> dict[str, str]:
    """Return what the machine's apt is told of its mirror, such as a proxy."""
    try:
        dump = subprocess.run(
            ["apt-config", "dump", "--format", "%F\t%v%n"], capture_output=True, text=True
        ).stdout
    except FileNotFoundError:
        return {}
    options = dict(line.split("\t", 1) for line in dump.splitlines() if "\t" in line)
    wanted = re.compile(r"Acquire::(https?::.*|Retries|Check-Valid-Until|Check-Date)")
    return {option: value for option, value in options.items() if wanted.fullmatch(option)}


def mirror() -> list[str]:
    """Return the Debian mirror as mmdebstrap takes it; nothing stands for its default."""
    if mirror := os.environ.get("MIRROR"):
        if not re.match(r"(https?|file)://", mirror):
            raise Failure(
                f"MIRROR={mirror} is not a URL that begins with http://, https:// or file://"
            )
        return [mirror]
    try:
        release = Path("/etc/os-release").read_text()
        targets = subprocess.run(
            ["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)"],
            capture_output=True,
            text=True,
        ).stdout
    except FileNotFoundError:
        return []
    if re.search(r"^ID=debian$", release, re.MULTILINE):
        codename = re.search(r"^VERSION_CODENAME=(\w+)$", release, re.MULTILINE)
        for line in targets.splitlines():
            suite, component, uri = line.split(" ", 2)
            if codename and suite == codename[1] and component == "main" and "://" in uri:
                return [uri]
    return []


def apt_options(recipe: Recipe) -> dict[str, str]:
    """Return what apt is told in a build root."""
    options = host_apt_options()
    if recipe.suite == "sid":
        # It is valid for a week, and the mirror may be a snapshot that is older.
        options["Acquire::Check-Valid-Until"] = "false"
    return options


def _mmdebstrap(
    progress: Step, recipe: Recipe, log: Path, path: Path, temporary: Path, *arguments: str
) -> None:
    """Make a Debian in the directory `path` by mmdebstrap."""
    tarball = path / "debian.tar"
    command: list[str | Path] = [
        "mmdebstrap",
        *(f'--aptopt={option} "{value}"' for option, value in apt_options(recipe).items()),
        *(f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT),
        *arguments,
        recipe.suite,
        tarball,
        *mirror(),
    ]
    # In a user namespace mmdebstrap cannot work below a private home, and /tmp may be small.
    run(progress, command, log, env={"TMPDIR": f"{temporary}"})
    # Unpacked like this, everything belongs to the user and can be removed by the user.
    run(progress, ["tar", "-C", path, "-xf", tarball, "--exclude=./dev/*", "--no-same-owner"], log)
    tarball.unlink()


def _make(recipe: Recipe, path: Path) -> None:
    temporary = Path(os.environ.get("TMPDIR", "/var/tmp"))
    free = shutil.disk_usage(temporary).free
    if free < _TEMPORARY_SPACE:
        raise Failure(
            f"{temporary} has {free >> 20} MiB free and {_TEMPORARY_SPACE >> 20} MiB are needed;"
            " free some, or set TMPDIR to a place with more room"
        )
    what = ", ".join(("the kernel's compilers", *recipe.more))
    title = f"Making a build root: Debian {recipe.suite} with {what} (about 1 GB)"
    with step(title) as progress:
        log = cache.logs() / f"{recipe.name}.log"
        log.unlink(missing_ok=True)
        arguments = ["--variant=apt", f"--include={','.join(recipe.packages)}"]
        if recipe.kernels != recipe.suite:
            # They come from wherever the suite comes from.
            arguments.append(
                f"--setup-hook=sed -n 's/ {recipe.suite} main$/ {recipe.kernels} main/p'"
                ' "$1/etc/apt/sources.list" >"$1/etc/apt/sources.list.d/kernels.list"'
            )
        _mmdebstrap(progress, recipe, log, path, temporary, *arguments)
        (path / "etc/resolv.conf").touch()
        root = BuildRoot(path, recipe)
        if root.guest != path:
            root.guest.mkdir()
            arguments = [
                *("--variant=extract", f"--architectures={recipe.arch.debian}"),
                f"--include={','.join(('dash', *_GUEST_PACKAGES))}",
            ]
            _mmdebstrap(progress, recipe, log, root.guest, temporary, *arguments)


def ensure(recipe: Recipe = TRIXIE) -> BuildRoot:
    """Return a build root; make it unless it is in the cache."""
    cache.hold()
    path = cache.entry(recipe.name, functools.partial(_make, recipe), space=4 << 30)
    return BuildRoot(path, recipe)
