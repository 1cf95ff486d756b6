"""The interface for authors of an engine of calls: `CallBackend`, its `Invocation` and `Result`.

A backend is what the function named by `Spec.backend` returns; it runs in the engine process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from ovserve.engine.protocol.blobs import Segments
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

    def __init__(self, call: Call, segments: Segments | None = None, *, in_place: bool = False) -> None:
        """`segments` are where its large values are; with `in_place` they are valid until it ends."""
        opened = segments or Segments(0, "")
        self.id = call.id
        self.method = call.method
        self.blobs = tuple(opened.unpack(blob, in_place=in_place) for blob in call.blobs)
        self.arrived = time.monotonic()
        self._arguments = call.arguments
        self._cancelled = False
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
        return self._cancelled

    def cancel(self) -> None:
        self._cancelled = True
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
    time, each on a thread of its own. A generator is closed between two items when its caller leaves.

    Two attributes are optional. `in_place = True`: the values of a call are only read until it ends, so that
    they need not be copied out of shared memory. `begin`: see `Beginner`.
    """

    facts: Facts

    def call(self, invocation: Invocation) -> Iterator[Any]: ...


Outcome = Result | OvserveError
Deliver = Callable[[Sequence[tuple[Invocation, Outcome]]], None]  # from any thread; it sends all at once


class Beginner(Protocol):
    """A `CallBackend` that can run a short call without a thread of its own."""

    def begin(self, invocation: Invocation, deliver: Deliver) -> bool:
        """Begin a call, on the thread that reads the calls; return False to get it through `call` instead.

        It runs at `began`. The result goes to `deliver`. Raises OvserveError.
        """

    def began(self) -> None:
        """Run the calls begun since the last `began`; so those that arrive together can run together."""
