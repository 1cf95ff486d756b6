"""Spare: an engine process that has loaded its libraries and waits for a model.

Libraries take longer to import than everything that a server needs before it can send `Load`, and than a
small model takes to load. So a starting server has one for its first engine, and one that loads graphs on
demand has one for the next.
"""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType

from ovserve.engine.client.process import EngineProcess
from ovserve.engine.client.spawn import Child
from ovserve.engine.protocol.specs import Spec

log = logging.getLogger(__name__)


class Spare:
    """Holds one process at most, which ends with the `async with` unless it was taken.

    `settled`: the process has been taken and given its model, or has ended.
    """

    def __init__(self, child: Child | None = None) -> None:
        """`child` is the process, if it was started already."""
        self.settled = asyncio.Event()
        self._child = child
        self._process: EngineProcess | None = None
        self._loading: Spec | None = None
        self._preparing: asyncio.Task[None] | None = None
        self._burying: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Spare:
        await self._prepare()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.end()

    def prepare(self) -> None:
        """Start one in the background, if there is none."""
        if self._process is None and self._preparing is None:
            self._preparing = asyncio.create_task(self._prepare(), name="spare engine process")

    async def _prepare(self) -> None:
        process = EngineProcess(on_end=self._on_end)
        try:
            await process.prepare(self._child)
            self._process = process
            if process.ended.is_set():
                self._on_end()
        except OSError:  # the launch of an engine fails with it as well, and reports it
            self.settled.set()
        finally:
            self._child = self._preparing = None

    async def load(self, spec: Spec) -> None:
        """Let it begin to load what the first engine probably needs. Engines of other specifications do not
        get the process then."""
        if self._process is not None:
            self._loading = spec
            await self._process.load(spec)

    def take(self, spec: Spec) -> EngineProcess | None:
        """Return the process, for `start` with this spec. None: it was taken before, or loads another
        model."""
        if self._loading not in (None, spec):
            return None
        process, self._process = self._process, None
        self.settled.set()
        return process

    def _on_end(self) -> None:
        """Let go of a process that ended while it was idle. Others are taken: they say why they ended."""
        if self._loading is None and self._process is not None:
            process, self._process = self._process, None
            self._burying = asyncio.create_task(self._bury(process), name="end of a spare engine process")

    async def _bury(self, process: EngineProcess) -> None:
        await process.stop(0)
        log.warning("a spare engine process ended (%s)", process.how_it_ended())

    async def end(self) -> None:
        """End it: it is not needed, or no longer. Another may be prepared later."""
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.wait([self._preparing])
        process, self._process = self._process, None
        self.settled.set()
        if process is not None:
            process.mute()
            process.kill()  # it holds no work
            await process.stop(0)
        if self._burying is not None:
            await asyncio.wait([self._burying])
