# SPDX-License-Identifier: GPL-2.0
"""Checks the sources: formatting and lints of Rust, shell and Python, and the finished object.

The environment may have KERNEL, as for smoke.py.
"""

from __future__ import annotations

import os
import subprocess
import sys

import cache
import kernel
import module
import twin
from module import PROJECT
from report import Failure, main, step


def _complaints(what: str, command: list[str]) -> list[str]:
    """Run a check in the project's directory; print its complaints and return `what` if any."""
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
    return [what] if result.returncode != 0 else []


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
    wrong = [
        *_complaints("rustfmt", inside(*rustfmt, *_tracked("*.rs"))),
        *_complaints("shellcheck", inside("shellcheck", *_tracked("*.sh", ".ci/run"))),
        *_complaints("ruff format", [*python, "ruff", "format", "--check"]),
        *_complaints("ruff check", [*python, "ruff", "check"]),
        *_complaints("mypy", [*python, "mypy"]),
    ]
    with step("clippy and the warnings of W=1") as progress:
        # An object that is up to date would not be compiled, and nothing be said.
        (module.directory(chosen, "check") / "krdma_smoke.o").unlink(missing_ok=True)
        built = module.build(root, chosen, "W=1", "CLIPPY=1", variant="check")
        if built.warned:
            progress.say(built.messages)
            wrong.append("clippy or W=1")
    with step("the warnings of W=1 in the modules in C") as progress:
        builders = (("twin-check", twin.build), ("provider-check", twin.build_provider))
        for variant, build in builders:
            # As above, for each of the objects.
            cache.remove(PROJECT / "build" / f"{chosen.release}-{variant}")
            built = build(root, chosen, "W=1", variant=variant)
            if built.warned:
                progress.say(built.messages)
                wrong.append(variant)
    with step("no panic path in the object"):
        ko = module.build(root, chosen).ko
        panics = module.panics(module.undefined(root, ko))
    if panics:
        print(f"{ko} refers to {', '.join(panics)}")
        wrong.append("panic path")
    if wrong:
        raise Failure(f"not as it should be, see above: {', '.join(wrong)}")
    print("all checks passed")
    return 0


if __name__ == "__main__":
    main(_check)
