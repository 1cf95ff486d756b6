"""WatchedEngine: the part of an engine client that watches a process and replaces one that is stuck."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from typing import Any

from ovserve.engine.client.health.health import Health
from ovserve.engine.client.hosting.hosted import ModelProcess
from ovserve.engine.client.kind import EngineKind
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.state import EngineState

log = logging.getLogger(__name__)


class WatchedEngine(EngineKind):
    spec: Any  # of its kind
    _settings: EngineSettings
    _health: Health  # of the current process, or the last one
    _stalls: int

    @abstractmethod
    def _become(self, state: EngineState) -> None: ...

    @abstractmethod
    def _lost(self, reason: str) -> None:
        """Handle the loss of the process, at its first sign."""

    async def _watch(self, process: ModelProcess) -> None:
        """Send it the requests of the previous process, then watch its progress."""
        repeating = asyncio.create_task(self._resume(process), name="requests of the previous engine")
        try:
            while True:
                await asyncio.sleep(self._health.watchdog.interval)
                if (stalled := self._check_health()) is not None:
                    await self._replace(process, stalled)
                    return
                limit = self._health.memory_limit
                reason = process.retiring or (limit.shortage if limit.outgrown else "")
                if reason and await self._idle(process):
                    await self._renew(process, reason)
                    return
        finally:
            repeating.cancel()

    async def _replace(self, process: ModelProcess, reason: str) -> None:
        """Replace a stalled engine; requests do not wait while it logs its state."""
        process.mute()
        self._stalls += 1
        self._become(EngineState("restarting", reason))
        log.error("engine[%d]: %s; replacing it", process.pid, reason)
        report = [*self._report(), *process.threads()]
        self._lost(reason)
        for line in report:
            log.error("engine[%d]: %s", process.pid, line)
        await process.dump_stacks()
        process.kill(reason)

    async def _renew(self, process: ModelProcess, reason: str) -> None:
        """Replace an idle engine that has grown too large, or whose process it has to leave."""
        self._become(EngineState("restarting", reason))
        log.warning("engine[%d]: %s; replacing it", process.pid, reason)
        await process.stop(self._settings.stop_grace)

    def _check_health(self) -> str | None:
        patient = self.spec.patient  # it answers pings while it works
        return self._health.check(
            requests=0 if patient else self._holds(),
            pending=self._open_calls(),
            busy=patient and self._holds() > 0,
            timeout=self._patience(self._settings.restarts.stall_timeout),
            unread_tokens=self._unread_tokens,
        )

    async def _resume(self, process: ModelProcess) -> None:
        if not process.ended.is_set():  # otherwise they keep waiting
            await self._requests_resume(process)
