# SPDX-License-Identifier: GPL-2.0
"""Checks the sources: formatting and lints of Rust, shell and Python, and the finished object.

The environment may have KERNEL, as for smoke.py.
"""

from __future__ import annotations

import os
import subprocess
import sys

import kernel
import module
from module import PROJECT
from report import Failure, main, step


def _run(what: str, command: list[str]) -> bool:
    """Run a check in the project's directory; print what it complains about."""
    with step(what) as progress:
        result = subprocess.run(
            command,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if result.returncode != 0:
            progress.say(result.stdout)
    return result.returncode == 0


def _tracked(*patterns: str) -> list[str]:
    output = subprocess.run(
        ["git", "-C", PROJECT, "ls-files", "--", *patterns],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [f"{PROJECT / name}" for name in output.splitlines()]


def _check() -> int:
    root, chosen = kernel.ensure(os.environ.get("KERNEL", ""))
    config = f"/usr/src/linux-headers-{chosen.release.rpartition('-')[0]}-common/.rustfmt.toml"
    python = [sys.executable, "-m"]

    def inside(*command: str) -> list[str]:
        return root.command(command, readable=[PROJECT], sources=[chosen.sources])

    rustfmt = ["rustfmt", "--check", "--edition=2021", "--config-path", config]
    good = [
        _run(
            "rustfmt, with the kernel's configuration",
            inside(*rustfmt, *_tracked("*.rs")),
        ),
        _run("shellcheck", inside("shellcheck", *_tracked("*.sh", ".ci/run"))),
        _run("ruff format", [*python, "ruff", "format", "--check"]),
        _run("ruff check", [*python, "ruff", "check"]),
        _run("mypy", [*python, "mypy"]),
    ]
    with step("clippy and the warnings of W=1") as progress:
        # An object that is up to date would not be compiled, and nothing be said.
        (module.directory(chosen, "check") / "krdma_smoke.o").unlink(missing_ok=True)
        messages = module.build(root, chosen, "W=1", "CLIPPY=1", variant="check").messages
        if "warning" in messages:
            progress.say(messages)
            good.append(False)
    with step("no panic path in the object"):
        ko = module.build(root, chosen).ko
        undefined = root.output(["nm", "--undefined-only", ko], readable=[PROJECT])
        panics = [line.split()[-1] for line in undefined.splitlines() if "panicking" in line]
    if panics:
        raise Failure(f"{ko} can panic: {', '.join(panics)}")
    if not all(good):
        raise Failure("the checks found something, see above")
    print("all checks passed")
    return 0


if __name__ == "__main__":
    main(_check)
