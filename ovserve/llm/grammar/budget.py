"""The work that the schemas of one request may cause. `rules.py` spends it; the caller of the writer sets it.

The event loop has little time for a schema, a body process has all of it. The work of a schema is
known only by doing it: references multiply, so a small one may be the worst. The loop therefore begins each
schema, and after some milliseconds gives up and hands it to a body process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

MAX_STEPS = 400_000  # for all schemas of a request; about 0.7 s
LOOP_STEPS = 20_000  # at once in the event loop; about 30 ms


class Costly(Exception):
    """The event loop has no time for this: call the same function in a body process."""


class Budget:
    """The remaining steps, and whether a body process may continue where they end."""

    __slots__ = ("_elsewhere", "_left")

    def __init__(self, steps: int = MAX_STEPS, *, elsewhere: bool = False) -> None:
        self._left, self._elsewhere = steps, elsewhere

    def spend(self, steps: int) -> bool:
        """Spend steps; return False when they are used up. Raises Costly if a body process may continue."""
        self._left -= steps
        if self._left < 0 and self._elsewhere:
            raise Costly
        return self._left >= 0


_current: ContextVar[Budget | None] = ContextVar("budget", default=None)


def budget() -> Budget:
    """Return the budget of the running call; a new full one if none is set."""
    found = _current.get()
    return Budget() if found is None else found


@contextmanager
def in_loop() -> Iterator[None]:
    """Raise Costly from inside as soon as the schemas take more time than the event loop has."""
    with _set(Budget(LOOP_STEPS, elsewhere=True)):
        yield


@contextmanager
def in_all() -> Iterator[None]:
    """Limit the total work of all schemas inside."""
    with _set(Budget()):
        yield


@contextmanager
def _set(one: Budget) -> Iterator[None]:
    token = _current.set(one)
    try:
        yield
    finally:
        _current.reset(token)
