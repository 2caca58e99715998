# SPDX-License-Identifier: GPL-2.0
"""Building on a machine of one's own: the preflight, Kbuild's targets, and errors in one line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from buildroot import BuildRoot
from kernel import Kernel
from module import PROJECT

CONFIG = {
    "CONFIG_DEBUG_FS": "y",
    "CONFIG_INFINIBAND": "m",
    "CONFIG_RUST": "y",
    "CONFIG_RUSTC_VERSION_TEXT": '"rustc 1.85.1"',
}

CRATES = ("libmacros.so", "libcore.rmeta", "libpin_init.rmeta", "libkernel.rmeta")


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Make the compilers that the preflight looks for, as far as it looks at them."""
    path = tmp_path / "tools"
    path.mkdir()
    for name, script in {
        "rustc": "echo rustc 1.85.1",
        "bindgen": "true",
        "python3": "true",
    }.items():
        (path / name).write_text(f"#!/bin/sh\n{script}\n")
        (path / name).chmod(0o755)
    return path


@pytest.fixture
def kdir(tmp_path: Path) -> Path:
    """Make a kernel build tree, as far as the preflight looks at it."""
    path = tmp_path / "kdir"
    (path / "include/config").mkdir(parents=True)
    (path / "rust").mkdir()
    (path / "Makefile").touch()
    for name in CRATES:
        (path / "rust" / name).touch()
    configure(path, CONFIG)
    return path


def configure(kdir: Path, config: dict[str, str]) -> None:
    """Write a kernel's configuration."""
    lines = [f"{name}={value}\n" for name, value in config.items()]
    (kdir / "include/config/auto.conf").write_text("".join(lines))


def preflight(kdir: Path, tools: Path) -> list[str]:
    """Run the preflight and return its lines; its status must agree with whether there are any."""
    result = subprocess.run(
        [PROJECT / "scripts/preflight.sh", "7.3.0-test", kdir],
        env={"PATH": f"{tools}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert all(line.startswith("preflight: ") for line in lines), result
    assert (result.returncode != 0) == bool(lines)
    return lines


def test_preflight_finds_nothing(kdir: Path, tools: Path) -> None:
    """A tree that has everything passes."""
    assert preflight(kdir, tools) == []


def test_preflight_without_tree(tmp_path: Path, tools: Path) -> None:
    """Without headers the preflight says which to install."""
    (line,) = preflight(tmp_path / "none", tools)
    assert "no kernel build tree" in line
    assert "linux-headers-7.3.0-test" in line


def test_preflight_with_another_tree(tmp_path: Path, tools: Path) -> None:
    """A directory that is something else is no kernel tree."""
    (tmp_path / "Makefile").touch()
    (line,) = preflight(tmp_path, tools)
    assert "not configured as a kernel build tree" in line


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("CONFIG_DEBUG_FS", "CONFIG_DEBUG_FS is not set"),
        ("CONFIG_INFINIBAND", "CONFIG_INFINIBAND is not set"),
        ("CONFIG_RUST", "CONFIG_RUST is not set"),
    ],
)
def test_preflight_of_configuration(kdir: Path, tools: Path, missing: str, said: str) -> None:
    """A kernel without something is told from one that has it."""
    configure(kdir, {name: value for name, value in CONFIG.items() if name != missing})
    (line,) = preflight(kdir, tools)
    assert said in line


@pytest.mark.parametrize("release", ["6.18.44+deb13-amd64", "7.1.9-rc1", "7.0"])
def test_preflight_of_an_old_kernel(kdir: Path, tools: Path, release: str) -> None:
    """A kernel that the module was never built for is told from one that lacks something."""
    (kdir / "include/config/kernel.release").write_text(f"{release}\n")
    (line,) = preflight(kdir, tools)
    assert f"Linux {release} is too old: 7.2 or later is needed" in line


@pytest.mark.parametrize("release", ["7.2.12+deb13-amd64", "7.2", "7.10.0-rc1", "10.0"])
def test_preflight_of_a_newer_kernel(kdir: Path, tools: Path, release: str) -> None:
    """Numbers are compared as such."""
    (kdir / "include/config/kernel.release").write_text(f"{release}\n")
    assert preflight(kdir, tools) == []


@pytest.mark.parametrize("name", CRATES)
def test_preflight_without_crates(kdir: Path, tools: Path, name: str) -> None:
    """Headers without the crates can be completed."""
    (kdir / "rust" / name).unlink()
    (line,) = preflight(kdir, tools)
    assert name in line
    assert "make headers KVER=7.3.0-test" in line


@pytest.mark.parametrize(
    ("tool", "script", "said"),
    [
        ("rustc", "echo rustc 1.95.0", "rustc is rustc 1.95.0, and the kernel was built by"),
        ("rustc", "exit 127", "rustc is missing, and the kernel was built by rustc 1.85.1"),
        ("bindgen", "exit 127", "bindgen is missing"),
        ("bindgen", '[ "$1" = --version ]', "bindgen does not find libclang"),
        ("python3", "exit 1", "python3 is missing or older than 3.9"),
    ],
)
def test_preflight_of_tools(kdir: Path, tools: Path, tool: str, script: str, said: str) -> None:
    """A compiler that is missing, or not the kernel's, is named with what is needed."""
    (tools / tool).write_text(f"#!/bin/sh\n{script}\n")
    (line,) = preflight(kdir, tools)
    assert said in line


def test_preflight_names_the_kernel_of_the_tree(kdir: Path, tools: Path) -> None:
    """What is told to install is for the kernel of the tree."""
    (kdir / "include/config/kernel.release").write_text("7.4.1-tree\n")
    (kdir / "rust/libcore.rmeta").unlink()
    (line,) = preflight(kdir, tools)
    assert "make headers KVER=7.4.1-tree" in line


def test_preflight_says_all_at_once(kdir: Path, tools: Path) -> None:
    """What is missing comes in one go, a line each."""
    (kdir / "rust/libcore.rmeta").unlink()
    (tools / "rustc").write_text("#!/bin/sh\nexit 127\n")
    (tools / "bindgen").write_text("#!/bin/sh\nexit 127\n")
    assert len(preflight(kdir, tools)) == 3


def headers(chosen: Kernel, path: Path, *, complete: bool) -> Path:
    """Copy a kernel's headers, as Debian ships them or with what `make headers` adds."""
    shutil.copytree(chosen.sources, path, symlinks=True)
    if not complete:
        for name in (chosen.path / "added").read_text().splitlines():
            added = path / name
            if added.is_dir():
                shutil.rmtree(added)
            else:
                added.unlink()
    return path


def test_own_kernel(root: BuildRoot, chosen: Kernel, clone: Path, tmp_path: Path) -> None:
    """Headers are completed; then make, make modules_install and make clean work as Kbuild's."""
    sources = headers(chosen, tmp_path / "src", complete=False)
    pristine = set(clone.rglob("*"))

    def make(*arguments: str) -> subprocess.CompletedProcess[str]:
        command: list[str | Path] = [
            "make",
            "-C",
            clone,
            f"KVER={chosen.release}",
            f"KDIR={chosen.headers}",
        ]
        return subprocess.run(
            root.command([*command, *arguments], writable=[tmp_path], sources=[sources]),
            capture_output=True,
            text=True,
        )

    before = make()
    assert before.returncode != 0
    assert f"make headers KVER={chosen.release}" in before.stderr

    completed = subprocess.run(
        ["make", "-C", clone, "headers", f"KVER={chosen.release}"],
        env={**os.environ, "HEADERS_ROOT": f"{sources}"},
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed

    built = make()
    assert built.returncode == 0, built
    assert "warning" not in built.stdout + built.stderr
    assert (clone / "krdma_smoke.ko").is_file()

    installed = make("modules_install", f"INSTALL_MOD_PATH={tmp_path}")
    assert installed.returncode == 0, installed
    modules = tmp_path / "lib/modules" / chosen.release
    assert [path.name.split(".")[0] for path in modules.rglob("*.ko*")] == ["krdma_smoke"]

    cleaned = make("clean")
    assert cleaned.returncode == 0, cleaned
    assert set(clone.rglob("*")) == pristine


def test_headers_of_another_build(chosen: Kernel, tmp_path: Path) -> None:
    """Headers that are not those of the kernel that the crates were built for are left alone."""
    sources = headers(chosen, tmp_path / "src", complete=False)
    symvers = sources / f"linux-headers-{chosen.release}/Module.symvers"
    symvers.write_text(symvers.read_text() + "0x00000000\tadded\tvmlinux\tEXPORT_SYMBOL\t\n")
    result = subprocess.run(
        ["make", "headers", f"KVER={chosen.release}"],
        cwd=PROJECT,
        env={**os.environ, "HEADERS_ROOT": f"{sources}"},
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert "is of another build" in result.stderr
    rust = sources / f"linux-headers-{chosen.release}/rust"
    assert not [path for path in rust.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("target", "environment", "said"),
    [
        ("smoke", {"KERNEL": "9.9.9"}, "KERNEL=9.9.9: trixie-backports offers 7."),
        ("smoke", {"ACCEL": "kvn"}, "ACCEL=kvn is neither tcg nor kvm"),
        ("headers", {"KVER": "7.0.0-none"}, "apt-get install linux-headers-7.0.0-none"),
        ("all", {"KDIR": "/nonexistent"}, "no kernel build tree at /nonexistent"),
        ("all", {"KDIR": f"{PROJECT}"}, "is not configured as a kernel build tree"),
        ("all", {"KDIR": "/it's here"}, "has a space or a special character"),
        ("all", {"KVER": "it's"}, "has a space or a special character"),
        ("all", {"RUSTC": "/a directory/rustc"}, "has a space or a special character"),
    ],
)
def test_bad_input(target: str, environment: dict[str, str], said: str) -> None:
    """What cannot be is told in one line, and ends with an error."""
    result = subprocess.run(
        ["make", target],
        cwd=PROJECT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    lines = [line for line in result.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1, result.stderr
    assert said in lines[0]


@pytest.mark.parametrize("target", ["all", "smoke"])
def test_path_with_a_space(clone: Path, kdir: Path, target: str) -> None:
    """Kbuild cannot have a space in the path, and that is said."""
    moved = clone.rename(clone.with_name("with a space"))
    result = subprocess.run(
        ["make", target, f"KDIR={kdir}"], cwd=moved, capture_output=True, text=True
    )
    assert result.returncode != 0
    lines = [line for line in result.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1, result.stderr
    assert "has a space or a special character" in lines[0]


def test_unreachable_mirror(tmp_path: Path) -> None:
    """A mirror that does not answer is told in one line, and nothing half-made is kept."""
    result = subprocess.run(
        ["make", "smoke"],
        cwd=PROJECT,
        env={
            **os.environ,
            "XDG_CACHE_HOME": f"{tmp_path}",
            "MIRROR": "http://127.0.0.1:1/debian",
        },
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    lines = [line for line in result.stderr.splitlines() if not line.startswith("make")]
    assert len(lines) == 1, result.stderr
    assert "127.0.0.1:1" in lines[0]
    cache = tmp_path / "krdma_smoke"
    assert {path.name for path in cache.iterdir()} <= {"logs", "locks", "unfinished"}
    assert list((cache / "unfinished").iterdir()) == []


def test_help() -> None:
    """Every target that a person may type is in the help."""
    result = subprocess.run(
        ["make", "help"], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    makefile = (PROJECT / "Makefile").read_text()
    targets = {
        target
        for line in makefile.splitlines()
        if line.startswith(".PHONY: ")
        for target in line.split()[1:]
    }
    for target in targets - {"install", "help"}:
        assert re.search(rf"^  (\S+, )?{target}\b", result.stdout, re.MULTILINE), target
