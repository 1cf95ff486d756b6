"""Both ends of a stream: a Stream writes, and a Queue per reader receives.

A stream's *bound* is a promise: no packet below it will come any more. The scheduler decides what readers do
with packets and bounds (`Reader`).

A `Tap` watches the runs of one graph for a console that shows it at work. A graph has a `TapSlot`, which is
empty while no one watches; then a packet and a call cost one test each. A tap that is put into the slot sees
runs that have begun before, from then on.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ovserve.errors import LoadError
from ovserve.graph.calculator import Context, Method, Packet
from ovserve.graph.config import GraphConfig
from ovserve.graph.node import Node, split_tag_index
from ovserve.protos import calculator_pb2

TIMESTAMP_DONE = 2**63 - 1  # the bound of a closed stream


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
        "bound", "capacity", "delay", "direct", "owner", "packets", "port", "reader", "sink", "swallow",
        "writers",
    )  # fmt: skip

    def __init__(
        self, reader: Reader | None, capacity: int, port: Any = None, *, back_edge: bool = False
    ) -> None:
        """`port`: of the node that reads it."""
        self.packets: deque[Packet] = deque()
        self.bound = 0  # no packet below this will come any more
        self.owner, self.port = reader, port
        self.capacity = TIMESTAMP_DONE if back_edge or capacity < 0 else capacity
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
                if queue.owner is not None:
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


# Input stream handlers as sync sets: which streams of a node wait for one another.
#
#     DefaultInputStreamHandler     one set with every stream
#     ImmediateInputStreamHandler   a set for each stream
#     SyncSetInputStreamHandler     the sets listed, and one more with the streams not listed
#
# A node's handler wins over the graph's. The scheduler knows sets only, so a new handler is a row here.


if TYPE_CHECKING:
    Handler = calculator_pb2.InputStreamHandlerConfig

SUPPORTED = ("DefaultInputStreamHandler", "ImmediateInputStreamHandler", "SyncSetInputStreamHandler")
DEFAULT, IMMEDIATE, _ = SUPPORTED


def plan_sync_sets(
    node: Node, *, immediate: bool = False
) -> tuple[frozenset[tuple[str, int]], tuple[tuple[int, ...], ...]]:
    """Return the back edges of a node as (tag, index), and its sync sets as indexes into its inputs.

    `immediate`: the calculator's inputs do not wait for one another unless the graph names a handler.
    """
    back_edges = _back_edges(node)
    keys = [e.key for e in node.inputs]
    message = node.config.message.node[node.position]
    own = message.HasField("input_stream_handler")
    handler = message.input_stream_handler if own else node.config.message.input_stream_handler
    name = handler.input_stream_handler or DEFAULT
    if immediate and not own and not node.config.message.HasField("input_stream_handler"):
        name = IMMEDIATE
    if name not in SUPPORTED:
        raise node.error(f"{name!r} is not one of {', '.join(SUPPORTED)}", "input_stream_handler", name)
    if name == IMMEDIATE:
        sets: list[tuple[int, ...]] = [(i,) for i in range(len(keys))]
    elif name == "SyncSetInputStreamHandler":
        sets = _listed_sets(node, handler, keys, own)
    else:
        _check_default(node, handler)
        sets = [tuple(range(len(keys)))] if keys else []
    for group in sets:
        backs = [node.inputs[i].text for i in group if keys[i] in back_edges]
        if backs and len(group) > 1:
            raise node.error(
                f"back edge {backs[0]!r} shares a sync set, so the node would wait for itself; "
                "give it a set of its own with SyncSetInputStreamHandler",
                "input_stream_handler",
            )
    return back_edges, tuple(sets)


def _back_edges(node: Node) -> frozenset[tuple[str, int]]:
    keys = [e.key for e in node.inputs]
    seen: set[tuple[str, int]] = set()
    back: set[tuple[str, int]] = set()
    for info in node.config.message.node[node.position].input_stream_info:
        key = split_tag_index(info.tag_index)
        if key is None or key not in keys:
            raise node.error(
                f"{info.tag_index!r} is not an input of this node", "input_stream_info", info.tag_index
            )
        if key in seen:
            raise node.error(f"{info.tag_index!r} is given twice", "input_stream_info", info.tag_index)
        seen.add(key)
        if info.back_edge:
            back.add(key)
    return frozenset(back)


def _listed_sets(
    node: Node, handler: Handler, keys: list[tuple[str, int]], own: bool
) -> list[tuple[int, ...]]:
    options = handler.options.Extensions[calculator_pb2.SyncSetInputStreamHandlerOptions.ext]
    sets: list[tuple[int, ...]] = []
    taken: set[int] = set()
    for sync_set in options.sync_set:
        group = []
        for text in sync_set.tag_index:
            key = split_tag_index(text)
            if key is None or key not in keys:
                if not own:
                    continue  # the graph's handler applies to all nodes, and not every node has every tag
                raise node.error(
                    f"sync_set names {text!r}, not an input of this node",
                    "input_stream_handler",
                    text,
                )
            index = keys.index(key)
            if index in taken:
                raise node.error(f"{text!r} is in two sync sets", "input_stream_handler", text)
            taken.add(index)
            group.append(index)
        if group:
            sets.append(tuple(group))
    rest = tuple(i for i in range(len(keys)) if i not in taken)
    return [*sets, rest] if rest else sets


def _check_default(node: Node, handler: Handler) -> None:
    options = handler.options.Extensions[calculator_pb2.DefaultInputStreamHandlerOptions.ext]
    if options.batch_size not in (0, 1):
        raise node.error(f"batch_size {options.batch_size}: only 1 is supported", "input_stream_handler")


# Executors of a graph: named thread pools for calculators whose `process` blocks.
#
# The pools live as long as the graph. In MediaPipe the default executor runs every node. Here the event loop
# does, and the default pool ("" here, sized by num_threads) runs only calculators declared `runs_on =
# "thread"`. A calculator on a thread blocks; it has no event loop to await, and trying to is an error.


RESERVED = ("default", "gpu")
TYPES = ("", "ThreadPoolExecutor", "ApplicationThreadExecutor")


class ExecutorPlan(msgspec.Struct, frozen=True):
    num_threads: int
    prefix: str


def plan_executors(config: GraphConfig) -> dict[str, ExecutorPlan]:
    """Return the graph's executors by name; "" is the default pool and always present."""
    message = config.message
    plans: dict[str, ExecutorPlan] = {}
    for executor in message.executor:
        problem = None
        if executor.name in RESERVED:
            problem = f"the name {executor.name!r} is reserved"
        elif executor.name in plans:
            problem = f"executor {executor.name!r} is declared twice"
        elif executor.type not in TYPES:
            problem = f"type {executor.type!r} is not one of {', '.join(TYPES[1:])}"
        elif not executor.name and message.num_threads:
            problem = "a default executor and num_threads exclude each other"
        options = executor.options.Extensions[calculator_pb2.ThreadPoolExecutorOptions.ext]
        if problem is None and options.num_threads < 0:
            problem = f"num_threads {options.num_threads} is negative"
        if problem:
            raise LoadError(problem, file=config.file, field="executor")
        plans[executor.name] = ExecutorPlan(
            options.num_threads or _automatic(),
            options.thread_name_prefix or f"graph-{executor.name or 'default'}",
        )
    if message.num_threads < 0:
        raise LoadError(f"{message.num_threads} is negative", file=config.file, field="num_threads")
    plans.setdefault("", ExecutorPlan(message.num_threads or _automatic(), "graph-default"))
    return plans


def _automatic() -> int:
    return os.cpu_count() or 1


class Pools:
    """The thread pools of one graph, started when first used."""

    def __init__(self, plans: Mapping[str, ExecutorPlan]) -> None:
        self._plans = plans
        self._pools: dict[str, ThreadPoolExecutor] = {}

    async def run(self, name: str, method: Method, cc: Context) -> None:
        """Run a method of a calculator to its end on a thread of the pool.

        A cancelled caller still waits for the thread: a thread cannot be stopped, and the node's `close`
        must not run at the same time as its `process`.
        """
        pool = self._pools.get(name)
        if pool is None:
            plan = self._plans[name]
            pool = self._pools[name] = ThreadPoolExecutor(plan.num_threads, plan.prefix)
        future = asyncio.get_running_loop().run_in_executor(pool, _drive, method, cc)
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait({future})
            raise

    def close(self) -> None:
        """Stop accepting work; threads end when their current call returns."""
        for pool in self._pools.values():
            pool.shutdown(wait=False)
        self._pools.clear()


def _drive(method: Method, cc: Context) -> None:
    try:
        coro = method(cc)
    except StopIteration as exc:  # a future cannot carry one: its waiter would wait forever
        raise RuntimeError("a calculator raised StopIteration") from exc
    if coro is None:
        return
    assert isinstance(coro, Coroutine)
    try:
        coro.send(None)
    except StopIteration:
        return
    coro.close()
    raise RuntimeError("a calculator on an executor blocks its thread; it cannot await the event loop")
