"""The concurrent answers of one key, and when one of them may end.

The end of a running answer is unknown, but the duration of the last ones is known. So `Retry-After` is the
time that the oldest running answer would still take at their mean duration. It is an estimate, and bounded.
"""

from __future__ import annotations

from collections.abc import Callable

FIRST_SECONDS = 1.0  # while none has ended
LONGEST_SECONDS = 60.0  # one answer of an hour must not block others for an hour
WEIGHT = 0.3  # of the last answer in the mean


class Slots:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began: dict[int, float] = {}  # the oldest first
        self._last = 0
        self._mean: float | None = None

    def __len__(self) -> int:
        return len(self._began)

    def begin(self) -> int:
        """Take a slot, which `end` releases."""
        self._last += 1
        self._began[self._last] = self._clock()
        return self._last

    def end(self, slot: int, *, answered: bool) -> None:
        """Release a slot. An answer that was rejected says nothing about their duration."""
        took = self._clock() - self._began.pop(slot)
        if answered:
            self._mean = took if self._mean is None else self._mean + WEIGHT * (took - self._mean)

    def wait(self) -> float:
        """Return the seconds until a slot is likely to be free. Overdue answers are assumed to end evenly
        spread."""
        if self._mean is None or not self._began:
            return FIRST_SECONDS
        oldest = self._clock() - next(iter(self._began.values()))
        return min(LONGEST_SECONDS, max(self._mean - oldest, self._mean / len(self._began)))
