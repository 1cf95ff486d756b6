"""Reports how full an engine process is, at suitable times.

At most every PERIOD, with the messages of the step that is sent anyway, and once more when it falls idle: a
gauge that keeps the last busy moment would show load where there is none. It is also the sign of life that
`watchdog.py` goes by: as long as the engine makes steps or compiles, one comes every PERIOD.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ovserve.engine.protocol.messages import Usage

PERIOD = 0.1  # seconds


class UsageClock:
    def __init__(self, read: Callable[[], Usage]) -> None:
        self._read = read
        self._next = 0.0

    def due(self, busy: bool) -> Usage | None:
        if not busy:
            return Usage(cache_bytes=self._read().cache_bytes)  # what was read is of the last step
        return self._read() if self._time() else None

    def heartbeat(self) -> Usage | None:
        """Report while it does something other than steps."""
        return self.due(busy=False) if self._time() else None

    def _time(self) -> bool:
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + PERIOD
        return True
