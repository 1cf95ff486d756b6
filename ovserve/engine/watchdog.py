"""When an engine that holds work counts as stalled. Asked by `client.py` a few times per timeout.

Two things are watched, each of which may last `timeout` seconds while there is work:

- Silence. An engine that makes steps says something at least ten times a second, or after each step if that
  takes longer, so a word is its heartbeat. None means a step or an admission that does not end, or a process
  that is stopped.
- Steps without progress: heartbeats, but for no request a token, an admission or an end, and not even a
  fuller cache. A long prompt fills the cache with every step, so it is progress however long it takes.

Why time is counted by looks and not read off a clock: this process may have been stopped or starved itself,
and a laptop may have slept. A look adds at most two intervals, whatever the clock says in between.
"""

from __future__ import annotations

from ovserve.engine.messages import Usage

LOOKS = 8  # per timeout
LONGEST_INTERVAL = 1.0  # seconds


class Watchdog:
    """Of one engine process. `timeout` 0: never stalled."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self.interval = min(timeout / LOOKS, LONGEST_INTERVAL) if timeout else LONGEST_INTERVAL
        self._heard = self._moved = False  # since the last look
        self._silent = self._stuck = 0.0  # seconds
        self._looked: float | None = None
        self._cache: tuple[float, int] | None = None

    def heard(self, *, progress: bool, usage: Usage | None = None) -> None:
        """A word came; `progress`: some request gained something by it."""
        self._heard = True
        if usage is not None and (cache := (usage.cache, usage.cache_bytes)) != self._cache:
            self._cache, progress = cache, True
        if progress:
            self._moved = True

    def look(self, now: float, *, requests: int, questions: int) -> str | None:
        """Why it is stalled, or None. `requests` and `questions` are what it holds, `now` is monotonic."""
        passed = 0.0 if self._looked is None else min(now - self._looked, 2 * self.interval)
        self._looked = now
        self._silent = 0.0 if self._heard or not (requests or questions) else self._silent + passed
        self._stuck = 0.0 if self._moved or not requests else self._stuck + passed
        self._heard = self._moved = False
        if not self._timeout:
            return None
        if self._silent >= self._timeout:
            return f"the engine did not end a step within {self._timeout:g} s"
        if self._stuck >= self._timeout:
            return f"the engine made steps but no token within {self._timeout:g} s"
        return None
