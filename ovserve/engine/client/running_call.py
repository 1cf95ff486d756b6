"""RunningCall: what the server keeps of a call until its result has been read, and the result's items."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from ovserve.errors import OvserveError

Buffer = bytes | bytearray | memoryview


class CallItem(NamedTuple):
    """One result of a call: a msgpack value, and the binary values that go with it."""

    value: bytes
    blobs: tuple[memoryview, ...]

    def decode(self, type_: Any = Any) -> Any:
        return msgspec.msgpack.decode(self.value, type=type_)


class RunningCall:
    """One call; its arguments are kept until some of its result has been read."""

    __slots__ = (
        "_waiter", "arguments", "arrived", "begun", "blobs", "done", "error", "id", "items", "method",
        "repeated", "window",
    )  # fmt: skip

    def __init__(self, id_: int, method: str, arguments: bytes, blobs: Sequence[Buffer], window: int) -> None:
        self.id, self.method, self.arguments, self.blobs, self.window = id_, method, arguments, blobs, window
        self.arrived = time.monotonic()
        self.items: deque[CallItem] = deque()
        self.begun = False  # an item has arrived
        self.done = False
        self.repeated = False
        self.error: OvserveError | None = None
        self._waiter: asyncio.Future[None] | None = None  # of its one reader

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for `wake`."""
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter
