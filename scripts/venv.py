# SPDX-License-Identifier: GPL-2.0
"""Runs a Python program with the packages of requirements.txt, kept in the cache.

python3 venv.py MODULE|FILE.py [ARGUMENT ...]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import cache
from report import main, run, step

_PROJECT = Path(__file__).resolve().parent.parent
_REQUIREMENTS = _PROJECT / "requirements.txt"


def _make(path: Path) -> None:
    with step("Installing the Python packages of requirements.txt") as progress:
        log = cache.logs() / "venv.log"
        log.unlink(missing_ok=True)
        run(progress, [sys.executable, "-m", "venv", path], log)
        pip: list[str | Path] = [path / "bin/python", "-m", "pip", "install", "--no-input"]
        run(progress, [*pip, "--requirement", _REQUIREMENTS], log)


def _main() -> int:
    program, *arguments = sys.argv[1:]
    key = cache.key(sys.version, sys.executable, _REQUIREMENTS.read_text())
    # Its programs name the directory that they were installed to; only its Python is used.
    python = cache.entry(f"venv-{key}", _make, space=1 << 29) / "bin/python"
    start = [program] if program.endswith(".py") else ["-m", program]
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.stdout.flush()
    os.execv(python, [f"{python}", *start, *arguments])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(_main)
