"""Day: what a key has used since midnight UTC, on this server and, as far as known, on others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

SECONDS = 86_400


class Usage(NamedTuple):
    """Requests and tokens of one day; `day` counts from 1970-01-01."""

    day: int
    requests: int = 0
    tokens: int = 0


class Day:
    """`unsaved` is the part of `usage` that the store does not have yet."""

    __slots__ = ("_clock", "unsaved", "usage")

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.usage = self.unsaved = Usage(self.today)

    @property
    def today(self) -> int:
        return int(self._clock() // SECONDS)

    @property
    def left(self) -> float:
        """Return the seconds until the next day begins."""
        return SECONDS - self._clock() % SECONDS

    def current(self) -> Usage:
        """Return the usage of today."""
        if self.usage.day != self.today:
            self.usage = self.unsaved = Usage(self.today)
        return self.usage

    def add(self, *, requests: int = 0, tokens: int = 0) -> None:
        self.current()
        self.usage, self.unsaved = (
            Usage(used.day, used.requests + requests, used.tokens + tokens)
            for used in (self.usage, self.unsaved)
        )

    def saved(self, written: Usage, total: Usage) -> None:
        """Record that `written`, which was unsaved, is now in the store, which has `total` of all servers."""
        if written.day != self.current().day or total.day != written.day:
            return
        rest = Usage(
            written.day, self.unsaved.requests - written.requests, self.unsaved.tokens - written.tokens
        )
        self.unsaved = rest
        self.usage = Usage(rest.day, total.requests + rest.requests, total.tokens + rest.tokens)
