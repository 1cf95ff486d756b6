"""One calculator for one run: the task that calls open, process and close, and what it waits for.

The rules it keeps are stated in `scheduler.py`, the only caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ovserve.errors import NodeError
from ovserve.graph.calculator import Calculator, Context, Port
from ovserve.graph.plan import NodePlan
from ovserve.graph.streams import END, Queue, Stream, wake

if TYPE_CHECKING:
    from ovserve.graph.scheduler import GraphRun

log = logging.getLogger(__name__)


class NodeRun:
    """One calculator for one run, and the task that calls it."""

    def __init__(self, run: GraphRun, plan: NodePlan) -> None:
        self.run = run
        self.plan = plan
        size = run.plan.max_queue_size
        self.queues = [Queue(self, size, back_edge=i.back_edge) for i in plan.inputs]
        self.sets = [[self.queues[i] for i in s] for s in plan.sync_sets]
        self.port_of = {q: i.port for q, i in zip(self.queues, plan.inputs, strict=True)}
        self.parked: asyncio.Future[None] | None = None
        self.task: asyncio.Task[None] | None = None
        self.outputs: dict[Port[Any], Stream] = {}

    def ready(self) -> tuple[int, list[Queue]] | None:
        """Rule 1: the earliest settled timestamp and its set."""
        best: tuple[int, list[Queue]] | None = None
        for group in self.sets:
            first = END
            for queue in group:
                if queue.packets and queue.packets[0].timestamp < first:
                    first = queue.packets[0].timestamp
            if first == END or (best is not None and first >= best[0]):
                continue
            for queue in group:
                if not queue.packets and queue.bound <= first:
                    break
            else:
                best = first, group
        return best

    def drained(self) -> bool:
        return all(not q.packets and q.bound == END for q in self.queues)

    def notice(self) -> None:
        """Something arrived or settled: wake the task if it can use it, else pass the silence on."""
        if self.parked is None:
            return
        if self.ready() is not None or self.drained():
            # Counted as active at once: rule 5 must not see a node as parked that is about to run.
            parked, self.parked = self.parked, None
            self.run.active += 1
            wake(parked)
        else:
            self.pass_bounds()

    def pass_bounds(self) -> None:
        if len(self.sets) == 1:
            bound = min(q.packets[0].timestamp if q.packets else q.bound for q in self.queues)
            if bound != END:
                for stream in self.outputs.values():
                    stream.advance(bound)

    async def main(self) -> None:
        plan, run = self.plan, self.run
        phase, opened = "open", False
        try:
            side: dict[Port[Any], Any] = {
                port: await run.side_packet(name) for port, name in plan.side_packets
            }
            calc, cc = plan.cls(), Context(plan.node, plan.contract, side)
            await self._call(calc.open(cc))
            opened = True
            for out, name in plan.side_outputs:
                if out not in cc.side_outbox:
                    raise RuntimeError(f"open() did not set the side packet {out!r}")
                run.publish_side(name, cc.side_outbox[out])
            await self._flush(cc)
            phase = "process"
            last = -1
            while not cc.finished:
                if not self.queues and not self.outputs:
                    break  # it makes side packets only
                if not self.queues:
                    cc.timestamp = last = last + 1
                    await asyncio.sleep(0)  # a source must let the others run
                elif (work := self.ready()) is not None:
                    cc.timestamp = last = work[0]
                    cc.values = {
                        self.port_of[q]: q.pop().value
                        for q in work[1]
                        if q.packets and q.packets[0].timestamp == last
                    }
                elif self.drained():
                    break
                else:
                    await self._park()
                    continue
                await self._call(calc.process(cc))
                cc.values = {}
                if cc.outbox:
                    await self._flush(cc)
                if len(self.sets) <= 1:
                    for stream in self.outputs.values():
                        stream.advance(last + 1)
            phase, opened = "close", False
            cc.timestamp = last + 1
            await self._call(calc.close(cc))
            await self._flush(cc)
        except asyncio.CancelledError:
            if opened:
                await self._close_after_failure(calc, cc)
            raise
        except BaseException as exc:
            run.fail(NodeError(plan.node.name, phase, exc), exc)
            if opened:
                await self._close_after_failure(calc, cc)
            if not isinstance(exc, Exception):
                raise
        finally:
            self._retire()

    async def _call(self, coro: Coroutine[Any, Any, None]) -> None:
        if self.plan.executor is None:
            await coro
        else:
            await self.run.pools.run(self.plan.executor, coro)

    async def _close_after_failure(self, calc: Calculator, cc: Context) -> None:
        try:
            await self._call(calc.close(cc))
        except Exception as exc:  # the first error is the one that counts; this one is told
            log.warning("node %r also failed in close(): %s", self.plan.node.name, exc, exc_info=exc)

    async def _flush(self, cc: Context) -> None:
        outbox, cc.outbox = cc.outbox, []
        for port, timestamp, value in outbox:
            stream = self.outputs.get(port)
            if stream is None:
                if port not in cc.contract.outputs:
                    raise ValueError(f"{port!r} is not an output of this node's contract")
                continue  # an optional output that the graph does not connect
            for queue in stream.queues:
                if queue.full:
                    await self.run.hold(queue)
            stream.put(timestamp, value)

    async def _park(self) -> None:
        parked = self.parked = asyncio.get_running_loop().create_future()
        self.pass_bounds()
        self.run.rest()
        await parked

    def _retire(self) -> None:
        for queue in self.queues:
            queue.swallow = True
            queue.packets.clear()
            queue.wake_writers()
        for stream in self.outputs.values():
            stream.advance(END)
        self.run.rest()
