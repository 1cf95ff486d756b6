"""The calls that an engine holds, each of which one caller reads.

Each has exactly one end, and an error comes after the items that had arrived.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from ovserve.engine.client.client import EngineClient
from ovserve.engine.client.host import ModelProcess
from ovserve.engine.client.hosts import Hosts, NotShared
from ovserve.engine.client.process import EngineMessage
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.state import EngineState, InFlight, Listeners
from ovserve.engine.protocol.blobs import Segments
from ovserve.engine.protocol.frames import UNSENDABLE, unsendable
from ovserve.engine.protocol.messages import Call, Cancel, Demand, Done, Failed, Item, ToEngine, Usage
from ovserve.engine.protocol.specs import Facts, Spec
from ovserve.errors import OvserveError, Unavailable, from_kind

log = logging.getLogger(__name__)

DRAIN_SECONDS, DRAIN_INTERVAL, DRAIN_AGAIN = 2.0, 0.01, 30.0

Buffer = bytes | bytearray | memoryview


class CallItem(NamedTuple):
    """One result of a call: a msgpack value, and the binary values that go with it."""

    value: bytes
    blobs: tuple[memoryview, ...]

    def decode(self, type_: Any = Any) -> Any:
        return msgspec.msgpack.decode(self.value, type=type_)


class CallStream:
    """One call under way, and its items for one reader. Its arguments are kept to send it again."""

    def __init__(
        self, calls: Calls, id_: int, method: str, arguments: bytes, blobs: Sequence[Buffer], window: int
    ) -> None:
        self._calls = calls
        self.id, self.method, self.arguments, self.blobs, self.window = id_, method, arguments, blobs, window
        self.arrived = time.monotonic()
        self.items: deque[CallItem] = deque()
        self.begun = False  # an item has arrived
        self.done = False
        self.repeated = False
        self.error: OvserveError | None = None
        self._waiter: asyncio.Future[None] | None = None  # of its reader

    async def next(self) -> CallItem | None:
        """Return the next item, None at the end. Raises the call's error, after the items that had
        arrived."""
        while True:
            if self.items:
                item = self.items.popleft()
                self._calls.on_read(self)
                return item
            if self.error is not None:
                raise self.error
            if self.done:
                return None
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def fail(self, error: OvserveError) -> None:
        """End the call with this error; no effect once it is complete."""
        if not self.done:
            self._calls.end(self, error)

    def cancel(self) -> None:
        """End it early, any number of times."""
        self._calls.cancel(self)

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Calls(InFlight[CallStream]):
    noun = "call"

    def __init__(self, send: Callable[[ToEngine], None], on_room: Listeners, *, repeatable: bool) -> None:
        super().__init__(send, on_room, repeatable=repeatable)
        self._calls: dict[int, CallStream] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def _held(self) -> list[CallStream]:
        return list(self._calls.values())

    # ---- to the engine

    def begin(
        self, process: ModelProcess, method: str, arguments: Any, blobs: Sequence[Buffer], window: int
    ) -> CallStream:
        """Send a call. Raises InvalidArgument when it cannot be sent."""
        try:
            packed = msgspec.msgpack.encode(arguments)
            call = CallStream(self, self._last_id + 1, method, packed, blobs, window)
            self._dispatch(process, call)
        except UNSENDABLE as error:
            raise unsendable("the call", error) from error
        self._last_id = call.id
        self._calls[call.id] = call
        self.stats.requests += 1
        return call

    def _dispatch(self, process: ModelProcess, call: CallStream) -> None:
        packed = process.segments.pack_all(call.blobs)
        try:
            process.send(Call(call.id, call.method, call.arguments, packed, call.window))
        except BaseException:
            process.segments.free(packed)
            raise

    def on_read(self, call: CallStream) -> None:
        if call.window and not call.done:
            self._send(Demand(call.id))

    def cancel(self, call: CallStream) -> None:
        if self._calls.pop(call.id, None) is not None:
            self.stats.aborted += 1
            call.error = call.error or Unavailable("the call was cancelled")
            call.wake()
            self._send(Cancel(call.id))
            self._note(call, "cancelled")
        self._on_room.notify()

    def end(self, one: CallStream, error: OvserveError) -> None:
        """End the call with this error, in the engine as well."""
        if self._calls.pop(one.id, None) is not None:
            self.stats.failed += 1
            self._send(Cancel(one.id))
            self._note(one, f"failed ({error.code or error.kind})")
        one.error = one.error or error
        one.wake()
        self._on_room.notify()

    # ---- messages of the engine; an id may be unknown if they crossed our Cancel

    def on_message(self, message: EngineMessage, segments: Segments) -> None:
        if isinstance(message, Item):
            call = self._calls.get(message.id)
            if call is None:
                segments.free(message.blobs)
                return
            call.begun = True
            call.items.append(CallItem(message.value, tuple(map(segments.unpack, message.blobs))))
            call.wake()
            if message.last:
                self._on_done(message.id)
        elif isinstance(message, Done):
            self._on_done(message.id)
        elif isinstance(message, Failed) and (call := self._calls.get(message.id)) is not None:
            self.end(call, from_kind(message.kind, message.message, message.param))

    def _on_done(self, id_: int) -> None:
        if (call := self._calls.pop(id_, None)) is not None:
            self.stats.finished += 1
            call.done = True
            call.wake()
            self._note(call, "finished")
            self._on_room.notify()

    # ---- the next engine

    def resend(self, process: ModelProcess) -> None:
        """Send what waits to the new engine."""
        for call in self._take_waiting():
            if call.id in self._calls:  # else its caller has disconnected
                try:
                    self._dispatch(process, call)
                except OvserveError as error:
                    self.end(call, error)

    def _lines(self, now: float) -> list[str]:
        return [f"{c.id} {c.method}: arrived {now - c.arrived:.1f} s ago" for c in self._calls.values()]

    def _note(self, call: CallStream, how: str) -> None:
        self._ended.append(f"{call.id} {call.method}: {how}")


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
