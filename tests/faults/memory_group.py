"""Control groups that limit processes, such as their memory, beyond which the kernel kills them. Needs a machine whose
root we are; elsewhere its user is skipped, and told why."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class MemoryGroup:
    path: Path

    def take(self, pid: int) -> None:
        """The process, and those it starts from now on."""
        (self.path / "cgroup.procs").write_text(str(pid))

    def limit(self, size: int) -> None:
        """Change the limit, to bytes."""
        names = ("memory.limit_in_bytes", "memory.max")
        next(file for name in names if (file := self.path / name).exists()).write_text(str(size))


@contextmanager
def memory_group(limit: int) -> Iterator[MemoryGroup]:
    """Of `limit` bytes, without swap."""
    with control_group("memory") as path:
        first = (path / "memory.limit_in_bytes").exists()
        (path / ("memory.limit_in_bytes" if first else "memory.max")).write_text(str(limit))
        swap = path / ("memory.memsw.limit_in_bytes" if first else "memory.swap.max")
        if swap.exists():
            swap.write_text(str(limit) if first else "0")
        yield MemoryGroup(path)


@contextmanager
def control_group(controller: str) -> Iterator[Path]:
    """A group that may limit what `controller` says; processes that are left in it go back to the one above."""
    first = (GROUPS / controller).is_dir()  # version 1 of control groups
    above = GROUPS / controller if first else GROUPS
    if not first and controller not in _read(above / "cgroup.subtree_control").split():
        pytest.skip(f"no control group here may limit {controller}")
    path = above / f"ovserve-test-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        yield path
    finally:
        _remove(path, above)


def _remove(path: Path, above: Path) -> None:
    deadline = time.monotonic() + 230
    while True:
        for pid in _read(path / "cgroup.procs").split():
            with suppress(OSError):  # it has just ended
                (above / "cgroup.procs").write_text(pid)
        try:
            path.rmdir()
            return
        except OSError:  # the kernel is not done with it
            assert time.monotonic() < deadline, f"{path} cannot be removed"
            time.sleep(0.05)


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
