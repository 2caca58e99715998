# SPDX-License-Identifier: GPL-2.0
"""What the scenarios share: a module built once, and guests to try it in.

A scenario runs on Debian's kernel, unless it is marked with the names of other systems. With
`--lab` those outside lab/ run on the debug kernel instead, with each driver that suits them.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kernel
import module
import pytest
import table
import twin
from buildroot import BuildRoot
from guest import Guest
from kernel import Kernel
from report import Failure, step
from systems import IN_TREE, SYSTEMS, System
from table import SCENARIOS, Record, Row

# A module that does not know what it was built for.
UNRECORDED = "unrecorded"

_LOGS = module.PROJECT / "build" / "tests"
_LAB = Path(__file__).parent / "lab"

# Where the programs are built that help the tests in the guest.
_PROGRAMS = module.PROJECT / "build" / "programs"


def _helpers(chosen: Kernel) -> Path:
    """Return where the kernel modules that help the tests are built."""
    return module.PROJECT / "build" / f"{chosen.release}-helpers"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know the option of `make lab`."""
    parser.addoption("--lab", action="store_true", help="try everything on the debug kernels")


def pytest_configure(config: pytest.Config) -> None:
    """Build everything once, before the tests are spread over several processes."""
    config.pluginmanager.register(table)
    config.addinivalue_line("markers", "systems(names): run it on these systems of systems.py")
    config.addinivalue_line("markers", "debian: it is about Debian's kernel")
    config.addinivalue_line("markers", "rxe: it needs soft-RoCE, or any driver will do")
    config.addinivalue_line("markers", "long: run it with --lab only")
    if os.environ.get("PYTEST_XDIST_WORKER") or config.getoption("collectonly"):
        return
    # The debug kernels take long: only those that something is to run on.
    command = [sys.executable, "-m", "pytest", *config.invocation_params.args]
    command += ["--numprocesses=0", "--collect-only", "--quiet"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout
    debug = {"", *(system.debug for name, system in SYSTEMS.items() if f"[{name}" in listed)}
    try:
        _build([system for system in SYSTEMS.values() if system.debug in debug])
    except Failure as failure:
        pytest.exit(f"error: {failure}", returncode=1)
    shutil.rmtree(_LOGS, ignore_errors=True)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each scenario on the systems that it is for."""
    test = metafunc.definition
    marked = test.get_closest_marker("systems")
    names = marked.args if marked else ()
    debian = test.get_closest_marker("debian") or test.path.is_relative_to(_LAB)
    if metafunc.config.getoption("--lab") and not debian:
        names = ("kasan",) if test.get_closest_marker("rxe") else ("kasan", "kasan-siw")
    if names and "system" in metafunc.fixturenames:
        metafunc.parametrize("system", names, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for the lab only; in the lab, what has no debug kernel to run on."""
    if config.getoption("--lab"):
        left_out = [item for item in items if not SYSTEMS[table.system_of(item)].debug]
    else:
        left_out = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _build(systems: list[System]) -> None:
    chosen = kernel.ensure(os.environ.get("KERNEL", ""))[1]
    # The workers must not choose another kernel.
    os.environ["KERNEL"] = chosen.release
    for system in systems:
        system.ensure()
    with step(f"Building the modules for Linux {chosen.release} and what else it is tried on"):
        # Two that differ in the driver have the same kernel.
        for system in {system.directory(): system for system in systems}.values():
            root, running = system.ensure()
            module.build(root, running, variant=system.variant)
            path = _helpers(running)
            shutil.copytree(module.PROJECT / "tests/helpers", path, dirs_exist_ok=True)
            module.kbuild(root, running, path, "modules")
        # As on a machine that has the kernel's headers, but not the kernel.
        root, chosen = SYSTEMS[IN_TREE].ensure()
        module.build(root, chosen, "IB_CORE=", variant=UNRECORDED)
        for source in (module.PROJECT / "tests/programs").glob("*.c"):
            module.compile_program(root, source, _PROGRAMS / source.stem, "-static")
        twin.build(root, chosen)
        twin.build_provider(root, chosen)
        twin.build_plugin(root)
        twin.build_mark(root)


@pytest.fixture(scope="session")
def chosen() -> Kernel:
    """Return Debian's kernel that is tested."""
    return SYSTEMS[IN_TREE].ensure()[1]


@pytest.fixture(scope="session")
def root() -> BuildRoot:
    """Return the build root of that kernel."""
    return SYSTEMS[IN_TREE].ensure()[0]


@pytest.fixture
def system(request: pytest.FixtureRequest) -> System:
    """Return the system that runs in the guests."""
    return SYSTEMS[getattr(request, "param", IN_TREE)]


@pytest.fixture(scope="session")
def modules(chosen: Kernel) -> dict[str, Path]:
    """Return the module for Debian's kernel, by the name of the RDMA stack it was built for."""
    built = {name: it.directory() for name, it in SYSTEMS.items() if not it.debug}
    built[UNRECORDED] = module.directory(chosen, UNRECORDED)
    return {name: path / "krdma_smoke.ko" for name, path in built.items()}


@pytest.fixture(scope="session")
def ko(modules: dict[str, Path]) -> Path:
    """Return the module for the kernel's own ib_core."""
    return modules[IN_TREE]


@pytest.fixture
def new_guest(
    request: pytest.FixtureRequest, modules: dict[str, Path], system: System
) -> Callable[..., Guest]:
    """Return a function that makes a guest, which is not booted yet.

    It takes how many processors that has, and what module in place of the usual one.
    """
    name = re.sub(r"\W+", "-", request.node.name)
    root, running = system.ensure()
    usual = system.directory() / "krdma_smoke.ko"
    files = {
        **{f"for-{built}.ko": ko for built, ko in modules.items()},
        "load.sh": module.PROJECT / "scripts/load.sh",
        "timeout": root.guest / "usr/bin/timeout",
        **{path.name: path for path in (*_helpers(running).glob("*.ko"), *_PROGRAMS.iterdir())},
    }
    if system is SYSTEMS[IN_TREE]:
        files[f"{twin.NAME}.ko"] = twin.directory(running) / f"{twin.NAME}.ko"
    numbers = itertools.count()

    def make(processors: int = 2, ko: Path = usual) -> Guest:
        return Guest(
            root,
            running,
            {**files, "krdma_smoke.ko": ko},
            log=_LOGS / f"{name}-{next(numbers)}.log",
            processors=processors,
            memory=system.memory,
            driver=system.driver,
        )

    return make


@pytest.fixture
def boot(
    request: pytest.FixtureRequest,
    new_guest: Callable[..., Guest],
    record_property: Record,
) -> Iterator[Callable[..., Guest]]:
    """Return a function that boots a guest; in the end its kernel log must be clean.

    It takes what `new_guest` does.
    """
    guests: list[Guest] = []
    with ExitStack() as exits:

        def start(**options: Any) -> Guest:
            guests.append(exits.enter_context(new_guest(**options)))
            return guests[-1]

        begin = time.monotonic()
        leaks: list[str] = []
        is_row = request.config.getoption("--lab") and not request.node.path.is_relative_to(_LAB)
        try:
            yield start
            for guest in guests:
                # Whatever the kernel still has to say about what was done to it.
                if not guest.ended:
                    guest.run("true")
                if is_row:
                    leaks += guest.leaks()
        finally:
            if is_row:
                splats = sum(len(guest.splats()) for guest in guests)
                seconds = time.monotonic() - begin
                name = table.system_of(request.node)
                table.record(
                    record_property, Row(SCENARIOS, name, 1, 1, len(leaks), splats, seconds)
                )
    assert not leaks
    assert not [line for guest in guests for line in guest.splats()]


@pytest.fixture
def guest(boot: Callable[..., Guest]) -> Guest:
    """Return a freshly booted guest."""
    return boot()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Copy the sources, for targets that write beside them."""
    path = tmp_path / "clone"
    ignored = shutil.ignore_patterns("build", ".git", "rust-project.json", "*.ko", "*.o", "*.cmd")
    shutil.copytree(module.PROJECT, path, ignore=ignored)
    return path
