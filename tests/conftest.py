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
from buildroot import BuildRoot
from guest import Guest
from report import Failure, step

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


def _build() -> None:
    root, chosen = kernel.ensure(os.environ.get("KERNEL", ""))
    # The workers must not choose another kernel.
    os.environ["KERNEL"] = chosen.release
    with step(f"Building the modules for Linux {chosen.release}"):
        module.build(root, chosen)
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


@pytest.fixture(scope="session")
def ko(chosen: kernel.Kernel) -> Path:
    """Return the module."""
    return module.directory(chosen) / "krdma_smoke.ko"


@pytest.fixture
def boot(
    request: pytest.FixtureRequest, root: BuildRoot, chosen: kernel.Kernel, ko: Path
) -> Iterator[Callable[[], Guest]]:
    """Return a function that boots a guest; in the end its kernel log must be clean."""
    name = re.sub(r"\W+", "-", request.node.name)
    helpers = _helpers(chosen)
    files = {path.name: path for path in (ko, helpers / "events.ko", helpers / "failpoint.ko")}
    guests: list[Guest] = []
    with ExitStack() as stack:

        def start() -> Guest:
            log = _LOGS / f"{name}-{len(guests)}.log"
            guests.append(stack.enter_context(Guest(root, chosen, files, log=log)))
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
