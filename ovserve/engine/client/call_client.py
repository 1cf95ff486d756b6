"""CallClient: the server's handle on an engine of calls."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

from ovserve.engine.client.calls import Buffer, Calls, CallStream
from ovserve.engine.client.client import EngineClient
from ovserve.engine.client.hosting.host import ModelProcess
from ovserve.engine.client.hosting.hosts import Hosts, NotShared
from ovserve.engine.client.process import EngineMessage
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.state import EngineState
from ovserve.engine.protocol.messages import Usage
from ovserve.engine.protocol.specs import Facts, Spec

log = logging.getLogger(__name__)

DRAIN_SECONDS, DRAIN_INTERVAL, DRAIN_AGAIN = 2.0, 0.01, 30.0


class CallClient(EngineClient[Spec, Facts]):
    _requests: Calls

    def __init__(
        self, spec: Spec, settings: EngineSettings | None = None, hosts: Hosts | None = None
    ) -> None:
        """`hosts`: for a spec that may share a process; without them it gets one of its own."""
        super().__init__(spec, settings)
        self._requests = Calls(self._send, self.on_room, repeatable=spec.repeatable)
        self._hosts = hosts if spec.hosted else None
        self._next_drain = 0.0

    async def call(
        self, method: str, arguments: Any, blobs: Sequence[Buffer] = (), *, window: int = 0
    ) -> CallStream:
        """Send a call; `arguments` is anything that msgpack can encode.

        With a `window`, the engine is that many items ahead of the reader at most.

        Raises InvalidArgument for other values, Unavailable while no engine runs.
        """
        process = await self._ready_process()
        return self._requests.begin(process, method, arguments, blobs, window)

    def call_now(
        self, method: str, arguments: Any, blobs: Sequence[Buffer] = (), *, window: int = 0
    ) -> CallStream | None:
        """Like `call`, if an engine is ready; else None."""
        process = self._process
        if process is None or not self._takes_requests():
            return None
        return self._requests.begin(process, method, arguments, blobs, window)

    # ---- what EngineClient requires of a kind of engine

    async def _start_process(self) -> tuple[ModelProcess, Facts]:
        if self._hosts is not None:
            try:
                return await self._hosts.start(self.spec, self._on_message, self._on_end)
            except NotShared as refused:
                self._hosts = None
                log.warning("%s %s: %s", self.spec.kind, self.spec.model_path, refused)
        return await super()._start_process()

    async def _idle(self, process: ModelProcess) -> bool:
        """Keep new calls back for a moment, if the model has to leave its process."""
        calls = self._requests
        if not process.retiring or not calls or self.state.name != "ready":
            return await super()._idle(process)
        if (now := time.monotonic()) < self._next_drain:
            return False
        self._next_drain = now + DRAIN_AGAIN
        self._become(EngineState("restarting", process.retiring))
        while calls and time.monotonic() < now + DRAIN_SECONDS:  # noqa: ASYNC110  rare and short
            await asyncio.sleep(DRAIN_INTERVAL)
        if calls:
            self._become(EngineState("ready"))
        return not calls

    def _on_kind_message(self, message: EngineMessage) -> tuple[bool, Usage | None]:
        assert self._process is not None, "it has sent a message"
        self._requests.on_message(message, self._process.segments)
        return True, None

    async def _requests_resume(self, process: ModelProcess) -> None:
        self._requests.resend(process)
