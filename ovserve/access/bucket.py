"""A rate limit per minute as a token bucket: it refills evenly, and a full bucket may be emptied at once."""

from __future__ import annotations

from collections.abc import Callable


class Bucket:
    """`take` may go below zero: the tokens of a request are known only after it, and become a debt."""

    __slots__ = ("_at", "_clock", "_level", "per_minute")

    def __init__(self, per_minute: float, clock: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._clock = clock
        self._level = per_minute
        self._at = clock()

    def take(self, units: float) -> None:
        self._refill()
        self._level -= units

    def wait(self, reserve: float = 0) -> float:
        """Return the seconds until one unit is available besides a reserve; 0 if one is."""
        self._refill()
        needed = min(1 + reserve, self.per_minute)
        return max(0.0, (needed - self._level) * 60 / self.per_minute)

    @property
    def left(self) -> int:
        self._refill()
        return max(0, int(self._level))

    def _refill(self) -> None:
        now = self._clock()
        self._level = min(self.per_minute, self._level + (now - self._at) * self.per_minute / 60)
        self._at = now
