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
graph of one node that answers as a whole, the reader's task does that (`WholeNode`). The queues of a
finished reader discard further packets.

The side packets of one run: those given at its start, and those that its nodes make.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from ovserve.access.request_context import node_times
from ovserve.errors import NodeError, OvserveError
from ovserve.graph.calculator import NodeState, Packet
from ovserve.graph.plan import GraphPlan, NodePlan
from ovserve.graph.runtime.executors import Pools
from ovserve.graph.runtime.inline_node import InlineNode
from ovserve.graph.runtime.node_run import NodeRun
from ovserve.graph.runtime.streams import END, Queue, Stream, wake
from ovserve.graph.runtime.tap import TapSlot
from ovserve.graph.runtime.task_node import TaskNode


class WholeNode(TaskNode):
    """The one node of a graph that answers as a whole: it is called by the task that reads the answer.

    A task of its own would cost a short request two more turns of the event loop and a copy of its context.
    Nothing could happen between them: the input is complete when the reader comes, and the output when the
    node returns. Rules, errors and taps are those of any node that waits.
    """

    __slots__ = ("_stopped",)

    def __init__(self, run: GraphRun, plan: NodePlan, state: NodeState) -> None:
        super().__init__(run, plan, state)
        self._stopped = False  # by the run, and not by the reader's own end

    def start(self) -> None:
        """The reader calls `drive`."""

    def stop(self) -> None:
        if self.task is not None and not self._stopped:
            self._stopped = True
            self.task.cancel()

    async def drive(self) -> None:
        """Run the node to its end, once. What it raises is the run's error."""
        self.task = reader = asyncio.current_task()
        assert reader is not None, "a coroutine on the event loop"
        before = reader.cancelling()
        try:
            await self._main()
        except asyncio.CancelledError:
            # As in asyncio.timeout: a cancellation that came from elsewhere goes on.
            if not self._stopped or reader.uncancel() > before:
                raise
        else:
            if self._stopped:  # too late for the node, which has finished
                reader.uncancel()
        finally:
            self.task = None  # the run must not wait for it


class SidePackets:
    __slots__ = ("_values", "_waiters")

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._values = dict(given)
        self._waiters: dict[str, asyncio.Future[None]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    async def wait(self, name: str) -> Any:
        """Return its value, once a node has made it."""
        while name not in self._values:
            waiter = self._waiters.get(name)
            if waiter is None:
                waiter = self._waiters[name] = asyncio.get_running_loop().create_future()
            await asyncio.shield(waiter)
        return self._values[name]

    def publish(self, name: str, value: Any) -> None:
        self._values[name] = value
        if (waiter := self._waiters.pop(name, None)) is not None:
            wake(waiter)


log = logging.getLogger(__name__)

LONGEST_ERROR = 2000  # characters of an error that is kept


class GraphRun:
    """One run of a graph. Use as `async with graph.start(...) as run`; leaving the block ends every node."""

    def __init__(
        self,
        plan: GraphPlan,
        pools: Pools,
        side: Mapping[str, Any],
        read: Iterable[str],
        states: Sequence[NodeState],
        watched: TapSlot | None = None,
        *,
        whole: bool = False,
    ) -> None:
        """`whole`: the inputs get one packet and are closed before the first read, by the only reader."""
        self.plan = plan
        self.watched = watched or TapSlot()
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
        self._whole: WholeNode | None = None  # to be driven by the reader
        self.nodes: list[NodeRun]
        if whole and plan.whole:
            self._whole = WholeNode(self, plan.nodes[0], states[0])
            self.nodes = [self._whole]
        else:
            self.nodes = [
                (InlineNode if p.inline else TaskNode)(self, p, state)
                for p, state in zip(plan.nodes, states, strict=True)
            ]
        streams = {e.name: Stream(e.name, self) for e in plan.inputs}
        for node in self.nodes:
            for out in node.plan.outputs:
                streams[out.stream] = node.outputs[out.port] = Stream(out.stream, self)
        for node in self.nodes:
            for queue, inp in zip(node.queues, node.plan.inputs, strict=True):
                streams[inp.stream].queues.append(queue)
        self.inputs = {e.name: streams[e.name] for e in plan.inputs}
        self.outputs = {name: Queue(None, plan.max_queue_size) for name in read}
        for name, queue in self.outputs.items():
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
        for node in self.nodes:
            node.stop()
        pending = {n.task for n in self.nodes if n.task is not None and not n.task.done()}
        cancelled = False
        while pending:
            try:
                _, pending = await asyncio.wait(pending)
            except asyncio.CancelledError:
                # Cancelled: interrupt what close() waits for, but never leave a node behind.
                cancelled = True
                for task in pending:
                    task.cancel()
        for node in self.nodes:
            node.release()
        self.nodes, self.inputs = [], {}  # see `release`
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
        if stream.bound == END:
            raise ValueError(f"graph input {name!r} is closed")
        stream.put(stream.bound if timestamp is None else timestamp, value)

    def close_input(self, name: str) -> None:
        self.inputs[name].advance(END)
        self.check_rest()

    def close_inputs(self) -> None:
        for name in self.inputs:
            self.close_input(name)

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
        if self.error is None and queue.bound != END and (whole := self._whole) is not None:
            self._whole = None
            await whole.drive()
        if queue.packets:
            return True
        if self.error is not None:
            raise self.error
        return queue.bound != END

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
        self.rest()
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
        """Record that a node has finished."""
        self._unfinished -= 1
        if not self._unfinished and self._finished is not None:
            wake(self._finished)
        self.rest()

    def rest(self) -> None:
        """Record that one node fewer is active."""
        self.active -= 1
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
        queues = [q for n in self.nodes for q in n.queues]
        stuck = [q for q in queues if (q.writers or q in self.held) and q.full]
        for queue in stuck:
            self._relieve(queue)
        parked = not stuck and not self.held and self._looping
        if parked and all(s.bound == END for s in self.inputs.values()):
            self._looping = False
            for queue in queues:
                if queue.delay:
                    queue.bound = END
                    queue.wake_reader()

    def _relieve(self, queue: Queue) -> None:
        node = next(n for n in self.nodes if queue in n.port_of)
        port = node.port_of[queue]
        full = f"{port!r} is full ({queue.capacity} packets)"
        message = f"deadlock: {full} and the node waits for its other inputs"
        if self.plan.report_deadlock:
            self.fail(NodeError(node.plan.node.name, "process", RuntimeError(message)), RuntimeError(message))
            return
        log.warning("node %r: %s; the queue grows", node.plan.node.name, message)
        queue.capacity *= 2
        queue.wake_writers()
