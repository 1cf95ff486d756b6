"""The answers of one key that run at the same time, and when one of them may end. Used by `caller.py`.

When an answer ends nobody knows. What is known is how long the last ones took, so the time to come again is
made of that: the rest of what the oldest of those that run would take. It is an estimate, and bounded.
"""

from __future__ import annotations

from collections.abc import Callable

FIRST_SECONDS = 1.0  # while none has ended
LONGEST_SECONDS = 60.0  # an answer of an hour must not keep others away for one
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
        """Takes a slot, which `end` gives back."""
        self._last += 1
        self._began[self._last] = self._clock()
        return self._last

    def end(self, slot: int, *, answered: bool) -> None:
        """An answer that was refused says nothing about how long they take."""
        took = self._clock() - self._began.pop(slot)
        if answered:
            self._mean = took if self._mean is None else self._mean + WEIGHT * (took - self._mean)

    def wait(self) -> float:
        """Seconds until a slot is likely to be free. Those that are overdue end evenly spread."""
        if self._mean is None or not self._began:
            return FIRST_SECONDS
        oldest = self._clock() - next(iter(self._began.values()))
        return min(LONGEST_SECONDS, max(self._mean - oldest, self._mean / len(self._began)))
