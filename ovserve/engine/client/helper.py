"""A helper process of an engine: the engine's worker with a tokenizer and no model, some 150 MB.

Its first call starts it. It answers one call at a time, holds no other work, and may be deep in native code,
so it is ended without being asked to. So it is when its caller leaves. A call that follows gets another
process.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

from ovserve.engine.client.pending_calls import PendingCalls, Question
from ovserve.engine.client.process import EngineProcess
from ovserve.engine.host.memory import cpu_seconds
from ovserve.engine.protocol.specs import Spec
from ovserve.errors import EngineDead, LoadError, Unavailable

log = logging.getLogger(__name__)

STOP_GRACE = 5.0  # seconds for a killed process to be gone
CHECK_SECONDS = 0.5  # between two checks for progress


class HelperEnded(Unavailable):
    """The process ended under the call. `status` is its exit status; negative: the signal that ended it."""

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class HelperProcess:
    def __init__(
        self,
        spec: Callable[[], Spec],
        does: str,
        unable: str,
        *,
        ready_timeout: float,
        most_calls: int | None = None,
    ) -> None:
        """`does` and `unable` are for messages: what the process does, and what cannot be done without it.

        After `most_calls` another process is started.
        """
        self._spec, self._does, self._unable = spec, does, unable
        self._ready_timeout, self._most_calls = ready_timeout, most_calls
        self._process: EngineProcess | None = None
        self._pending = PendingCalls()
        self._calls_of_process = 0
        self._stopped = False
        self.turn = asyncio.Lock()  # to be held around a call
        self.calls = 0

    @property
    def pid(self) -> int:
        """Return the PID of the process; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    async def call(
        self,
        make: Callable[[int], Question],
        *,
        seconds: float | None = None,
        stuck_seconds: float = math.inf,
    ) -> Any:
        """Return the answer to the message that `make` builds for a number. Raises the error of the answer.

        Raises TimeoutError after `seconds`. A process that gets no CPU time for `stuck_seconds` is killed: it
        is stopped, or waits forever. Raises HelperEnded, and Unavailable when none can be started.
        """
        process = await self._ready()
        self.calls += 1
        self._calls_of_process += 1
        watching = asyncio.create_task(_watch(process, stuck_seconds), name="helper watchdog")
        try:
            async with asyncio.timeout(seconds):
                return await self._pending.call(process.send, make)
        except (TimeoutError, asyncio.CancelledError):  # else the next call would wait for this one as well
            await self.end()
            raise
        except EngineDead as error:
            if self._stopped:
                raise Unavailable("the engine is stopping") from None
            await process.stop(STOP_GRACE)  # not killed at once, because its own exit status counts
            await self.end()
            log.warning("the process that %s ended under a call (%s)", self._does, process.how_it_ended())
            raise HelperEnded(error.message, process.exit_status) from None
        finally:
            watching.cancel()

    async def end(self) -> None:
        """Kill it; the next call starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            await process.stop(STOP_GRACE)

    async def rest(self) -> None:
        """End it if it has no work."""
        if not self.turn.locked():
            await self.end()

    async def stop(self) -> None:
        """Stop for good; a running call ends with Unavailable."""
        self._stopped = True
        self._pending.fail_all(EngineDead("the engine is stopping"))
        await self.end()
        async with self.turn:  # a call may have been starting one
            await self.end()

    async def _ready(self) -> EngineProcess:
        process = self._process
        if process is not None and (process.ended.is_set() or self._calls_of_process == self._most_calls):
            await self.end()
        if self._stopped:
            raise Unavailable("the engine is stopping")
        if self._process is None:
            self._process, self._calls_of_process = EngineProcess(self._pending.on_message, self._on_end), 0
            try:
                await self._process.start(self._spec(), ready_timeout=self._ready_timeout)
            except BaseException as error:
                self._process = None  # `start` has ended it
                if not isinstance(error, LoadError | OSError):
                    raise
                log.error("%s: %s", self._unable, error)
                raise Unavailable(f"{self._unable} now", retry_after=5.0) from error
        return self._process

    def _on_end(self) -> None:
        self._pending.fail_all(EngineDead(f"the process that {self._does} ended"))


async def _watch(process: EngineProcess, stuck_seconds: float) -> None:
    cpu_time, since = cpu_seconds(process.pid), 0.0
    while since < stuck_seconds:
        await asyncio.sleep(CHECK_SECONDS)
        now = cpu_seconds(process.pid)
        since = since + CHECK_SECONDS if now is not None and now == cpu_time else 0.0
        cpu_time = now
    process.kill(f"it has used no CPU time for {stuck_seconds:g} s")
