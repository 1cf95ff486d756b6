"""One calculator for one run: its queues, and what it does with a packet.

`scheduler.py` states the rules. The two kinds of node differ in who calls the calculator: a task
(`task_node.py`), or the sender of the packet (`inline_node.py`).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from ovserve.access.request_context import NodeTime
from ovserve.graph.calculator import Context, NodeState, Output, Port
from ovserve.graph.plan import NodePlan
from ovserve.graph.runtime.streams import END, Queue, Stream

if TYPE_CHECKING:
    from ovserve.graph.runtime.scheduler import GraphRun


class NodeRun(ABC):
    """One calculator for one run. `task` is cancelled to stop it, if there is one.

    Slots keep it small: each stream has one of every node, and each step touches all of them.
    """

    __slots__ = ("outputs", "plan", "port_of", "queues", "run", "sets", "state", "task")

    def __init__(self, run: GraphRun, plan: NodePlan, state: NodeState) -> None:
        self.run = run
        self.state = state
        self.plan = plan
        size = run.plan.max_queue_size
        self.queues = [Queue(self, size, back_edge=i.back_edge) for i in plan.inputs]
        self.sets = [[self.queues[i] for i in s] for s in plan.sync_sets]
        self.port_of = {q: i.port for q, i in zip(self.queues, plan.inputs, strict=True)}
        self.task: asyncio.Task[None] | None = None
        self.outputs: dict[Port[Any], Stream] = {}

    def clock(self) -> float:
        """Return the time before a call if the graph is watched or the request traced, else 0."""
        timed = self.run.watched.tap is not None or self.run.times is not None
        return time.perf_counter() if timed else 0.0

    def called(self, began: float) -> None:
        """Report a call to whoever watched when it began."""
        if not began:
            return
        now = time.perf_counter()
        if (tap := self.run.watched.tap) is not None:
            tap.called(self, now - began)
        if (times := self.run.times) is not None:
            name = self.plan.node.name
            if name not in times:
                times[name] = NodeTime(began)
            times[name].add(began, now)

    def ready(self) -> tuple[int, list[Queue]] | None:
        """Apply rule 1: return the earliest settled timestamp and its set."""
        best: tuple[int, list[Queue]] | None = None
        for group in self.sets:
            first = END
            for queue in group:
                if (packets := queue.packets) and (at := packets[0][0]) < first:
                    first = at
            if first == END or (best is not None and first >= best[0]):
                continue
            for queue in group:
                if not queue.packets and queue.bound <= first:
                    break
            else:
                best = first, group
        return best

    def drained(self) -> bool:
        for queue in self.queues:  # noqa: SIM110  a generator costs two microseconds per token
            if queue.bound != END or queue.packets:
                return False
        return True

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

    def pass_bounds(self) -> None:
        if len(self.sets) == 1:
            bound = END
            for queue in self.queues:
                at = queue.packets[0].timestamp if queue.packets else queue.bound
                if at < bound:
                    bound = at
            if bound != END:
                for stream in self.outputs.values():
                    stream.advance(bound)

    def take(self, cc: Context, timestamp: int, group: list[Queue]) -> None:
        """Move the packets at the timestamp into the context of the next call."""
        cc.timestamp = timestamp
        values: dict[Port[Any], Any] = {}
        for queue in group:
            if queue.packets and queue.packets[0].timestamp == timestamp:
                values[self.port_of[queue]] = queue.pop().value
        cc.values = values

    def advance(self, bound: int) -> None:
        """Apply rule 1: a node with a single set never sends behind its input."""
        if len(self.sets) <= 1:
            for stream in self.outputs.values():
                if bound > stream.bound:  # a packet at it has already moved the bound
                    stream.advance(bound)

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
        """Mark the node as finished: it reads and writes nothing any more."""
        for queue in self.queues:
            queue.swallow = True
            queue.packets.clear()
            queue.wake_writers()
        for stream in self.outputs.values():
            stream.advance(END)
        self.run.retired()
