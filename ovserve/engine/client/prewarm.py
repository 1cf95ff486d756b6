"""An engine process started before its model is known: while the server starts, for the first engine.

Importing its libraries takes longer than everything the server needs before it can send `Load`. Done at the
same time, the server's part costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from ovserve.engine.client.process import EngineMessage, EngineProcess


class PrewarmedProcess:
    """Ends with the `async with` unless it was taken; empty without a process.

    `settled`: it has been taken and given its model, or has ended.
    """

    def __init__(self) -> None:
        self.settled = asyncio.Event()
        self._process: EngineProcess | None = None

    async def __aenter__(self) -> PrewarmedProcess:
        self._process = EngineProcess()
        try:
            await self._process.prepare()
        except BaseException as error:
            await self.end()
            # the launch of an engine fails with it as well, and reports it
            if not isinstance(error, OSError):
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()

    def take(self, on_message: Callable[[EngineMessage], None], on_end: Callable[[], None]) -> EngineProcess:
        """Return the process, for `start`; a new unprepared one if this was taken before."""
        process, self._process = self._process, None
        self.settled.set()
        if process is None:
            return EngineProcess(on_message, on_end)
        process.serve(on_message, on_end)
        return process

    async def end(self) -> None:
        """End it: it is not needed, or no longer."""
        process, self._process = self._process, None
        self.settled.set()
        if process is not None:
            process.kill()  # it holds no work
            await process.stop(0)
