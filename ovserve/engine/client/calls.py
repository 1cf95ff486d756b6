"""The calls that an engine holds, each of which one caller reads.

Each has exactly one end, and an error comes after the items that had arrived.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from ovserve.engine.client.hosting.host import ModelProcess
from ovserve.engine.client.process import EngineMessage
from ovserve.engine.client.state import InFlight, Listeners
from ovserve.engine.protocol.blobs import Segments
from ovserve.engine.protocol.frames import UNSENDABLE, unsendable
from ovserve.engine.protocol.messages import Call, Cancel, Demand, Done, Failed, Item, ToEngine
from ovserve.errors import OvserveError, Unavailable, from_kind

Buffer = bytes | bytearray | memoryview


class CallItem(NamedTuple):
    """One result of a call: a msgpack value, and the binary values that go with it."""

    value: bytes
    blobs: tuple[memoryview, ...]

    def decode(self, type_: Any = Any) -> Any:
        return msgspec.msgpack.decode(self.value, type=type_)


class CallStream:
    """One call under way, and its items for one reader. Its arguments are kept to send it again."""

    __slots__ = (
        "_calls", "_waiter", "arguments", "arrived", "begun", "blobs", "done", "error", "id", "items",
        "method", "repeated", "window",
    )  # fmt: skip

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
