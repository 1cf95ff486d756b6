"""An engine process before anybody knows which model it will load. Kept by `cli/serve.py` while the server
starts, taken by the first engine that is launched (`client.py`).

Its libraries take it longer to import than what the server needs before it can say `Load`: done at the same
time, the latter costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from ovserve.engine.client.process import EngineMessage, EngineProcess


class PrewarmedProcess:
    """Ends with the `async with` if nobody has taken it; empty without one. `settled`: it has been taken, and
    told what to load, or has ended."""

    def __init__(self) -> None:
        self.settled = asyncio.Event()
        self._process: EngineProcess | None = None

    async def __aenter__(self) -> PrewarmedProcess:
        self._process = EngineProcess()
        try:
            await self._process.prepare()
        except BaseException as error:
            await self.end()
            if not isinstance(error, OSError):  # which the launch of an engine meets as well, and tells
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()

    def take(self, on_word: Callable[[EngineMessage], None], on_end: Callable[[], None]) -> EngineProcess:
        """For `start`. A new one, without any preparation, if this was taken before."""
        process, self._process = self._process, None
        self.settled.set()
        if process is None:
            return EngineProcess(on_word, on_end)
        process.serve(on_word, on_end)
        return process

    async def end(self) -> None:
        """It is not needed, or not any more."""
        process, self._process = self._process, None
        self.settled.set()
        if process is not None:
            process.kill()  # it holds nothing
            await process.stop(0)
