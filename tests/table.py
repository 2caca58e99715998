# SPDX-License-Identifier: GPL-2.0
"""The table of the lab: what was tried on the debug kernels, and what came of it.

A test in lab/ makes rows of its own; the scenarios get one for each system. pytest prints the
table in the end, and that of `make lab` stays in `build/lab.md`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass

import module
import pytest
from guest import Guest
from report import markdown
from systems import IN_TREE, SYSTEMS

_FILE = module.PROJECT / "build" / "lab.md"

_HEADER = ("what", "kernel", "driver", "attempts", "survived", "leaks", "splats", "time")

# The property by which a test tells of its rows, across the processes of pytest-xdist.
_PROPERTY = "lab"

# What records a property of a test.
Record = Callable[[str, object], None]

# The row of the tests that make none.
SCENARIOS = "scenarios"


@dataclass
class Row:
    """What was tried on a system, and what came of it."""

    what: str
    system: str
    attempts: int = 0
    survived: int = 0
    leaks: int = 0
    splats: int = 0
    seconds: float = 0.0

    def cells(self) -> list[str]:
        """Return the row as the table has it."""
        system = SYSTEMS[self.system]
        minutes, seconds = divmod(round(self.seconds), 60)
        numbers = (self.attempts, self.survived, self.leaks, self.splats)
        names = [self.what, system.ensure()[1].release, system.driver]
        return [*names, *(f"{number:,}" for number in numbers), f"{minutes}:{seconds:02}"]


# Makes a row, by what is tried and the guest that it is tried in.
NewRow = Callable[[str, Guest], AbstractContextManager[Row]]


def system_of(item: pytest.Item) -> str:
    """Return the name of the system that a test runs on."""
    callspec = getattr(item, "callspec", None)
    name: str = callspec.params.get("system", IN_TREE) if callspec else IN_TREE
    return name


def record(record_property: Record, row: Row) -> None:
    """Have a row in the table."""
    record_property(_PROPERTY, json.dumps(asdict(row)))


@pytest.fixture
def row(request: pytest.FixtureRequest, record_property: Record) -> NewRow:
    """Return what makes a row of a test, which gets into the table whatever happens."""

    @contextmanager
    def make(what: str, guest: Guest) -> Iterator[Row]:
        begin, before = time.monotonic(), len(guest.splats())
        made = Row(what, system_of(request.node))
        try:
            yield made
        finally:
            made.splats = len(guest.splats()) - before
            made.seconds = time.monotonic() - begin
            record(record_property, made)

    return make


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print the table, if there are rows for it."""
    reports = [
        report
        for kind in terminalreporter.stats.values()
        for report in kind
        if isinstance(report, pytest.TestReport)
    ]
    failed = {report.nodeid for report in reports if report.failed}
    rows: dict[tuple[str, str], Row] = {}
    for report in reports:
        if report.when != "teardown":
            continue
        for name, value in report.user_properties:
            if name != _PROPERTY:
                continue
            row = Row(**json.loads(str(value)))
            if row.what == SCENARIOS:
                row.survived = int(report.nodeid not in failed)
            total = rows.setdefault((row.what, row.system), Row(row.what, row.system))
            total.attempts += row.attempts
            total.survived += row.survived
            total.leaks += row.leaks
            total.splats += row.splats
            total.seconds += row.seconds
    if not rows:
        return
    lines = [row.cells() for row in rows.values()]
    text = markdown([_HEADER, ["---"] * len(_HEADER), *lines])
    terminalreporter.section("lab")
    terminalreporter.write_line(text)
    if config.getoption("--lab"):
        _FILE.write_text(f"<!-- SPDX-License-Identifier: GPL-2.0 -->\n{text}")
        terminalreporter.write_line(f"({_FILE})")
