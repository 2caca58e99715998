# SPDX-License-Identifier: GPL-2.0
"""The user's cache: what was downloaded or built once, whole or not at all.

An entry is a directory named for what it was made from. It is made under another name and renamed
when it is complete, so that work which was interrupted is never taken for whole. Every clone of the
project uses the same cache.

    python3 cache.py clean      say what is there, and remove it
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from report import Failure, main

_held: list[TextIO] = []


def directory() -> Path:
    """Return the cache's directory, which may not exist yet."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    if not base.is_absolute():
        raise Failure(f"XDG_CACHE_HOME={base} is not an absolute path")
    return base / "krdma_smoke"


def logs() -> Path:
    """Return the directory of the logs of what went into the cache."""
    path = directory() / "logs"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; set XDG_CACHE_HOME to another place") from error
    return path


def key(*parts: str) -> str:
    """Return a short name for what an entry is made from."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _lock_file(name: str) -> TextIO:
    path = logs().parent / "locks" / name
    path.parent.mkdir(exist_ok=True)
    return path.open("w")


def hold() -> None:
    """Keep the cache from being emptied for as long as this process lives."""
    file = _lock_file("in-use")
    fcntl.flock(file, fcntl.LOCK_SH)
    _held.append(file)


@contextlib.contextmanager
def lock(name: str) -> Iterator[None]:
    """Keep other processes out for a block of code; the kernel lifts the lock if this one dies."""
    with _lock_file(name) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"    waiting for another process that is making {name}", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def remove(path: Path) -> None:
    """Remove a directory tree, whoever owns what is in it."""
    try:
        shutil.rmtree(path)
    except PermissionError:
        # mmdebstrap, killed in a user namespace, leaves files of that namespace's users.
        subprocess.run(["unshare", "--map-root-user", "--map-auto", "rm", "-rf", path], check=True)
    except FileNotFoundError:
        pass


def entry(name: str, make: Callable[[Path], None], space: int) -> Path:
    """Return the entry `name`; unless it is there already, have it made in an empty directory.

    `space` is how many bytes have to be free to make it, with room to spare.
    """
    path = directory() / name
    if path.is_dir():
        return path
    with lock(name):
        if path.is_dir():
            return path
        unfinished = directory() / "unfinished" / name
        remove(unfinished)
        unfinished.mkdir(parents=True)
        free = shutil.disk_usage(unfinished).free
        if free < space:
            remove(unfinished)
            raise Failure(
                f"{directory()} has {free >> 20} MiB free and {space >> 20} MiB are needed;"
                " free some, or set XDG_CACHE_HOME to a place with more room"
            )
        try:
            make(unfinished)
        except BaseException:
            remove(unfinished)
            raise
        # The data has to be on the disk before the name is.
        subprocess.run(["sync", "--file-system", unfinished], check=True)
        unfinished.rename(path)
        return path


def _clean() -> int:
    if not directory().is_dir():
        print(f"{directory()} does not exist: nothing to free")
        return 0
    with contextlib.ExitStack() as stack:
        for path in (directory() / "locks").glob("*"):
            file = stack.enter_context(path.open("w"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Failure(f"the cache is in use ({path.name}); try again later") from None
        command = ["du", "--human-readable", "--max-depth=1", f"{directory()}"]
        sizes = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        print(f"Removing:\n{sizes}", end="", flush=True)
        before = shutil.disk_usage(directory()).free
        remove(directory())
        print(f"freed {(shutil.disk_usage(directory().parent).free - before) >> 20} MiB")
    return 0


if __name__ == "__main__":
    if sys.argv[1:] != ["clean"]:
        sys.exit(__doc__)
    main(_clean)
