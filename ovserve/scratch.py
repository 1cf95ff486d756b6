"""Temporary files and directories that the next process removes if theirs was killed: some hold gigabytes.

A lock on each, which the kernel releases with its process, says that it is in use.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FILES = "ovserve-file-"


@contextmanager
def scratch_directory(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Make a directory, and remove it at the end; first remove abandoned ones of this prefix.

    `parent` is by default the directory for temporary files.
    """
    remove_abandoned(prefix, parent)
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        if (lock := _hold(path)) >= 0:
            break
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def scratch_file(parent: Path | None = None) -> tuple[int, Path]:
    """Make a file; return a descriptor, which holds it, and its path."""
    while True:
        descriptor, name = tempfile.mkstemp(prefix=FILES, dir=parent)
        if _is_held(path := Path(name), descriptor):
            return descriptor, path
        os.close(descriptor)


def remove_abandoned(prefix: str, parent: Path | None = None) -> None:
    """Remove files and directories of this prefix whose process has ended."""
    for old in Path(parent or tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # it is in use, another user's, or has just gone
            lock = os.open(old, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(old) if old.is_dir() else old.unlink()
            finally:
                os.close(lock)


def _hold(directory: Path) -> int:
    """Return a descriptor that holds the directory; -1 if another process has removed it."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except FileNotFoundError:
        return -1
    if _is_held(directory, descriptor):
        return descriptor
    os.close(descriptor)
    return -1


def _is_held(path: Path, descriptor: int) -> bool:
    """Lock it; return whether it is still there: another process may have removed it just before."""
    with suppress(OSError):  # a file system without locks, where nothing is removed either
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return path.exists()
