"""Spare: an engine process that has loaded its libraries and waits for a model.

Libraries take longer to import than a small model takes to load, so a wake uses the spare process, and the
next one is prepared when it is done.
"""

from __future__ import annotations

import asyncio

from ovserve.engine.client.prewarm import PrewarmedProcess


class Spare:
    def __init__(self) -> None:
        self._ready: PrewarmedProcess | None = None
        self._preparing: asyncio.Task[None] | None = None

    def prepare(self) -> None:
        """Start one in the background, if there is none."""
        if self._ready is None and self._preparing is None:
            self._preparing = asyncio.create_task(self._prepare(), name="spare engine process")

    def take(self) -> PrewarmedProcess | None:
        """Return the process, for one engine, or None if there is none yet."""
        ready, self._ready = self._ready, None
        return ready

    async def end(self) -> None:
        """End it; another may be prepared later."""
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.wait([self._preparing])
        if (ready := self.take()) is not None:
            await ready.end()

    async def _prepare(self) -> None:
        try:
            self._ready = await PrewarmedProcess().__aenter__()
        finally:
            self._preparing = None
