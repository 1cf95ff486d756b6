"""Available memory of the machine (or of the container, if less), memory of a process, and the kernel's OOM
kills.

Both versions of control groups are supported.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

import msgspec

BYTES_PER_MIB, BYTES_PER_GIB = 1 << 20, 1 << 30
PROC, GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class Memory(msgspec.Struct, frozen=True):
    """Bytes available now. `limit` names the narrower limit: "machine" or "container"; 0 bytes: unknown."""

    available: int
    limit: str = "machine"


def memory(proc: Path = PROC, groups: Path = GROUPS) -> Memory:
    machine = _machine(proc / "meminfo")
    container = min(
        (free for path in _groups(proc, groups) if (free := _free_in(path)) is not None), default=None
    )
    if container is not None and (not machine or container < machine):
        return Memory(container, "container")
    return Memory(machine)


def resident(pid: int, proc: Path = PROC) -> int:
    """Return the resident memory of a process in bytes; 0 if it has gone or is unreadable."""
    for line in _lines(proc / str(pid) / "statm")[:1]:
        return int(line.split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def cpu_seconds(pid: int, proc: Path = PROC) -> float | None:
    """Return the CPU time that all threads of a process have used; None if unreadable."""
    for line in _lines(proc / str(pid) / "stat")[:1]:
        user, system = line.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return None


def waiting_seconds(pid: int) -> float:
    """Return how long the threads of a process were ready to run and had no processor."""
    waited = 0
    for path in (PROC / str(pid) / "task").glob("*/schedstat"):
        for line in _lines(path)[:1]:
            waited += int(line.split()[1])
    return waited / 1e9


def is_runnable(pid: int) -> bool:
    """Return whether a thread of a process is on a processor or ready for one."""
    stats = (PROC / str(pid) / "task").glob("*/stat")
    return any(line.rpartition(")")[2].split()[0] == "R" for path in stats for line in _lines(path)[:1])


def oom_kills(proc: Path = PROC, groups: Path = GROUPS) -> int:
    """Return the number of OOM kills: in our control group if it counts them, else on the machine."""
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
    """Return the group of this process and its ancestors, the innermost first; any of them may set the
    limit."""
    return _groups_of(tuple(_lines(proc / "self/cgroup")), groups)


@lru_cache(maxsize=4)
def _groups_of(lines: tuple[str, ...], groups: Path) -> list[Path]:
    """Cached, because parsing the paths is most of the cost, and a slow check every second delays a token."""
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        root = (
            groups if not controllers else groups / "memory" if "memory" in controllers.split(",") else None
        )
        if root is not None:
            inner = root / path.strip().lstrip("/")
            folders += [inner, *(p for p in inner.parents if p.is_relative_to(root))]
    return [*folders, groups, groups / "memory"]


def _free_in(group: Path) -> int | None:
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        texts = [*_lines(group / limit)[:1], *_lines(group / usage)[:1]]
        if len(texts) == 2 and all(text.strip().isdigit() for text in texts) and int(texts[0]) < 1 << 60:
            return max(0, int(texts[0]) - max(0, int(texts[1]) - _reclaimable(group)))
    return None


def _reclaimable(group: Path) -> int:
    """Return bytes of files in the page cache that the kernel drops before it kills: those not used lately,
    and of the others what no process maps, such as a model that was read twice. Without the latter, a load
    is refused that would succeed."""
    stat = dict(line.split(maxsplit=1) for line in _lines(group / "memory.stat") if " " in line)
    total = "total_" if "total_inactive_file" in stat else ""  # version 1: with the groups below
    inactive, active, mapped = (
        int(stat.get(name, 0))
        for name in (f"{total}inactive_file", f"{total}active_file", f"{total}mapped_file")
    )
    return inactive + max(0, active - (mapped or int(stat.get("file_mapped", 0))))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
