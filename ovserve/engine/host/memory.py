"""What memory there is, of the machine, or of the container if that has less; what a process holds of it; and
how many the kernel has killed for want of it. Called by `ovserve check`, the loader, `process.py` and
`ceiling.py`. Control groups are read in both of their versions.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Memory:
    """Bytes that can be taken now. `limit` is who says so: "machine" or "container"; 0 bytes: unknown."""

    available: int
    limit: str = "machine"


def memory(proc: Path = PROC, groups: Path = GROUPS) -> Memory:
    machine = _machine(proc / "meminfo")
    container = min(
        (left for path in _groups(proc, groups) if (left := _left(path)) is not None), default=None
    )
    if container is not None and (not machine or container < machine):
        return Memory(container, "container")
    return Memory(machine)


def resident(pid: int, proc: Path = PROC) -> int:
    """Bytes of memory a process holds; 0 if it has gone or nothing can be told."""
    for line in _lines(proc / str(pid) / "statm")[:1]:
        return int(line.split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def cpu_seconds(pid: int, proc: Path = PROC) -> float | None:
    """CPU time that all threads of a process have used; None if that cannot be read."""
    for line in _lines(proc / str(pid) / "stat")[:1]:
        user, system = line.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return None


def oom_kills(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Processes killed by the kernel for want of memory: in our control group if it tells, else anywhere."""
    for group in _groups(proc, groups):
        for file in ("memory.events", "memory.oom_control"):
            for line in _lines(group / file):
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    for line in _lines(proc / "vmstat"):
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def _machine(file: Path) -> int:
    for line in _lines(file):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def _groups(proc: Path, groups: Path) -> list[Path]:
    """The group of this process and those around it, the innermost first; any of them may set the limit."""
    return _groups_of(tuple(_lines(proc / "self/cgroup")), groups)


@lru_cache(maxsize=4)
def _groups_of(lines: tuple[str, ...], groups: Path) -> list[Path]:
    """Kept, as taking the paths apart is most of a look, and a look every second keeps a token waiting."""
    found: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root = (
            groups if not controllers else groups / "memory" if "memory" in controllers.split(",") else None
        )
        if root is not None:
            inner = root / path.strip().lstrip("/")
            found += [inner, *(p for p in inner.parents if p.is_relative_to(root))]
    return [*found, groups, groups / "memory"]


def _left(group: Path) -> int | None:
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        texts = [*_lines(group / limit)[:1], *_lines(group / used)[:1]]
        if len(texts) == 2 and all(text.strip().isdigit() for text in texts) and int(texts[0]) < 1 << 60:
            return max(0, int(texts[0]) - max(0, int(texts[1]) - _reclaimable(group)))
    return None


def _reclaimable(group: Path) -> int:
    """Bytes of files read and not used lately, such as a model's after its load: the first thing to go."""
    for line in _lines(group / "memory.stat"):
        if line.startswith(("inactive_file ", "total_inactive_file ")):
            return int(line.split()[1])
    return 0


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
