"""The kernel's view of a process's threads, for the report on a stalled engine: its own stacks show only
Python. And the priority of one thread, which Linux has.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

THREAD_NICENESS = 5


def below_the_steps() -> None:
    """Lower the priority of this thread, and of those that a library starts from it."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), THREAD_NICENESS)


def thread_states(pid: int, proc: Path = Path("/proc")) -> Iterator[str]:
    """Yield a line for each kind of thread: count, name, state as in `ps`, and where it waits in the
    kernel."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for task in (proc / str(pid) / "task").glob("*"):
        try:
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            where = _text(task / "wchan")
        except OSError:  # the thread has just ended
            continue
        counts[name, rest.split()[0], where] += 1
    for (name, state, where), count in counts.most_common():
        yield f"{count} threads {name!r} in state {state}{f', in {where}' if where else ''}"


def _text(file: Path) -> str:
    try:
        text = file.read_text().strip()
    except OSError:
        return ""  # no permission
    return "" if text == "0" else text
