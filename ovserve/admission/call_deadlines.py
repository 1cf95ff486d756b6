"""CallDeadlines: the deadlines of the calls of one engine."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Expiring(Protocol):
    def expire(self) -> None: ...


class CallDeadlines:
    """The deadlines of calls, with one timer for all: a timer for each took 4 us, and few are ever due."""

    def __init__(self) -> None:
        self._due: dict[Expiring, float] = {}  # seconds, time.monotonic()
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0  # of the timer, which may be earlier than any call's

    def add(self, call: Expiring, due: float) -> None:
        self._due[call] = due
        if self._timer is None or due < self._at:
            self._start(due)

    def remove(self, call: Expiring) -> None:
        self._due.pop(call, None)

    def _start(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = due
        left = max(0.0, due - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(left, self._look)

    def _look(self) -> None:
        self._timer, now = None, time.monotonic()
        for call in [call for call, due in self._due.items() if due <= now]:
            del self._due[call]
            call.expire()
        if self._due:
            self._start(min(self._due.values()))
