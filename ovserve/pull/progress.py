"""The disk of a download or a conversion: room on it, and progress, which is measured there."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TextIO

from ovserve.errors import ResourceExhausted

LINE_SECONDS = 0.25  # between two lines for a program
POLL_SECONDS = 0.1

Say = Callable[[str], None]
Measure = Callable[[], int]


def progress(say: Say, what: str, total: int, measure: Measure = lambda: 0) -> AbstractContextManager[None]:
    """Enter around the work, of which `measure` says how many of `total` bytes are done; 0: unknown.

    A Say that has this method shows it; one that only prints does not.
    """
    show: Callable[..., AbstractContextManager[None]] | None = getattr(say, "progress", None)
    return nullcontext() if show is None else show(what, total, measure)


def size_of(directory: Path) -> int:
    """Return the bytes of all files below; files that go away meanwhile do not count."""
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


@contextmanager
def polling(look: Callable[[], None], seconds: float = POLL_SECONDS) -> Iterator[None]:
    """Call `look` every `seconds`, in a thread, and once at the end of the block."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            look()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    look()


class JsonLines:
    """A line of JSON for each step, and several a second while something is on its way."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __call__(self, text: str) -> None:
        self._write({"status": text})

    @contextmanager
    def progress(self, what: str, total: int, measure: Measure) -> Iterator[None]:
        with polling(lambda: self._write(self._status(what, total, measure)), LINE_SECONDS):
            yield

    def _status(self, what: str, total: int, measure: Measure) -> dict[str, object]:
        return (
            {"status": what, "total": total, "completed": min(measure(), total)}
            if total
            else {"status": what}
        )

    def _write(self, line: dict[str, object]) -> None:
        self._out.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._out.flush()


DISK_MARGIN = 1.02  # side files, and blocks that are not full


def require(directory: Path, needed: float, what: str) -> None:
    """Raise ResourceExhausted when `needed` bytes do not fit where `directory` is or will be."""
    place = next(p for p in (directory.absolute(), *directory.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    if needed * DISK_MARGIN > free:
        raise ResourceExhausted(
            f"{what} needs {needed * DISK_MARGIN / 1e9:.2f} GB on the disk of {directory}, which has "
            f"{free / 1e9:.2f} GB free"
        )
