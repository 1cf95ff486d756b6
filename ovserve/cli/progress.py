"""Progress on a terminal: bars with rate and time left; plain lines where it is not a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from ovserve.pull.progress import Measure, polling

LINE_SECONDS = 10.0  # between two lines, where there is no terminal


class Shown:
    """Prints lines, and shows how far something is: a bar on a terminal, else a line now and then."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __call__(self, text: str) -> None:
        self._out.write(text + "\n")
        self._out.flush()

    @contextmanager
    def progress(self, what: str, total: int, measure: Measure) -> Iterator[None]:
        if self._out.isatty():
            with bar(self._out, what, total, measure):
                yield
            return
        began, before = time.monotonic(), measure()

        def line() -> None:
            if total:
                self(_line(what, measure(), total, (measure() - before) / (time.monotonic() - began)))

        with polling(line, LINE_SECONDS):
            yield


def _line(what: str, size: int, total: int, rate: float) -> str:
    remaining = f", {(total - size) / rate:.0f} s left" if rate > 0 and size < total else ""
    return f"{what}: {size / 1e6:.0f} of {total / 1e6:.0f} MB, {rate / 1e6:.1f} MB/s{remaining}"


@contextmanager
def bar(out: TextIO, what: str, total: int, measure: Measure) -> Iterator[None]:
    """Show a bar on a terminal; with total 0 one that only says that it goes on."""
    from rich.console import Console  # takes 50 ms to import, and most commands show no bar
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    how_far = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), *(how_far if total else (TimeElapsedColumn(),)))
    with Progress(*columns, console=Console(file=out), transient=True) as display:
        task = display.add_task(what, total=total or None)
        with polling(lambda: display.update(task, completed=min(measure(), total))):
            yield


@contextmanager
def waiting(out: TextIO, what: str) -> Iterator[None]:
    """Show that work of unknown length goes on."""
    if out.isatty():
        with bar(out, what, 0, lambda: 0):
            yield
    else:
        out.write(f"{what}\n")
        yield
