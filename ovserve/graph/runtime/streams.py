"""Both ends of a stream: a Stream writes, and a Queue per reader receives.

A stream's *bound* is a promise: no packet below it will come any more. The scheduler decides what readers do
with packets and bounds (`Reader`).

A `Tap` watches the runs of one graph for a console that shows it at work. A graph has a `TapSlot`, which is
empty while no one watches; then a packet and a call cost one test each. A tap that is put into the slot sees
runs that have begun before, from then on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from ovserve.graph.calculator import Packet

END = 2**63 - 1  # the bound of a closed stream


class Reader(Protocol):
    def notice(self) -> None:
        """Report that a queue of this reader got a packet or a new bound."""


class DirectReader(Protocol):
    def direct(self, queue: Queue, timestamp: int, value: Any) -> bool:
        """Use a packet at once, without the queue; return False if it has to be queued."""


class Queue:
    """The reading end: a node's input, or a graph output, which has no owner and wakes `reader`.

    While a graph output has a `sink`, packets go to it and not into the queue, see `GraphRun.pour`.
    """

    __slots__ = (
        "bound", "capacity", "delay", "direct", "owner", "packets", "reader", "sink", "swallow", "writers",
    )  # fmt: skip

    def __init__(self, reader: Reader | None, capacity: int, *, back_edge: bool = False) -> None:
        self.packets: deque[Packet] = deque()
        self.bound = 0  # no packet below this will come any more
        self.owner = reader
        self.capacity = END if back_edge or capacity < 0 else capacity
        self.delay = 1 if back_edge else 0
        self.swallow = False
        self.writers: list[asyncio.Future[None]] = []
        self.reader: asyncio.Future[None] | None = None
        self.sink: Callable[[Any], bool] | None = None
        self.direct: DirectReader | None = None  # the owner, if it can do without the queue

    @property
    def full(self) -> bool:
        return len(self.packets) >= self.capacity and not self.swallow

    def wake_writers(self) -> None:
        for future in self.writers:
            wake(future)
        self.writers.clear()

    def pop(self) -> Packet:
        packet = self.packets.popleft()
        if self.writers and not self.full:
            self.wake_writers()
        return packet

    async def arrival(self) -> None:
        """Wait until a graph output gets a packet or ends, or its run fails."""
        self.reader = asyncio.get_running_loop().create_future()
        await self.reader

    async def pour(self, sink: Callable[[Any], bool]) -> bool:
        """Give what is queued to `sink`, or what arrives if nothing is; return whether it has enough."""
        if self.packets:
            while self.packets:
                if not sink(self.pop().value):
                    return True
            return False
        self.sink = sink
        try:
            await self.arrival()
            return self.sink is None
        finally:
            self.sink = None

    def wake_reader(self) -> None:
        if self.owner is not None:
            self.owner.notice()
        elif self.reader is not None:
            wake(self.reader)


class Stream:
    """The writing end: it copies every packet to every queue."""

    __slots__ = ("_watched", "bound", "name", "queues", "run")

    def __init__(self, name: str, run: object, watched: TapSlot) -> None:
        """`run`: what a tap knows the run by."""
        self.name = name
        self.run, self._watched = run, watched
        self.bound = 0
        self.queues: list[Queue] = []

    def put(self, timestamp: int, value: Any) -> None:
        if timestamp < self.bound:
            raise ValueError(f"stream {self.name!r}: timestamp {timestamp} comes after {self.bound - 1}")
        self.bound = timestamp + 1
        if (tap := self._watched.tap) is not None:
            tap.packet(self, timestamp, value)
        for queue in self.queues:
            if (sink := queue.sink) is not None:
                queue.bound = timestamp + 1
                if not sink(value):
                    queue.sink = None
                    if queue.reader is not None:
                        wake(queue.reader)
            elif (direct := queue.direct) is not None and direct.direct(queue, timestamp, value):
                pass
            elif not queue.swallow:
                queue.packets.append(Packet(timestamp + queue.delay, value))
                queue.bound = timestamp + queue.delay + 1
                if queue.owner is not None:  # `wake_reader`, without its call: twenty for a short request
                    queue.owner.notice()
                elif queue.reader is not None:
                    wake(queue.reader)

    def advance(self, bound: int) -> None:
        if bound <= self.bound:
            return
        self.bound = bound
        for queue in self.queues:
            if queue.delay == 0 and bound > queue.bound:  # a back edge is closed by rule 5 alone
                queue.bound = bound
                if queue.owner is not None:
                    queue.owner.notice()
                elif queue.reader is not None:
                    wake(queue.reader)


class Tap(Protocol):
    """Called on the event loop, in the middle of a run: short, and never raising."""

    def started(self, run: object) -> None:
        """Called in the context of the request, before any node is opened."""

    def ended(self, run: object) -> None: ...

    def packet(self, stream: Stream, timestamp: int, value: Any) -> None:
        """Called before the packet is put into the queues of the stream."""

    def called(self, node: str, seconds: float) -> None:
        """Report one return of `process()`; `seconds` include what it waited for."""

    def failed(self, run: object, node: str) -> None: ...


class TapSlot:
    """The place for the tap of a graph; None while no one watches. `errors` are kept at any time: the last
    one of each node, with the Unix time in seconds."""

    __slots__ = ("errors", "tap")

    def __init__(self) -> None:
        self.tap: Tap | None = None
        self.errors: dict[str, tuple[float, str]] = {}


def wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
