# SPDX-License-Identifier: GPL-2.0
"""The scripts' own logic: the cache, the choice of a kernel, what counts as a splat."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import archive
import buildroot
import cache
import kernel
import pytest
import vm
from archive import Version
from buildroot import BuildRoot
from guest import Guest
from kernel import Kernel
from module import PROJECT
from report import Failure

SCRIPTS = PROJECT / "scripts"


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have the scripts use an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}")
    return tmp_path / "krdma_smoke"


def entries(directory: Path) -> list[str]:
    """Return the names of what a cache holds that could be taken for whole."""
    return [path.name for path in directory.iterdir() if path.name.startswith("entry")]


def python(script: str, tmp_path: Path) -> subprocess.Popen[str]:
    """Start a Python script that uses the cache in `tmp_path`."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "XDG_CACHE_HOME": f"{tmp_path}", "PYTHONPATH": f"{SCRIPTS}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_entry_is_made_once(empty_cache: Path) -> None:
    """What is in the cache is not made again."""
    made: list[Path] = []
    for _ in range(2):
        path = cache.entry("entry", made.append, space=0)
        assert path == empty_cache / "entry"
        assert path.is_dir()
    assert len(made) == 1


def test_failed_entry_is_not_kept(empty_cache: Path) -> None:
    """What fails leaves nothing, and can be made later."""

    def fail(path: Path) -> None:
        (path / "half").touch()
        raise Failure("no")

    with pytest.raises(Failure, match="no"):
        cache.entry("entry", fail, space=0)
    assert entries(empty_cache) == []
    assert list((empty_cache / "unfinished").iterdir()) == []
    path = cache.entry("entry", lambda path: (path / "whole").touch(), space=0)
    assert [file.name for file in path.iterdir()] == ["whole"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_interrupted_entry_is_not_kept(empty_cache: Path, how: signal.Signals) -> None:
    """What is interrupted, however roughly, is never taken for whole."""
    script = """
        import signal, subprocess, cache, report

        # Whoever runs the tests may ignore it.
        signal.signal(signal.SIGINT, signal.default_int_handler)

        def make(path):
            (path / "half").touch()
            with report.step("a long step") as progress:
                report.run(progress, ["sh", "-c", "echo ready; exec sleep 1000"], path / "log")

        report.main(lambda: bool(cache.entry("entry", make, space=0)))
    """
    process = python(script, empty_cache.parent)
    unfinished = empty_cache / "unfinished/entry/log"
    while not (unfinished.exists() and unfinished.read_text() == "ready\n"):
        assert process.poll() is None
    process.send_signal(how)
    output, _ = process.communicate()
    assert process.returncode == (-how if how == signal.SIGKILL else 130), output
    assert entries(empty_cache) == []
    path = cache.entry("entry", lambda path: (path / "whole").touch(), space=0)
    assert [file.name for file in path.iterdir()] == ["whole"]


def test_entry_made_by_two_at_once(empty_cache: Path) -> None:
    """Of two processes that need the same entry one makes it, and the other waits and uses it."""
    script = """
        import pathlib, sys, cache

        def make(path):
            print("making", flush=True)
            sys.stdin.readline()
            (path / "whole").touch()

        print(list(cache.entry("entry", make, space=0).iterdir()))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    env = {**os.environ, "XDG_CACHE_HOME": f"{empty_cache.parent}", "PYTHONPATH": f"{SCRIPTS}"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "making\n"
        with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True) as second:
            assert second.stdout is not None
            assert "waiting for another process" in second.stdout.readline()
            first_output, _ = first.communicate("go on\n")
            second_output, _ = second.communicate()
    assert "whole" in first_output
    assert "whole" in second_output
    assert "making" not in second_output


def test_entry_needs_space(empty_cache: Path) -> None:
    """Too little space is told before anything is done."""
    made: list[Path] = []
    with pytest.raises(Failure, match=r"MiB free and .* MiB are needed"):
        cache.entry("entry", made.append, space=1 << 60)
    assert made == []
    assert entries(empty_cache) == []


def test_cache_in_use_is_not_emptied(empty_cache: Path) -> None:
    """A cache that a process uses is not emptied under it; afterwards it is."""
    empty_cache.mkdir()
    user = """
        import sys, cache

        cache.hold()
        print("using", flush=True)
        sys.stdin.readline()
    """
    command = [sys.executable, "-c", textwrap.dedent(user)]
    env = {**os.environ, "XDG_CACHE_HOME": f"{empty_cache.parent}", "PYTHONPATH": f"{SCRIPTS}"}
    clean = [sys.executable, "-B", f"{SCRIPTS}/cache.py", "clean"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "using\n"
        refused = subprocess.run(clean, env=env, capture_output=True, text=True)
        process.communicate("done\n")
    assert refused.returncode != 0
    assert "the cache is in use" in refused.stderr
    assert empty_cache.is_dir()
    assert subprocess.run(clean, env=env, capture_output=True).returncode == 0
    assert not empty_cache.exists()


def test_relative_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that would be another one in each directory is refused."""
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    with pytest.raises(Failure, match="is not an absolute path"):
        cache.directory()


@pytest.mark.parametrize("mirror", ["--help", "/etc/passwd", "ftp://mirror.invalid", "mirror"])
def test_bad_mirror(monkeypatch: pytest.MonkeyPatch, mirror: str) -> None:
    """A mirror that is no URL is refused before anything is done with it."""
    monkeypatch.setenv("MIRROR", mirror)
    with pytest.raises(Failure, match="is not a URL"):
        buildroot.mirror()


def test_disk_runs_full(tmp_path: Path) -> None:
    """A disk that runs full while an entry is made leaves no entry."""
    script = """
        import cache, report

        def make(path):
            with report.step("filling") as progress:
                command = ["dd", "if=/dev/zero", f"of={path}/fill", "bs=1M"]
                report.run(progress, command, path / "log")

        report.main(lambda: bool(cache.entry("entry", make, space=0)))
    """
    mount = f'mount -t tmpfs -o size=4m none "{tmp_path}"'
    run = f'PYTHONPATH="{SCRIPTS}" XDG_CACHE_HOME="{tmp_path}" "{sys.executable}" -c "$1"'
    result = subprocess.run(
        [
            *("unshare", "--mount", "--map-root-user", "sh", "-c"),
            f'{mount} && ! {run} && find "{tmp_path}" -name "entry*" -o -name fill',
            *("sh", textwrap.dedent(script)),
        ],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result
    assert "No space left on device" in result.stderr
    assert result.stdout.splitlines()[-1].endswith("/locks/entry")


def test_key_depends_on_every_part() -> None:
    """Entries made from different things have different names."""
    keys = {cache.key("a", "b"), cache.key("ab"), cache.key("b", "a"), cache.key("a", "b", "")}
    assert len(keys) == 4


VERSIONS = [
    Version("7.3.4+deb13-amd64", "7.3.4-1~bpo13+1"),
    Version("7.2.12+deb13-amd64", "7.2.12-1~bpo13+1"),
    Version("7.2.9+deb13-amd64", "7.2.9-1~bpo13+1"),
]


@pytest.mark.parametrize("wanted", ["7.2.12", " 7.2.12 ", "7.2.12+deb13", "7.2.12+deb13-amd64"])
def test_chosen_kernel(wanted: str) -> None:
    """A kernel can be named by its version or by its release."""
    assert archive.choose(VERSIONS, wanted, "trixie-backports") == [VERSIONS[1]]


def test_default_kernel() -> None:
    """By default the newest is tried first, by number and not by letter."""
    assert archive.choose(VERSIONS, "", "trixie-backports") == VERSIONS
    assert sorted(VERSIONS, key=lambda version: version.order, reverse=True) == VERSIONS


@pytest.mark.parametrize("wanted", ["7.2", "7.2.1", "9.9.9", "7.2.12-amd64"])
def test_unknown_kernel(wanted: str) -> None:
    """A kernel that the suite does not offer is refused, with those that it offers."""
    with pytest.raises(Failure, match=r"trixie-backports offers 7\.3\.4, 7\.2\.12, 7\.2\.9"):
        archive.choose(VERSIONS, wanted, "trixie-backports")


def test_source_package() -> None:
    """The source of a kernel is found by its first two numbers."""
    assert [version.source for version in VERSIONS[:2]] == ["linux-source-7.3", "linux-source-7.2"]


def symbols(tmp_path: Path, exported: str, rebuilt: str) -> tuple[Path, Path]:
    """Write what a kernel exports and what the rebuilt crates do, as Kbuild writes them."""
    symvers, rust = tmp_path / "Module.symvers", tmp_path / "rust"
    rust.mkdir()
    lines = [f"0x00000000\t{name}\tvmlinux\tEXPORT_SYMBOL_GPL\t\n" for name in exported.split()]
    symvers.write_text("".join(lines))
    lines = [f"EXPORT_SYMBOL_RUST_GPL({name});\n" for name in rebuilt.split()]
    (rust / "exports_core_generated.h").write_text("".join(lines))
    return symvers, rust


def test_crates_that_fit(tmp_path: Path) -> None:
    """Crates fit a kernel if they have all of its Rust symbols; others do not matter."""
    assert kernel.compare_symbols(*symbols(tmp_path, "_Ra _Rb memcpy", "_Rb _Ra _Rc")) == 2


@pytest.mark.parametrize("exported", ["_Ra _Rb _Rx", "memcpy", ""])
def test_crates_that_do_not_fit(tmp_path: Path, exported: str) -> None:
    """A symbol that is missing, or a kernel without Rust symbols, stops the build."""
    with pytest.raises(Failure, match="do not fit"):
        kernel.compare_symbols(*symbols(tmp_path, exported, "_Ra _Rb _Rxy"))


@pytest.mark.parametrize(
    "line",
    [
        "kernel BUG at mm/slub.c:448!",
        "WARNING: CPU: 0 PID: 1 at drivers/infiniband/core/verbs.c:2164",
        "WARNING: possible circular locking dependency detected",
        "BUG: KASAN: slab-use-after-free in rxe_destroy_qp",
        "BUG kmalloc-64 (Tainted: G           OE      ): Right Redzone overwritten",
        "INFO: trying to register non-static key.",
        "Oops: Oops: 0000 [#1] SMP NOPTI",
        "refcount_t: underflow; use-after-free.",
        "Kernel panic - not syncing: Fatal exception",
        "INFO: task rmmod:123 blocked for more than 120 seconds.",
        "UBSAN: array-index-out-of-bounds in core.c:1:2",
        'rust_kernel: panicked at "x", krdma_smoke.rs:1:1',
    ],
)
def test_splat(line: str) -> None:
    """Lines that say that something is wrong are found."""
    assert vm.SPLAT.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "krdma_smoke: resource smoke failed on rxe0, ret=-12: out of memory",
        "infiniband rxe0: set active",
        "net0 speed is unknown, defaulting to 1000",
    ],
)
def test_no_splat(line: str) -> None:
    """Ordinary lines are left alone."""
    assert not vm.SPLAT.search(line)


class Counting(BuildRoot):
    """A build root that counts how often QEMU is run, which ends at once the first few times."""

    def __init__(self, root: BuildRoot, failures: int = 0) -> None:
        """Make one that is otherwise like another."""
        super().__init__(root.path, root.recipe)
        self.attempts: list[Sequence[str | Path]] = []
        self.failures = failures

    def command(self, argv: Sequence[str | Path], **options: Any) -> list[str]:
        """Return the command that runs another one in it."""
        if argv[0] == self.recipe.arch.qemu[0]:
            self.attempts.append(argv)
            if len(self.attempts) <= self.failures:
                argv = ["false"]
        return super().command(argv, **options)


def test_guest_is_booted_again(tmp_path: Path, chosen: Kernel, root: BuildRoot) -> None:
    """A guest that does not come up is given another try."""
    flaky = Counting(root, failures=1)
    with vm.Vm(flaky, chosen, {}, log=tmp_path / "kernel.log") as guest:
        assert guest.output("echo here") == "here\n"
    assert len(flaky.attempts) == 2


def test_kernel_that_panics_is_not_booted_again(
    tmp_path: Path, chosen: Kernel, root: BuildRoot
) -> None:
    """What goes wrong while a kernel boots is not hidden by another try, which may go well."""
    counting = Counting(root)
    log = tmp_path / "kernel.log"
    without_init = vm.Vm(counting, chosen, {}, log=log, parameters=("rdinit=/none",))
    with pytest.raises(vm.GuestDied), without_init:
        pass
    assert any("Kernel panic" in line for line in without_init.splats())
    assert len(counting.attempts) == 1


def test_silent_guest_is_asked(
    new_guest: Callable[..., Guest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guest that is stuck says what its processors do before it is ended."""

    def be_silent() -> None:
        with new_guest() as guest:
            monkeypatch.setattr(vm, "_SILENCE", 1.0)
            guest.run("sleep 1000000")

    with pytest.raises(vm.GuestDied) as failure:
        be_silent()
    assert "NMI backtrace for cpu 1" in "\n".join(failure.value.__notes__)


def test_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mirror that was named is used."""
    monkeypatch.setenv("MIRROR", "http://mirror.invalid/debian")
    assert buildroot.mirror() == ["http://mirror.invalid/debian"]


def test_every_file_has_a_licence() -> None:
    """Every file says under which licence it is."""
    output = subprocess.run(
        ["git", "-C", PROJECT, "ls-files"], check=True, capture_output=True, text=True
    ).stdout
    names = set(output.splitlines()) - {"LICENSE"}
    assert {"Kbuild", "Makefile", "krdma_smoke.rs", "README.md"} <= names
    for name in names:
        head = (PROJECT / name).read_text().splitlines()[:3]
        assert any("SPDX-License-Identifier: GPL-2.0" in line for line in head), name
