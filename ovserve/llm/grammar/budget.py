"""The work that the schemas of one request may cause. `rules.py` spends it; the caller of the writer sets it.

The event loop has little time for a schema, a body process has all of it. The work of a schema is
known only by doing it: references multiply, so a small one may be the worst. The loop therefore begins each
schema, and after some milliseconds gives up and hands it to a body process.
"""

from __future__ import annotations

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
    current = _current.get()
    return Budget() if current is None else current


class _Limit:
    """Sets a budget while it is entered. `contextmanager` would cost 2 us more, three times in a request."""

    __slots__ = ("_budget", "_token")

    def __init__(self, one: Budget) -> None:
        self._budget = one

    def __enter__(self) -> None:
        self._token = _current.set(self._budget)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def in_loop() -> _Limit:
    """Raise Costly from inside as soon as the schemas take more time than the event loop has."""
    return _Limit(Budget(LOOP_STEPS, elsewhere=True))


def in_all() -> _Limit:
    """Limit the total work of all schemas inside."""
    return _Limit(Budget())
