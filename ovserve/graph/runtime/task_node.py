"""A node whose calculator may wait: one task for the run, asleep while it has no input."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ovserve.errors import NodeError
from ovserve.graph.calculator import Calculator, Context, NodeState, Port
from ovserve.graph.plan import NodePlan
from ovserve.graph.runtime.scheduler import GraphRun, NodeRun
from ovserve.graph.runtime.streams import Queue, wake

log = logging.getLogger(__name__)

Method = Callable[[Context], Awaitable[None] | None]


class TaskNode(NodeRun):
    __slots__ = ("_full", "parked")

    def __init__(self, run: GraphRun, plan: NodePlan, state: NodeState) -> None:
        super().__init__(run, plan, state)
        self.parked: asyncio.Future[None] | None = None
        self._full: Queue

    def start(self) -> None:
        self.task = asyncio.create_task(self._main(), name=f"node {self.plan.node.name}")

    def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()

    def notice(self) -> None:
        if self.parked is None:
            return
        if self.ready() is not None or self.drained():
            # Counted as active at once: rule 5 must not treat a node as parked that is about to run.
            parked, self.parked = self.parked, None
            self.run.active += 1
            wake(parked)
        else:
            self.pass_bounds()

    async def _main(self) -> None:
        plan, run = self.plan, self.run
        phase, opened = "open", False
        try:
            cc = await self._context()
            calc = plan.cls()
            await self._call(calc.open, cc)
            opened = True
            self.publish_sides(cc)
            await self._flush(cc)
            phase = "process"
            last = -1
            works = bool(self.queues or self.outputs)  # else it only makes side packets
            while works and not cc.finished:
                if not self.queues:
                    cc.timestamp = last = last + 1
                    await asyncio.sleep(0)  # a source must let the others run
                elif (work := self.ready()) is not None:
                    last = work[0]
                    self.take(cc, *work)
                elif self.drained():
                    break
                else:
                    await self._park()
                    continue
                began = self.clock()
                if (waiting := self._begin(calc.process, cc)) is not None:
                    await waiting
                self.called(began)
                cc.values = {}
                if not self._emit(cc):
                    await self._flush(cc)
                self.advance(last + 1)
            phase, opened = "close", False
            cc.timestamp = last + 1
            await self._call(calc.close, cc)
            await self._flush(cc)
        except GeneratorExit:  # the event loop is closed
            raise
        except BaseException as exc:
            cancelled = self._cancelled(exc)
            if not cancelled:  # any exception of graph authors' code fails its run, see authors.py
                run.fail(NodeError(plan.node.name, phase, exc), exc, self)
            if opened:
                await self._close_after_failure(calc, cc)
            if cancelled:
                raise
        finally:
            self.retire()

    async def _context(self) -> Context:
        plan = self.plan
        side: dict[Port[Any], Any] = {
            port: await self.run.side_packets.wait(name) for port, name in plan.side_packets
        }
        cc = Context(plan.node, plan.contract, side, self.state)
        cc.emit = self._flush if plan.executor is None else None
        return cc

    def _begin(self, method: Method, cc: Context) -> Awaitable[None] | None:
        """Call a method of the calculator; return what is left to wait for."""
        if self.plan.executor is None:
            return method(cc)
        return self.run.pools.run(self.plan.executor, lambda: method(cc))

    async def _call(self, method: Method, cc: Context) -> None:
        if (waiting := self._begin(method, cc)) is not None:
            await waiting

    async def _close_after_failure(self, calc: Calculator, cc: Context) -> None:
        try:
            await self._call(calc.close, cc)
        except GeneratorExit:
            raise
        except BaseException as exc:  # the first error counts; this one is logged
            if self._cancelled(exc):
                raise
            log.warning("node %r also failed in close(): %s", self.plan.node.name, exc, exc_info=exc)

    def _cancelled(self, exc: BaseException) -> bool:
        """Return whether this task is to end; a calculator may await something that it cancelled itself."""
        return isinstance(exc, asyncio.CancelledError) and bool(self.task and self.task.cancelling())

    async def _flush(self, cc: Context) -> None:
        while not self._emit(cc):
            await self.run.hold(self._full)

    def _emit(self, cc: Context) -> bool:
        """Put the packets of a call, up to a full queue; return whether these were all."""
        outbox, cc.outbox = cc.outbox, []  # at once, so that close() after a failure sends none of it again
        for i, (port, timestamp, value) in enumerate(outbox):
            stream = self.outputs.get(port) or self.stream_of(cc, port)
            if stream is None:
                continue
            for queue in stream.queues:
                if len(queue.packets) >= queue.capacity and queue.full:
                    self._full = queue
                    cc.outbox = outbox[i:] + cc.outbox
                    return False
            stream.put(timestamp, value)
        return True

    async def _park(self) -> None:
        parked = self.parked = asyncio.get_running_loop().create_future()
        self.pass_bounds()
        self.run.rest()
        await parked


class WholeNode(TaskNode):
    """The one node of a graph that answers as a whole: it is called by the task that reads the answer.

    A task of its own would cost a short request two more turns of the event loop and a copy of its context.
    Nothing could happen between them: the input is complete when the reader comes, and the output when the
    node returns. Rules, errors and taps are those of any node that waits.
    """

    __slots__ = ("_stopped",)

    def __init__(self, run: GraphRun, plan: NodePlan, state: NodeState) -> None:
        super().__init__(run, plan, state)
        run.drive = self.drive
        self._stopped = False  # by the run, and not by the reader's own end

    def start(self) -> None:
        """The reader calls `GraphRun.drive`."""

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
