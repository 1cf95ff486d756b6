"""The last lines of the log, for the server page; only administrators read them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import islice
from typing import Any

from ovserve.log import request_id

MOST = 2000
LONGEST = 4000  # characters of one message


class LogRing(logging.Handler):
    """A handler that keeps the last records as plain values."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[dict[str, Any]] = deque(maxlen=MOST)
        self._last = 0
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def start(self) -> None:
        logging.getLogger().addHandler(self)

    def end(self) -> None:
        logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit the text
            self.handleError(record)
            return
        if record.exc_info:
            message += "\n" + logging.Formatter().formatException(record.exc_info)
        self._last += 1  # under the handler's lock, as emit always is
        self._lines.append(
            {
                "number": self._last,
                "at": record.created,
                "level": record.levelname,
                "logger": record.name.removeprefix("ovserve."),
                "request": request_id.get(),
                "message": message[:LONGEST],
            }
        )
        if not self._news.is_set():
            try:
                self._loop.call_soon_threadsafe(self._news.set)  # calculators log from threads
            except RuntimeError:
                return  # the loop has ended

    def since(self, number: int) -> list[dict[str, Any]]:
        """Return the lines after `number`, oldest first."""
        self.acquire()
        try:
            new = max(0, min(self._last - number, len(self._lines)))
            return list(islice(self._lines, len(self._lines) - new, None))
        finally:
            self.release()

    async def wait(self, number: int) -> None:
        """Wait until there is a line after `number`."""
        while self._last <= number:
            self._news.clear()
            if self._last <= number:
                await self._news.wait()
