"""The interface for authors of an engine of calls: `CallBackend`, its `Invocation` and `Result`.

A backend is what the function named by `Spec.backend` returns; it runs in the engine process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from ovserve.engine.protocol.blobs import unpack
from ovserve.engine.protocol.messages import Call
from ovserve.engine.protocol.specs import Facts
from ovserve.errors import InvalidArgument, OvserveError

T = TypeVar("T")


class Result(NamedTuple):
    """An item with binary values; a backend yields any other value as it is.

    After a `last` one the generator is closed, and item and end of the call go out together.
    """

    value: Any
    blobs: tuple[bytes | bytearray | memoryview, ...] = ()
    last: bool = False


class Invocation:
    """One call as a backend sees it.

    `fail` ends it for its caller from any thread, while the backend still runs.
    """

    def __init__(self, call: Call) -> None:
        self.method = call.method
        self.blobs = tuple(map(unpack, call.blobs))
        self.arrived = time.monotonic()
        self._arguments = call.arguments
        self._cancelled = threading.Event()
        self._room = threading.Semaphore(call.window) if call.window else None
        self.fail: Callable[[OvserveError], None] = lambda error: None

    def arguments(self, type_: type[T]) -> T:
        """Raises InvalidArgument for arguments of another shape."""
        try:
            return msgspec.msgpack.decode(self._arguments, type=type_)
        except msgspec.MsgspecError as error:
            raise InvalidArgument(f"{self.method}: {error}") from error

    @property
    def cancelled(self) -> bool:
        """The caller has left: what is computed from now on is thrown away."""
        return self._cancelled.is_set()

    def cancel(self) -> None:
        self._cancelled.set()
        self.demand()

    def demand(self) -> None:
        """Allow one more item of a call with a window."""
        if self._room is not None:
            self._room.release()

    def wait_for_room(self) -> None:
        """Wait until an item may be sent, or the call is cancelled."""
        if self._room is not None:
            self._room.acquire()


class CallBackend(Protocol):
    """The object that the function named by a spec's `backend` returns. `facts.max_calls` calls run at a
    time, each on a thread of its own. A generator is closed between two items when its caller leaves."""

    facts: Facts

    def call(self, invocation: Invocation) -> Iterator[Any]: ...
