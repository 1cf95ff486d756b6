"""How much memory there is for models: of the machine, or of the container if that is less. Called by
`ovserve check`. Control groups are read in both of their versions.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Memory:
    """Bytes that can be taken now. `limit` is who says so: "machine" or "container"; 0 bytes: unknown."""

    available: int
    limit: str = "machine"


def memory(proc: Path = Path("/proc"), groups: Path = GROUPS) -> Memory:
    machine = _machine(proc / "meminfo")
    container = min(
        (left for path in _groups(proc, groups) if (left := _left(path)) is not None), default=None
    )
    if container is not None and (not machine or container < machine):
        return Memory(container, "container")
    return Memory(machine)


def _machine(file: Path) -> int:
    for line in _lines(file):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 0


def _groups(proc: Path, groups: Path) -> list[Path]:
    """The group of this process and those around it; any of them may set the limit."""
    found = [groups, groups / "memory"]
    for line in _lines(proc / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        root = (
            groups if not controllers else groups / "memory" if "memory" in controllers.split(",") else None
        )
        if root is not None:
            inner = root / path.strip().lstrip("/")
            found += [inner, *(p for p in inner.parents if p.is_relative_to(root))]
    return found


def _left(group: Path) -> int | None:
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        texts = [*_lines(group / limit)[:1], *_lines(group / used)[:1]]
        if len(texts) == 2 and all(text.strip().isdigit() for text in texts) and int(texts[0]) < 1 << 60:
            return max(0, int(texts[0]) - int(texts[1]))
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
