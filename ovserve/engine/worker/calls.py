"""The loop of an engine of calls: each call runs on a thread of a pool, and its items go out as they come.

The main thread only reads, so a cancellation and a ping are noticed while calls run, as far as the backend's
library releases the interpreter lock. An exception of the backend is the failure of one call: unlike a step
of text generation, a call shares no state with others.
"""

from __future__ import annotations

import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import msgspec

from ovserve.engine.backends.calls import CallBackend, Invocation, Result
from ovserve.engine.protocol.blobs import Segments, drop
from ovserve.engine.protocol.frames import Channel, FrameError
from ovserve.engine.protocol.messages import (
    Call,
    Cancel,
    Done,
    Failed,
    Item,
    Ping,
    Pong,
    Ready,
    Stop,
    ToEngine,
)
from ovserve.errors import FROM_KIND, OvserveError


class Calls:
    """The calls of one engine process that wait or run."""

    def __init__(self, channel: Channel[ToEngine], backend: CallBackend, segments: Segments) -> None:
        self._channel = channel
        self._backend = backend
        self._segments = segments
        self._sending = threading.Lock()
        self._pool = ThreadPoolExecutor(max(1, backend.facts.max_calls), thread_name_prefix="call")
        self._live: dict[int, Invocation] = {}

    def send(self, *messages: msgspec.Struct) -> None:
        with self._sending:
            self._channel.send(*messages)

    def start(self, call: Call) -> None:
        try:
            invocation = Invocation(call)
        except OSError as error:
            drop(call.blobs)
            self.send(Failed(call.id, "internal", f"a value of the call is gone: {error}"))
            return
        self._live[call.id] = invocation
        self._pool.submit(self._run, call.id, invocation)

    def cancel(self, id_: int) -> None:
        if (invocation := self._live.get(id_)) is not None:
            invocation.cancel()

    def _run(self, id_: int, invocation: Invocation) -> None:
        try:
            end: Done | Failed | None = self._answer(id_, invocation)
        except OvserveError as error:
            kind = error.code if error.code in FROM_KIND else error.kind
            end = Failed(id_, kind or error.kind, error.message, error.param)
        except Exception as error:  # noqa: BLE001  the worker loop border: a fault of the backend fails its call
            traceback.print_exc()
            end = Failed(id_, "internal", f"{invocation.method} failed: {type(error).__name__}: {error}")
        del self._live[id_]
        if end is not None:
            self.send(end)

    def _answer(self, id_: int, invocation: Invocation) -> Done | None:
        """None for a call whose caller has left: silence, as for an aborted request."""
        if invocation.cancelled:
            return None
        for item in self._backend.call(invocation):
            if invocation.cancelled:
                return None
            result = item if isinstance(item, Result) else Result(item)
            packed = tuple(map(self._segments.pack, result.blobs))
            self.send(Item(id_, msgspec.msgpack.encode(result.value), packed))
        return None if invocation.cancelled else Done(id_)


def run(channel: Channel[ToEngine], backend: CallBackend, segments: Segments) -> int:
    calls = Calls(channel, backend, segments)
    calls.send(Ready.of(backend.facts))
    while True:
        for message in channel.receive(block=True):
            if isinstance(message, Call):
                calls.start(message)
            elif isinstance(message, Cancel):
                calls.cancel(message.id)
            elif isinstance(message, Ping):
                calls.send(Pong())
            elif isinstance(message, Stop):
                return 0
            else:
                raise FrameError(f"{type(message).__name__} is not a message for an engine of calls")
