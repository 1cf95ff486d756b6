"""An engine process started before its model is known: while the server starts, for the first engine.

Importing its libraries takes longer than everything the server needs before it can send `Load`. Done at the
same time, the server's part costs nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from ovserve.engine.client.early import EarlyProcess
from ovserve.engine.client.process import EngineMessage, EngineProcess
from ovserve.engine.protocol.specs import Spec


class PrewarmedProcess:
    """Ends with the `async with` unless it was taken; empty without a process.

    `settled`: it has been taken and given its model, or has ended.
    """

    def __init__(self, early: EarlyProcess | None = None) -> None:
        """`early` is the process, if it was started already."""
        self.settled = asyncio.Event()
        self._early = early
        self._process: EngineProcess | None = None
        self._loading: Spec | None = None

    async def __aenter__(self) -> PrewarmedProcess:
        self._process = EngineProcess()
        try:
            if self._early is not None:
                await self._process.adopt(self._early)
            else:
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

    async def load(self, spec: Spec) -> None:
        """Let it begin to load what the first engine probably needs. Engines of other specifications do not
        get the process then."""
        if self._process is not None:
            self._loading = spec
            await self._process.load(spec)

    def take(
        self, spec: Spec, on_message: Callable[[EngineMessage], None], on_end: Callable[[], None]
    ) -> EngineProcess:
        """Return the process, for `start`; a new unprepared one if this was taken before, or loads another
        model."""
        if self._loading not in (None, spec):
            return EngineProcess(on_message, on_end)
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
