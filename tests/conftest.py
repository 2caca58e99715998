# SPDX-License-Identifier: GPL-2.0
"""What the scenarios share: a module built once, and guests to try it in."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import kernel
import module
import pytest
import vendor
from buildroot import BuildRoot
from guest import Guest
from report import Failure, step

# The name of the kernel's own RDMA stack, beside those of vendors'.
IN_TREE = "in-tree"

# A module that does not know what it was built for.
UNRECORDED = "unrecorded"

_LOGS = module.PROJECT / "build" / "tests"


def _helpers(chosen: kernel.Kernel) -> Path:
    """Return where the kernel modules that help the tests are built."""
    return module.PROJECT / "build" / f"{chosen.release}-helpers"


def pytest_configure(config: pytest.Config) -> None:
    """Build everything once, before the tests are spread over several processes."""
    if os.environ.get("PYTEST_XDIST_WORKER") or config.getoption("collectonly"):
        return
    try:
        _build()
    except Failure as failure:
        pytest.exit(f"error: {failure}", returncode=1)
    shutil.rmtree(_LOGS, ignore_errors=True)


def _stack(root: BuildRoot, chosen: kernel.Kernel, name: str) -> tuple[kernel.Kernel, str]:
    """Return a kernel with an RDMA stack, and the variant of what is built for that."""
    if name == IN_TREE:
        return chosen, ""
    return vendor.ensure(root, chosen, name), f"vendor-{name}"


def _build() -> None:
    root, chosen = kernel.ensure(os.environ.get("KERNEL", ""))
    # The workers must not choose another kernel.
    os.environ["KERNEL"] = chosen.release
    stacks = [_stack(root, chosen, name) for name in (IN_TREE, *vendor.FLAVOURS)]
    with step(f"Building the modules for Linux {chosen.release}"):
        for stacked, variant in stacks:
            module.build(root, stacked, variant=variant)
        # As on a machine that has the kernel's headers, but not the kernel.
        module.build(root, chosen, "IB_CORE=", variant=UNRECORDED)
        path = _helpers(chosen)
        shutil.copytree(module.PROJECT / "tests/helpers", path, dirs_exist_ok=True)
        module.kbuild(root, chosen, path, "modules")


@pytest.fixture(scope="session")
def chosen() -> kernel.Kernel:
    """Return the kernel that is tested."""
    return kernel.ensure(os.environ["KERNEL"])[1]


@pytest.fixture(scope="session")
def root() -> BuildRoot:
    """Return the build root."""
    return kernel.ensure(os.environ["KERNEL"])[0]


@pytest.fixture
def stack(request: pytest.FixtureRequest) -> str:
    """Return the name of the RDMA stack that runs in the guests."""
    return getattr(request, "param", IN_TREE)


@pytest.fixture(scope="session")
def modules(root: BuildRoot, chosen: kernel.Kernel) -> dict[str, Path]:
    """Return the module, by the name of the stack that it was built for."""
    built = {
        name: module.directory(*_stack(root, chosen, name)) / "krdma_smoke.ko"
        for name in (IN_TREE, *vendor.FLAVOURS)
    }
    return {**built, UNRECORDED: module.directory(chosen, UNRECORDED) / "krdma_smoke.ko"}


@pytest.fixture(scope="session")
def ko(modules: dict[str, Path]) -> Path:
    """Return the module for the kernel's own ib_core."""
    return modules[IN_TREE]


@pytest.fixture
def boot(
    request: pytest.FixtureRequest,
    root: BuildRoot,
    chosen: kernel.Kernel,
    modules: dict[str, Path],
    stack: str,
) -> Iterator[Callable[[], Guest]]:
    """Return a function that boots a guest; in the end its kernel log must be clean."""
    name = re.sub(r"\W+", "-", request.node.name)
    helpers = _helpers(chosen)
    files = {
        "krdma_smoke.ko": modules[stack],
        **{f"for-{built}.ko": ko for built, ko in modules.items()},
        "load.sh": module.PROJECT / "scripts/load.sh",
        **{path.name: path for path in (helpers / "events.ko", helpers / "failpoint.ko")},
    }
    running = _stack(root, chosen, stack)[0]
    guests: list[Guest] = []
    with ExitStack() as exits:

        def start() -> Guest:
            log = _LOGS / f"{name}-{len(guests)}.log"
            guests.append(exits.enter_context(Guest(root, running, files, log=log)))
            return guests[-1]

        yield start
        for guest in guests:
            # Whatever the kernel still has to say about what was done to it.
            guest.run("true")
    splats = [line for guest in guests for line in guest.splats()]
    assert not splats


@pytest.fixture
def guest(boot: Callable[[], Guest]) -> Guest:
    """Return a freshly booted guest."""
    return boot()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Copy the sources, for targets that write beside them."""
    path = tmp_path / "clone"
    ignored = shutil.ignore_patterns("build", ".git", "rust-project.json", "*.ko", "*.o", "*.cmd")
    shutil.copytree(module.PROJECT, path, ignore=ignored)
    return path
