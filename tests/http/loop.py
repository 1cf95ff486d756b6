"""Measures for how long the event loop of a test does not turn."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from types import TracebackType


class Loop:
    """`held`: the longest CPU time in seconds of this thread between two turns, which other processes do not
    lengthen."""

    def __init__(self) -> None:
        self.held = 0.0

    async def __aenter__(self) -> Loop:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _watch(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0.001)
            self.held = max(self.held, time.thread_time() - before)
