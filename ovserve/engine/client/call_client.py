"""CallClient: the server's handle on an engine of calls, and `CallStream`, one running call.

A call whose items are all unread is sent to the next engine, once, when its own engine ends; the caller only
notices the delay. The guarantees are those of text generation (`requests.py`): exactly one end, and an error
comes after the items that had arrived.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from ovserve.engine.client.calls import UNSENDABLE
from ovserve.engine.client.client import EngineClient
from ovserve.engine.client.hosting.hosted import ModelProcess
from ovserve.engine.client.hosting.hosts import Hosts, NotShared
from ovserve.engine.client.process import EngineMessage
from ovserve.engine.client.running_call import Buffer, CallItem, RunningCall
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.spare import Spare
from ovserve.engine.client.state import EngineState, EngineStats
from ovserve.engine.protocol.messages import Call, Cancel, Demand, Done, Failed, Item, Usage
from ovserve.engine.protocol.specs import Facts, Spec
from ovserve.errors import EngineDead, InvalidArgument, OvserveError, Unavailable, from_kind

log = logging.getLogger(__name__)

REMEMBERED = 8  # ended calls, for the report on a stalled engine
DRAIN_SECONDS, DRAIN_INTERVAL, DRAIN_AGAIN = 2.0, 0.01, 30.0


class CallStream:
    """The items of one call. `cancel` ends it early, any number of times."""

    def __init__(self, client: CallClient, call: RunningCall) -> None:
        self._client = client
        self._call = call

    async def next(self) -> CallItem | None:
        """Return the next item, None at the end. Raises the call's error, after the items that had
        arrived."""
        call = self._call
        while True:
            if call.items:
                item = call.items.popleft()
                self._client.on_read(call)
                return item
            if call.error is not None:
                raise call.error
            if call.done:
                return None
            await call.wait()

    def fail(self, error: OvserveError) -> None:
        """End the call with this error; no effect once it is complete."""
        if not self._call.done:
            self._client.end(self._call, error)

    def cancel(self) -> None:
        self._client.cancel(self._call)


class CallClient(EngineClient[Spec, Facts]):
    def __init__(
        self, spec: Spec, settings: EngineSettings | None = None, hosts: Hosts | None = None
    ) -> None:
        """`hosts`: for a spec that may share a process; without them it gets one of its own."""
        super().__init__(spec, settings)
        self._hosts = hosts if spec.hosted else None
        self._calls: dict[int, RunningCall] = {}
        self._waiting: list[RunningCall] = []  # for the next process
        self._ended: deque[str] = deque(maxlen=REMEMBERED)
        self._last_id = 0
        self._next_drain = 0.0
        self._finished = self._failed = self._cancelled = self._repeated = 0

    @classmethod
    async def start(
        cls, spec: Spec, settings: EngineSettings | None = None, spare: Spare | None = None
    ) -> CallClient:
        """Start; ready on return. Raises LoadError when the first engine does not load."""
        client = cls(spec, settings)
        await client.launch(spare)
        return client

    async def call(
        self, method: str, arguments: Any, blobs: Sequence[Buffer] = (), *, window: int = 0
    ) -> CallStream:
        """Send a call; `arguments` is anything that msgpack can encode.

        With a `window`, the engine is that many items ahead of the reader at most.

        Raises InvalidArgument for other values, Unavailable while no engine runs.
        """
        process = await self._ready_process()
        return self._send_call(process, method, arguments, blobs, window)

    def call_now(
        self, method: str, arguments: Any, blobs: Sequence[Buffer] = (), *, window: int = 0
    ) -> CallStream | None:
        """Like `call`, if an engine is ready; else None."""
        process = self._process
        if process is None or not self._takes_requests():
            return None
        return self._send_call(process, method, arguments, blobs, window)

    def _send_call(
        self, process: ModelProcess, method: str, arguments: Any, blobs: Sequence[Buffer], window: int
    ) -> CallStream:
        try:
            packed = msgspec.msgpack.encode(arguments)
        except UNSENDABLE as error:
            raise InvalidArgument(f"the call cannot be sent to the engine: {error}") from error
        self._last_id += 1
        call = RunningCall(self._last_id, method, packed, blobs, window)
        try:
            self._dispatch(process, call)
        except UNSENDABLE as error:
            raise InvalidArgument(f"the call cannot be sent to the engine: {error}") from error
        self._calls[call.id] = call
        return CallStream(self, call)

    def _dispatch(self, process: ModelProcess, call: RunningCall) -> None:
        packed = process.segments.pack_all(call.blobs)
        try:
            process.send(Call(call.id, call.method, call.arguments, packed, call.window))
        except BaseException:
            process.segments.free(packed)
            raise

    def on_read(self, call: RunningCall) -> None:
        if call.window and not call.done:
            self._send(Demand(call.id))

    def cancel(self, call: RunningCall) -> None:
        if self._calls.pop(call.id, None) is not None:
            self._cancelled += 1
            call.error = call.error or Unavailable("the call was cancelled")
            call.wake()
            self._send(Cancel(call.id))
            self._note(call, "cancelled")
        self._notify_room()

    def end(self, call: RunningCall, error: OvserveError) -> None:
        """End the call with this error, in the engine as well."""
        if self._calls.pop(call.id, None) is not None:
            self._failed += 1
            self._send(Cancel(call.id))
            self._note(call, f"failed ({error.code or error.kind})")
        call.error = call.error or error
        call.wake()
        self._notify_room()

    def stats(self) -> EngineStats:
        return EngineStats(
            running=len(self._calls),
            requests=len(self._calls) + self._finished + self._failed + self._cancelled,
            finished=self._finished,
            failed=self._failed,
            aborted=self._cancelled,
            prompt_tokens=0,
            generated_tokens=0,
            restarts=self._restarts,
            stalls=self._stalls,
            repeated=self._repeated,
        )

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
        if not process.retiring or not self._calls or self.state.name != "ready":
            return await super()._idle(process)
        if (now := time.monotonic()) < self._next_drain:
            return False
        self._next_drain = now + DRAIN_AGAIN
        self._become(EngineState("restarting", process.retiring))
        while self._calls and time.monotonic() < now + DRAIN_SECONDS:  # noqa: ASYNC110  rare and short
            await asyncio.sleep(DRAIN_INTERVAL)
        if self._calls:
            self._become(EngineState("ready"))
        return not self._calls

    def _holds(self) -> int:
        return len(self._calls)

    def _on_kind_message(self, message: EngineMessage) -> tuple[bool, Usage | None]:
        if isinstance(message, Item):
            self._on_item(message)
        elif isinstance(message, Done):
            self._on_done(message.id)
        elif isinstance(message, Failed) and (call := self._calls.get(message.id)) is not None:
            self.end(call, from_kind(message.kind, message.message, message.param))
        return True, None

    def _on_item(self, message: Item) -> None:
        assert self._process is not None, "it has sent a message"
        segments = self._process.segments
        call = self._calls.get(message.id)
        if call is None:
            segments.free(message.blobs)  # it crossed the Cancel
            return
        call.begun = True
        call.items.append(CallItem(message.value, tuple(map(segments.unpack, message.blobs))))
        call.wake()
        if message.last:
            self._on_done(message.id)

    def _on_done(self, id_: int) -> None:
        if (call := self._calls.pop(id_, None)) is not None:
            self._finished += 1
            call.done = True
            call.wake()
            self._note(call, "finished")
            self._notify_room()

    def _requests_lost(self, reason: str) -> None:
        waiting = set(self._waiting)
        for call in list(self._calls.values()):
            if call in waiting:
                continue
            once = call.repeated or not self.spec.repeatable  # so that no one repeats it
            if call.begun or once:
                self.end(call, EngineDead(reason, retry_after=1.0, repeated=once))
                continue
            call.repeated = True
            self._repeated += 1
            self._waiting.append(call)

    def _requests_end(self, error: OvserveError, *, waiting_only: bool = False) -> None:
        ending = self._waiting if waiting_only else list(self._calls.values())
        self._waiting = []
        for call in ending:
            self.end(call, error)

    async def _requests_resume(self, process: ModelProcess) -> None:
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            if call.id in self._calls:  # else its caller has disconnected
                try:
                    self._dispatch(process, call)
                except OvserveError as error:
                    self.end(call, error)

    def _report(self) -> list[str]:
        now = time.monotonic()
        held = [f"{c.id} {c.method}: arrived {now - c.arrived:.1f} s ago" for c in self._calls.values()]
        return [*(f"holds call {line}" for line in held), *(f"before: call {e}" for e in self._ended)]

    def _note(self, call: RunningCall, how: str) -> None:
        self._ended.append(f"{call.id} {call.method}: {how}")
