"""A node whose calculator may wait: one task for the run, asleep while it has no input."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ovserve.errors import NodeError
from ovserve.graph.calculator import Calculator, Context, Port
from ovserve.graph.loading import NodeState
from ovserve.graph.plan import NodePlan
from ovserve.graph.runtime.node_run import NodeRun
from ovserve.graph.runtime.streams import wake

if TYPE_CHECKING:
    from ovserve.graph.runtime.scheduler import GraphRun

log = logging.getLogger(__name__)


class TaskNode(NodeRun):
    def __init__(self, run: GraphRun, plan: NodePlan, state: NodeState) -> None:
        super().__init__(run, plan, state)
        self.parked: asyncio.Future[None] | None = None

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
            side: dict[Port[Any], Any] = {
                port: await run.side_packet(name) for port, name in plan.side_packets
            }
            calc, cc = plan.cls(), Context(plan.node, plan.contract, side, self.state)
            cc.emit = self._flush if plan.executor is None else None
            await self._call(calc.open, cc)
            opened = True
            self.publish_sides(cc)
            await self._flush(cc)
            phase = "process"
            last = -1
            while not cc.finished:
                if not self.queues and not self.outputs:
                    break  # it only makes side packets
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
                await self._call(calc.process, cc)
                self.called(began)
                cc.values = {}
                if cc.outbox:
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

    async def _call(self, method: Callable[[Context], Awaitable[None] | None], cc: Context) -> None:
        if self.plan.executor is not None:
            await self.run.pools.run(self.plan.executor, lambda: method(cc))
        elif (waiting := method(cc)) is not None:
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
        outbox, cc.outbox = cc.outbox, []
        for port, timestamp, value in outbox:
            stream = self.outputs.get(port) or self.stream_of(cc, port)
            if stream is None:
                continue
            for queue in stream.queues:
                if len(queue.packets) >= queue.capacity and queue.full:
                    await self.run.hold(queue)
            stream.put(timestamp, value)

    async def _park(self) -> None:
        parked = self.parked = asyncio.get_running_loop().create_future()
        self.pass_bounds()
        self.run.rest()
        await parked
