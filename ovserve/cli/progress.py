"""What a terminal shows while one waits: bars with rate and time left; plain lines where it is not one."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


class Waiting:
    """`with Waiting(text) as waiting`, for what cannot tell how far it is."""

    def __init__(self, text: str) -> None:
        self._text = text
        console = Console(stderr=True)
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=console, transient=True)
        else:
            sys.stderr.write(f"{text}\n")

    def __enter__(self) -> Waiting:
        if self._bar is not None:
            self._bar.start()
            self._bar.add_task(self._text, total=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
