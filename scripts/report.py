# SPDX-License-Identifier: GPL-2.0
"""What the scripts tell a person: steps that move, and errors in one line."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

# How often a step shows that it moves, in seconds: on a terminal, whose line is overwritten, and
# elsewhere.
_BEAT_TERMINAL = 0.5
_BEAT_FILE = 10.0

# How long an interrupted command may take to clean up after itself, in seconds.
_GRACE = 20.0


class Failure(Exception):
    """Something went wrong; the message says what, and what the user can do, in one line."""


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(function: Callable[[], int]) -> None:
    """Run a script's function and end the process with its status, errors in one line each."""
    # Whoever closes the output or the terminal, or ends the script, finds it cleaned up.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115 - open to the end
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, _interrupt)
    try:
        status = function()
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        status = 1
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    except KeyboardInterrupt:
        print("interrupted; nothing half-made is kept", file=sys.stderr)
        status = 130
    sys.stdout.flush()
    sys.exit(status)


def markdown(rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown; the second row says how the columns are aligned."""
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


class Step:
    """A long step: says that it begins, that it moves, and how long it took."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._start = time.monotonic()
        self._terminal = sys.stdout.isatty()
        self._beat_every = _BEAT_TERMINAL if self._terminal else _BEAT_FILE
        self._next_beat = self._beat_every
        print(f"==> {title}", flush=True)

    def seconds(self) -> float:
        """Return how long the step has taken so far."""
        return time.monotonic() - self._start

    def beat(self, detail: Callable[[], str]) -> None:
        """Show that the step moves, if it is time for that."""
        if self.seconds() < self._next_beat:
            return
        self._next_beat = self.seconds() + self._beat_every
        start, end = ("\r\033[K", "") if self._terminal else ("", "\n")
        print(f"{start}    {self.seconds():.0f} s  {detail()[:90]}", end=end, flush=True)

    def say(self, text: str) -> None:
        """Print something that came up during the step."""
        print("\r\033[K" if self._terminal else "", text, sep="", flush=True)

    def done(self, outcome: str = "done") -> None:
        """Say that the step is over."""
        clear = "\r\033[K" if self._terminal else ""
        print(f"{clear}    {outcome}, {self.seconds():.1f} s", flush=True)


@contextlib.contextmanager
def step(title: str) -> Iterator[Step]:
    """Report a long step around a block of code."""
    progress = Step(title)
    try:
        yield progress
    except BaseException:
        progress.done("stopped")
        raise
    progress.done()


def _last_line(log: Path) -> str:
    """Return the last line of a log that has something in it, if any."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = file.read().decode(errors="replace").replace("\r", "\n").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _error_line(log: Path) -> str:
    """Return the line of a log that most likely says why a command failed."""
    if shutil.disk_usage(log.parent).free < 1 << 20:
        # Then the log may have no more room for the message.
        return f"No space left on device: {log.parent}"
    lines = log.read_text(errors="replace").replace("\r", "\n").split("\n")
    for mark in ("No space left on device", "error: ", "E: ", "***"):
        for line in lines:
            if mark in line:
                return line.strip().removeprefix("E: ")
    return _last_line(log)


def run(
    progress: Step,
    argv: Sequence[str | Path],
    log: Path,
    env: Mapping[str, str] | None = None,
) -> None:
    """Run a command within a step, with its output appended to a log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        # It must not go on, and write, when this process has been killed.
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "TERM", "--", *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=None if env is None else {**os.environ, **env},
        )
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=_BEAT_TERMINAL)
                    break
                progress.beat(lambda: _last_line(log))
        except BaseException:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_GRACE)
            process.kill()
            process.wait()
            raise
    if process.returncode != 0:
        raise Failure(f"{_error_line(log)} (all of it: {log})")
