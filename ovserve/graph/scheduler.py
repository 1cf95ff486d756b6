"""Run a planned graph: streams, nodes, and when a node may run.

The whole theory, six rules:
1. A node runs when, for one of its sync sets, the smallest queued timestamp is *settled*: each other stream
   of the set has a packet at it or a bound past it. The set with the earliest such timestamp goes first.
   A node with a single set never sends behind its input, so its outputs' bounds follow its inputs' (silence
   is an answer).
2. A call's packets are emitted when it returns. A call that raises emits nothing.
3. A back edge delivers at t+1 and never blocks its sender.
4. Forward queues are bounded. A full one blocks the sender, so backpressure reaches the graph's
   inputs. If everything waits because of a full queue, that queue grows (or, with report_deadlock, the run
   fails): a join that needs more than the bound would otherwise stop forever.
5. Graph inputs closed and every node parked: back edges close, nodes finish, the run ends. There is no other
   notion of "done".
6. The first exception ends the run as NodeError(node, phase) with the cause kept; every opened node is
   closed.

A node whose calculator may wait is one task for the run; any other is called where its input arrives. In a
graph of one node that answers as a whole, the reader's task does that (`TaskNode`). The queues of a
finished reader discard further packets.

The side packets of one run: those given at its start, and those that its nodes make.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any

from ovserve.access.request_context import NodeTime, node_times
from ovserve.errors import NodeError, OvserveError
from ovserve.graph.calculator import Context, NodeState, Output, Packet, Port
from ovserve.graph.planning import GraphPlan, NodePlan
from ovserve.graph.streams import TIMESTAMP_DONE, Pools, Queue, Stream, TapSlot, wake

log = logging.getLogger(__name__)


class SidePackets(dict[str, Any]):
    __slots__ = ("_waiters",)

    def __init__(self, side: Mapping[str, Any]) -> None:
        super().__init__(side)
        self._waiters: dict[str, asyncio.Future[None]] = {}

    async def wait(self, name: str) -> Any:
        """Return its value, once a node has made it."""
        while name not in self:
            waiter = self._waiters.get(name)
            if waiter is None:
                waiter = self._waiters[name] = asyncio.get_running_loop().create_future()
            await asyncio.shield(waiter)
        return self[name]

    def publish(self, name: str, value: Any) -> None:
        self[name] = value
        if (waiter := self._waiters.pop(name, None)) is not None:
            wake(waiter)


LONGEST_ERROR = 2000  # characters of an error that is kept


class NodeRun(ABC):
    """One calculator for one run. `task` is cancelled to stop it, if there is one.

    Slots keep it small: each stream has one of every node, and each step touches all of them.
    """

    __slots__ = ("outputs", "plan", "queues", "run", "sets", "state", "task")

    def __init__(self, run: GraphRun, plan: NodePlan, state: NodeState) -> None:
        self.run, self.plan, self.state = run, plan, state
        self.queues: list[Queue] = []
        for inp in plan.inputs:
            self.queues.append(Queue(self, run.plan.max_queue_size, inp.port, back_edge=inp.back_edge))
        sets = plan.sync_sets
        self.sets = [self.queues] if len(sets) == 1 else [[self.queues[i] for i in s] for s in sets]
        self.task: asyncio.Task[None] | None = None
        self.outputs: dict[Port[Any], Stream] = {}

    def context(self) -> Context:
        """Return that of the node's calls; its side packets are there."""
        side: dict[Port[Any], Any] = {}
        for port, name in self.plan.side_packets:
            side[port] = self.run.side_packets[name]
        return Context(self.plan.node, self.plan.contract, side, self.state)

    def called(self, began: float) -> None:
        """Report a call, where the graph is watched or the request traced."""
        now = time.perf_counter()
        if (tap := self.run.watched.tap) is not None:
            tap.called(self.plan.node.name, now - began)
        if (times := self.run.times) is not None:
            name = self.plan.node.name
            if name not in times:
                times[name] = NodeTime(began)
            times[name].add(began, now)

    def ready(self) -> tuple[int, list[Queue]] | None:
        """Apply rule 1: return the earliest settled timestamp and its set; None: wait.

        The timestamp is TIMESTAMP_DONE once no packet is left and none can come."""
        earliest: tuple[int, list[Queue]] = TIMESTAMP_DONE, []
        waits = False
        for group in self.sets:
            first = bound = TIMESTAMP_DONE
            for queue in group:
                if queue.packets:
                    first = min(first, queue.packets[0].timestamp)
                else:
                    bound = min(bound, queue.bound)
            if first < min(bound, earliest[0]):
                earliest = first, group
            waits |= bound <= first and bound != TIMESTAMP_DONE
        return None if waits and earliest[0] == TIMESTAMP_DONE else earliest

    @abstractmethod
    def start(self) -> None:
        """Open the calculator, immediately or soon."""

    @abstractmethod
    def notice(self) -> None:
        """React to a packet or a new bound: use it, or pass the bound on."""

    @abstractmethod
    def stop(self) -> None:
        """The run is over or has failed: close the calculator if it was opened."""

    def release(self) -> None:
        """Let go of the run, which is over. Runs that refer to themselves are freed by the garbage collector
        only, which comes after some hundreds of them: 26 kB each with the default graph."""
        for queue in self.queues:
            queue.owner = queue.direct = None

    def pass_bounds(self, bound: int = TIMESTAMP_DONE) -> None:
        """Apply rule 1: a node with a single set never sends behind its input. `bound`: after a call."""
        if len(self.sets) > 1:
            return
        for queue in self.queues:
            bound = min(bound, queue.packets[0].timestamp if queue.packets else queue.bound)
        for stream in self.outputs.values():
            if stream.bound < bound != TIMESTAMP_DONE:  # a packet at it has already moved the bound
                stream.advance(bound)

    def take(self, cc: Context, timestamp: int, group: list[Queue]) -> None:
        """Move the packets at the timestamp into the context of the next call."""
        cc.timestamp = timestamp
        values: dict[Port[Any], Any] = {}
        for queue in group:
            if queue.packets and queue.packets[0].timestamp == timestamp:
                values[queue.port] = queue.pop().value
        cc.values = values

    def stream_of(self, cc: Context, port: Output[Any]) -> Stream | None:
        """Return the stream; None for an optional output that the graph does not connect."""
        stream = self.outputs.get(port)
        if stream is None and port not in cc.contract.outputs:
            raise ValueError(f"{port!r} is not an output of this node's contract")
        return stream

    def publish_sides(self, cc: Context) -> None:
        for out, name in self.plan.side_outputs:
            if out not in cc.side_outbox:
                raise RuntimeError(f"open() did not set the side packet {out!r}")
            self.run.side_packets.publish(name, cc.side_outbox[out])

    def retire(self) -> None:
        """Mark the node as finished: it reads and writes nothing any more, and its queues let go of it."""
        for queue in self.queues:
            queue.swallow = True
            queue.packets.clear()
            queue.owner = queue.direct = None
            if queue.writers:
                queue.wake_writers()
        for stream in self.outputs.values():
            stream.advance(TIMESTAMP_DONE)
        self.run.retired()


class GraphRun:
    """One run of a graph. Use as `async with graph.start(...) as run`; leaving the block ends every node."""

    def __init__(
        self,
        plan: GraphPlan,
        pools: Pools,
        side: Mapping[str, Any],
        read: Iterable[str],
        watched: TapSlot,
        nodes: Iterable[tuple[Callable[[GraphRun, NodePlan, NodeState], NodeRun], NodePlan, NodeState]],
    ) -> None:
        """`nodes` are those of the plan, in its order, each with what makes it for this run."""
        self.plan = plan
        self.watched = watched
        self.times = node_times()
        self.pools = pools
        self.active = len(plan.nodes)  # nodes that are not parked, held or finished
        self.error: NodeError | None = None
        self.over = False  # only close() may still be called
        self.held: list[Queue] = []  # full queues that hold a node
        self.side_packets = SidePackets(side)
        self._looping = True
        self._unfinished = len(plan.nodes)
        self._finished: asyncio.Future[None] | None = None
        self.drive: Callable[[], Awaitable[None]] | None = None  # runs the only node, in the reader's task
        self.nodes: list[NodeRun] = []
        self.inputs: dict[str, Stream] = {}
        self.outputs: dict[str, Queue] = {}
        streams: dict[str, Stream] = {}
        for end in plan.inputs:
            streams[end.name] = self.inputs[end.name] = Stream(end.name, self, watched)
        for make, node_plan, state in nodes:
            node = make(self, node_plan, state)
            self.nodes.append(node)
            for out in node_plan.outputs:
                streams[out.stream] = node.outputs[out.port] = Stream(out.stream, self, watched)
        for node in self.nodes:
            for queue, inp in zip(node.queues, node.plan.inputs, strict=True):
                streams[inp.stream].queues.append(queue)
        for name in read:
            queue = self.outputs[name] = Queue(None, plan.max_queue_size)
            streams[name].queues.append(queue)

    async def __aenter__(self) -> GraphRun:
        if self.watched.tap is not None:
            self.watched.tap.started(self)
        for node in self.nodes:
            node.start()
        if self.over:  # an open() failed; later nodes have been started anyway
            for node in self.nodes:
                node.stop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over = True
        if self.watched.tap is not None:
            self.watched.tap.ended(self)
        cancelled, pending = False, set[asyncio.Task[None]]()
        if self._unfinished:
            for node in self.nodes:
                node.stop()
            pending = {n.task for n in self.nodes if n.task is not None and not n.task.done()}
        while pending:
            try:
                _, pending = await asyncio.wait(pending)
            except asyncio.CancelledError:
                # Cancelled: interrupt what close() waits for, but never leave a node behind.
                cancelled = True
                for task in pending:
                    task.cancel()
        if self._unfinished:
            for node in self.nodes:
                node.release()
        self.nodes, self.inputs, self.drive = [], {}, None  # see `NodeRun.release`
        if cancelled:
            raise asyncio.CancelledError

    async def send(self, name: str, value: Any, timestamp: int | None = None) -> None:
        """Put a packet on a graph input; waits while a reader's queue is full (rule 4).

        Without a timestamp it takes the stream's next one. Raises KeyError for an unknown input, NodeError
        once the run has failed.
        """
        stream = self.inputs[name]
        for queue in stream.queues:
            while queue.full and self.error is None:
                await self._wait_for_room(queue)
        if self.error is not None:
            raise self.error
        if stream.bound == TIMESTAMP_DONE:
            raise ValueError(f"graph input {name!r} is closed")
        stream.put(stream.bound if timestamp is None else timestamp, value)

    def close_input(self, name: str) -> None:
        self.inputs[name].advance(TIMESTAMP_DONE)
        self.check_rest()

    def close_inputs(self) -> None:
        for stream in self.inputs.values():
            stream.advance(TIMESTAMP_DONE)
        self.check_rest()

    async def read(self, name: str) -> Packet | None:
        """Return the next packet of a graph output; None at its end. Raises NodeError if the run failed."""
        queue = self.outputs[name]
        while not queue.packets:
            if not await self._more(queue):
                return None
            if not queue.packets:
                await queue.arrival()
        return queue.pop()

    async def _more(self, queue: Queue) -> bool:
        """Return False at the end of an empty graph output. Raises NodeError if the run failed."""
        if self.error is None and queue.bound != TIMESTAMP_DONE and (drive := self.drive) is not None:
            self.drive = None
            await drive()
        if queue.packets:
            return True
        if self.error is not None:
            raise self.error
        return queue.bound != TIMESTAMP_DONE

    async def pour(self, name: str, sink: Callable[[Any], bool]) -> bool:
        """Call `sink` with the value of each packet of a graph output, until it returns False or the output
        ends. Return whether there may be more. Raises NodeError if the run failed.

        `sink` is called where the packet is sent, so it must be short and must not raise. A reader that is
        woken for each packet costs a turn of the event loop instead.
        """
        queue = self.outputs[name]
        while await self._more(queue):
            if await queue.pour(sink):
                return True
        return False

    async def output(self, name: str) -> AsyncIterator[Packet]:
        while (packet := await self.read(name)) is not None:
            yield packet

    async def wait(self) -> None:
        """Wait until every node has finished. Raises NodeError if the run failed."""
        await asyncio.gather(*(n.task for n in self.nodes if n.task), return_exceptions=True)
        if self._unfinished and self.error is None:
            self._finished = asyncio.get_running_loop().create_future()
            await self._finished
        if self.error is not None:
            raise self.error

    def fail(self, error: NodeError, cause: BaseException, failed: NodeRun | None = None) -> None:
        """Apply rule 6. Later errors are consequences of the first and are dropped. `failed` closes
        itself."""
        if self.error is not None:
            return
        error.__cause__ = cause
        self.error = error
        if error.node:
            self.watched.errors[error.node] = time.time(), str(error)[:LONGEST_ERROR]
        if self.watched.tap is not None:
            self.watched.tap.failed(self, error.node)
        self.over = True
        for node in self.nodes:
            if node is not failed:
                node.stop()
        if self._finished is not None:
            wake(self._finished)
        for queue in [*self.outputs.values(), *(q for s in self.inputs.values() for q in s.queues)]:
            queue.wake_writers()
            if queue.reader is not None:
                wake(queue.reader)

    def cancel(self, error: OvserveError) -> None:
        """End the run with an error from outside; what its outputs hold can still be read."""
        self.fail(NodeError("", "process", error), error)

    async def hold(self, queue: Queue) -> None:
        """Wait for room in `queue`; the node is not active meanwhile."""
        self.held.append(queue)
        self.active -= 1  # whether all rest is looked at once the queue knows who waits
        try:
            while queue.full:
                await self._wait_for_room(queue)
        finally:
            self.held.remove(queue)
            self.active += 1

    async def _wait_for_room(self, queue: Queue) -> None:
        future = asyncio.get_running_loop().create_future()
        queue.writers.append(future)
        self.check_rest()
        await future

    def retired(self) -> None:
        """Record that one node more has ended."""
        self._unfinished -= 1
        if not self._unfinished and self._finished is not None:
            wake(self._finished)
        self.active -= 1
        if not self.active:
            self.check_rest()

    def rest(self) -> None:
        """Record that one node fewer is active."""
        self.active -= 1
        if not self.active:
            self.check_rest()

    def check_rest(self) -> None:
        """Apply rules 4 and 5 if no node is active."""
        if self.active or self.error is not None:
            return
        for queue in self.outputs.values():  # writers first: `full` is a call, 13 times a request
            if queue.writers and queue.full:
                return  # the client is slow; it will read a packet
        for queue in self.held:
            if not queue.full:
                return  # that node has been woken and will run
        stuck = self.held.copy()
        for stream in self.inputs.values():
            for queue in stream.queues:
                if queue.writers and queue.full:
                    stuck.append(queue)
        for queue in stuck:
            self._relieve(queue)
        if not stuck and self._looping:
            self._close_loops()

    def _close_loops(self) -> None:
        """Close the back edges, once the inputs are closed."""
        for stream in self.inputs.values():
            if stream.bound != TIMESTAMP_DONE:
                return
        self._looping = False
        for node in self.nodes:
            for queue in node.queues:
                if queue.delay and queue.owner is not None:
                    queue.bound = TIMESTAMP_DONE
                    queue.owner.notice()

    def _relieve(self, queue: Queue) -> None:
        node = next(n for n in self.nodes if queue in n.queues)
        full = f"{queue.port!r} is full ({queue.capacity} packets)"
        message = f"deadlock: {full} and the node waits for its other inputs"
        if self.plan.report_deadlock:
            self.fail(NodeError(node.plan.node.name, "process", RuntimeError(message)), RuntimeError(message))
            return
        log.warning("node %r: %s; the queue grows", node.plan.node.name, message)
        queue.capacity *= 2
        queue.wake_writers()
