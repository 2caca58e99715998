# SPDX-License-Identifier: GPL-2.0
"""The rows of the matrix: which kernels they choose, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import archive
import cache
import custom
import matrix
import pytest
import smoke
from archive import Archive, Version
from buildroot import SID, TRIXIE, TRIXIE_ARM64, TRIXIE_LLVM, BuildRoot, Recipe
from kernel import Kernel, parse_config
from matrix import Row
from module import PROJECT, Built
from report import Failure

RECIPES = (TRIXIE, TRIXIE_LLVM, TRIXIE_ARM64, SID)

# What apt-cache says: `madison` of headers and sources in several suites.
MADISON = """\
 linux-headers-7.3.4+deb13-amd64 | 7.3.4-1~bpo13+1 | m trixie-backports/main amd64 Packages
 linux-headers-7.2.9+deb13-amd64 | 7.2.9-1~bpo13+1 | m trixie-backports/main amd64 Packages
linux-headers-7.2.12+deb13-amd64 | 7.2.12-1~bpo13+1 | m trixie-backports/main amd64 Packages
linux-headers-6.12.1+deb13-amd64 | 6.12.1-1 | m trixie/main amd64 Packages
linux-headers-7.3.4+deb13-arm64:arm64 | 7.3.4-1~bpo13+1 | m trixie-backports/main arm64 Packages
linux-headers-7.2.13+deb14-amd64 | 7.2.13-1 | m sid/main amd64 Packages
linux-source-7.3 | 7.3.4-1~bpo13+1 | m trixie-backports/main amd64 Packages
linux-source-7.2 | 7.2.12-1~bpo13+1 | m trixie-backports/main amd64 Packages
linux-source-7.2 | 7.2.13-1 | m sid/main amd64 Packages
linux-source-6.12 | 6.12.1-1 | m trixie/main amd64 Packages
"""


@pytest.mark.parametrize(
    ("recipe", "releases"),
    [
        (TRIXIE, ["7.3.4+deb13-amd64", "7.2.12+deb13-amd64"]),
        (TRIXIE_ARM64, ["7.3.4+deb13-arm64"]),
        (SID, ["7.2.13+deb14-amd64"]),
    ],
)
def test_offered_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: Recipe, releases: list[str]
) -> None:
    """Kernels are those of the suite and the architecture whose very source is there as well."""
    monkeypatch.setenv("XDG_CACHE_HOME", f"{tmp_path}")
    (cache.directory() / recipe.lists).mkdir(parents=True)
    (cache.directory() / recipe.lists / "complete").touch()

    def query(_self: Archive, command: str, *_argv: str) -> str:
        return MADISON if command == "madison" else "linux-source-7.3 - Linux\n"

    monkeypatch.setattr(Archive, "_query", query)
    versions = Archive(BuildRoot(tmp_path, recipe)).versions()
    assert [version.release for version in versions] == releases


def test_series_before() -> None:
    """The series before the newest is the next one that is there, and may not be."""
    releases = ["7.3.4+deb13-amd64", "7.3.2+deb13-amd64", "7.1.8+deb13-amd64", "7.1.7+deb13-amd64"]
    versions = [Version(release, "1") for release in releases]
    assert archive.newest_of_older_series(versions) == versions[2]
    assert archive.newest_of_older_series(versions[:2]) is None
    assert archive.newest_of_older_series([]) is None


def test_no_kernel_is_offered() -> None:
    """A suite without kernels is named."""
    with pytest.raises(Failure, match="sid offers no kernel"):
        archive.choose([], "", "sid")


def test_build_roots_are_apart() -> None:
    """The default build root has nothing of what only other rows need, and shares no entry."""
    assert not {"clang", "gcc-14-aarch64-linux-gnu", "qemu-system-arm"} & set(TRIXIE.packages)
    assert len({recipe.name for recipe in RECIPES}) == len(RECIPES)
    # Lists can be shared by recipes of the same suites and architectures only.
    lists = {(recipe.suite, recipe.kernels, recipe.arch): recipe.lists for recipe in RECIPES}
    assert len(set(lists.values())) == len(lists)
    assert TRIXIE_LLVM.lists == TRIXIE.lists


def test_fragments() -> None:
    """Every setting of the fragments must be in the configuration; what is not is named."""
    below = '# CONFIG_C=y\nCONFIG_A=y\nCONFIG_B=m\nCONFIG_TEXT="a=b"\nCONFIG_D=8\nCONFIG_E=y\n'
    config = {"CONFIG_A": "y", "CONFIG_B": "y", "CONFIG_TEXT": "a=b", "CONFIG_E": "y"}
    assert custom.refused([below], config) == ["CONFIG_B=m", "CONFIG_D=8"]
    # A later one has the last word.
    assert custom.refused([below, "CONFIG_B=y\nCONFIG_D=n\n"], config) == []


def test_vm_fragment() -> None:
    """The fragment of all kernels has RDMA and Rust."""
    config = parse_config((PROJECT / "configs/vm.config").read_text())
    assert config["CONFIG_RUST"] == "y"
    assert config["CONFIG_RDMA_RXE"] == "m"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0", "gcc 14.2.0"),
        ("aarch64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0", "gcc 14.2.0"),
        ("Debian clang version 19.1.7 (3+b1)", "clang 19.1.7"),
    ],
)
def test_compilers(text: str, name: str) -> None:
    """What built a kernel is told by its configuration."""
    config = {
        "CONFIG_RUSTC_VERSION_TEXT": "rustc 1.85.1 (4eb161250 2025-03-15) (built from a tarball)",
        "CONFIG_BINDGEN_VERSION_TEXT": "bindgen 0.71.1",
        "CONFIG_CC_VERSION_TEXT": text,
    }
    assert matrix.compilers(config) == ("1.85.1", "0.71.1", name)


@pytest.mark.parametrize(
    ("messages", "warned"),
    [
        ("  RUSTC [M] krdma_smoke.o\nwarning: unused variable", True),
        ("WARNING: modpost: missing MODULE_DESCRIPTION() in krdma_smoke.o", True),
        ("  RUSTC [M] krdma_smoke.o\n  LD [M]  krdma_smoke.ko", False),
    ],
)
def test_warnings(messages: str, warned: bool) -> None:
    """The warnings of compilers and of modpost are seen."""
    assert Built(Path("krdma_smoke.ko"), messages).warned == warned


def test_chosen_rows() -> None:
    """Rows are chosen by a part of their names."""
    assert matrix.chosen_rows([]) == list(matrix.ROWS)
    assert [row.name for row in matrix.chosen_rows(["sid", "arm64"])] == [
        "sid",
        "trixie-backports, arm64",
    ]
    with pytest.raises(Failure, match=r"no row has 'riscv' in its name; there are: trixie-"):
        matrix.chosen_rows(["sid", "riscv"])


def _row(name: str, failure: str = "") -> Row:
    def ensure() -> tuple[BuildRoot, Kernel]:
        if failure:
            raise Failure(failure)
        return BuildRoot(Path("root")), Kernel(name, Path("kernel"))

    return Row(name, ensure)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a function that runs rows, builds and guests left out, and returns the table."""
    monkeypatch.setattr(matrix, "_TABLE", tmp_path / "matrix.md")
    monkeypatch.setattr(matrix, "_build", lambda *_: Built(tmp_path / "krdma_smoke.ko", ""))
    monkeypatch.setattr(smoke, "perform", lambda *_: None)
    monkeypatch.setattr(Kernel, "config", {})

    def start(*rows: Row) -> str:
        monkeypatch.setattr(matrix, "ROWS", rows)
        assert matrix.run([]) == 0
        return (tmp_path / "matrix.md").read_text()

    return start


def test_table(run: Callable[..., str]) -> None:
    """The table has a line for each row."""
    lines = run(_row("7.3.4"), _row("7.2.1")).splitlines()
    assert [line.split(" | ")[0] for line in lines[1:]] == [
        "| kernel",
        "| ---",
        "| 7.3.4",
        "| 7.2.1",
    ]


def test_failing_row(run: Callable[..., str], tmp_path: Path) -> None:
    """A row that fails does not stop the others, is in the table, and is told in the end."""
    with pytest.raises(Failure, match=r"^1 of 3 rows failed: second: it is broken$"):
        run(_row("first"), _row("second", "it is broken"), _row("third"))
    text = (tmp_path / "matrix.md").read_text()
    assert text.count("log clean") == 2
    assert "| second | ? |" in text
