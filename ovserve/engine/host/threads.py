"""What the kernel knows of a process's threads: for the report on an engine that stalled, whose own stacks
show Python only. Called by `process.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path


def thread_states(pid: int, proc: Path = Path("/proc")) -> Iterator[str]:
    """A line for each kind of thread: how many, name, state as in `ps`, and where it waits in the kernel."""
    found: Counter[tuple[str, str, str]] = Counter()
    for task in (proc / str(pid) / "task").glob("*"):
        try:
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            where = _text(task / "wchan")
        except OSError:  # it has just ended
            continue
        found[name, rest.split()[0], where] += 1
    for (name, state, where), count in found.most_common():
        yield f"{count} threads {name!r} in state {state}{f', in {where}' if where else ''}"


def _text(file: Path) -> str:
    try:
        text = file.read_text().strip()
    except OSError:
        return ""  # not ours to know
    return "" if text == "0" else text
