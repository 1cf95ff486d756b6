"""The kinds of nodes of a run.

A node whose calculator never waits needs no task and is called where its input arrives. So a packet passes a
chain of such nodes in one go. Its outputs are checked for room before a call, not between the packets of one
call, because nothing could wait in between. A queue may then exceed its bound by what a single call sends.

A node whose calculator may wait has one task for the run, which sleeps while there is no input.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Any

from ovserve.errors import NodeError
from ovserve.graph.calculator import Calculator, Context, Method, NodeState
from ovserve.graph.planning import NodePlan
from ovserve.graph.scheduler import GraphRun, NodeRun
from ovserve.graph.streams import TIMESTAMP_DONE, Queue, wake

log = logging.getLogger(__name__)


class TaskNode(NodeRun):
    """A node with a task, or `whole`: the one node of a graph that answers as a whole, which is called by the
    task that reads the answer.

    A task of its own would cost a short request two more turns of the event loop and a copy of its context.
    Nothing could happen between them: the input is complete when the reader comes, and the output when the
    node returns. Rules, errors and taps are the same.
    """

    __slots__ = ("_full", "_opened", "_stopped", "_whole", "parked")

    def __init__(self, run: GraphRun, plan: NodePlan, state: NodeState, *, whole: bool = False) -> None:
        super().__init__(run, plan, state)
        self.parked: asyncio.Future[None] | None = None
        self._full: Queue
        self._opened: tuple[Method, Context] | None = None  # close(), to be called once, and its argument
        self._whole = whole
        self._stopped = False  # by the run, and not by the reader's own end
        if whole:
            run.drive = self._drive

    def start(self) -> None:
        if not self._whole:  # else the reader calls `GraphRun.drive`
            self.task = asyncio.create_task(self._main(), name=f"node {self.plan.node.name}")

    def stop(self) -> None:
        if self.task is not None and not (self._whole and self._stopped):
            self._stopped = True
            self.task.cancel()

    def notice(self) -> None:
        if self.parked is None:
            return
        if self.ready() is not None:
            # Counted as active at once: rule 5 must not treat a node as parked that is about to run.
            parked, self.parked = self.parked, None
            self.run.active += 1
            wake(parked)
        else:
            self.pass_bounds()

    async def _main(self) -> None:
        run, phase = self.run, "open"
        try:
            process, cc = await self._open()
            phase = "process"
            last = -1
            works = bool(self.queues or self.outputs)  # else it only makes side packets
            while works and not cc.finished:
                if not self.queues:
                    cc.timestamp = last = last + 1
                    await asyncio.sleep(0)  # a source must let the others run
                elif (work := self.ready()) is None:
                    await self._park()
                    continue
                elif work[0] == TIMESTAMP_DONE:
                    break
                else:
                    last = work[0]
                    self.take(cc, *work)
                began = time.perf_counter()
                if (waiting := process(cc)) is not None:
                    await waiting
                if run.times is not None or run.watched.tap is not None:
                    self.called(began)
                cc.values = {}
                if cc.outbox and not self._emit(cc):
                    await self._flush(cc)
                self.pass_bounds(last + 1)
            phase = "close"
            cc.timestamp = last + 1
            await self._close()
            if cc.outbox:
                await self._flush(cc)
        except GeneratorExit:  # the event loop is closed
            raise
        except BaseException as exc:
            if await self._failed(phase, exc):
                raise
        finally:
            self.retire()

    async def _open(self) -> tuple[Method, Context]:
        plan, run = self.plan, self.run
        for _, name in plan.side_packets:
            if name not in run.side_packets:
                await run.side_packets.wait(name)
        calc, cc = plan.cls(), self.context()
        methods: list[Method] = [calc.open, calc.process, calc.close]
        if plan.executor is None:
            cc.emit = self._flush
        else:
            methods = [partial(run.pools.run, plan.executor, method) for method in methods]
        begin, process, close = methods
        if (waiting := begin(cc)) is not None:
            await waiting
        self._opened = close, cc
        if plan.side_outputs:
            self.publish_sides(cc)
        if cc.outbox:
            await self._flush(cc)
        return process, cc

    async def _close(self) -> None:
        if self._opened is None:
            return
        (close, cc), self._opened = self._opened, None
        if (waiting := close(cc)) is not None:
            await waiting

    async def _failed(self, phase: str, exc: BaseException) -> bool:
        """Fail the run, unless this task was cancelled; return whether it was."""
        cancelled = self._cancelled(exc)
        if not cancelled:  # any exception of graph authors' code fails its run, see registry.py
            self.run.fail(NodeError(self.plan.node.name, phase, exc), exc, self)
        try:
            await self._close()
        except GeneratorExit:
            raise
        except BaseException as exc:  # the first error counts; this one is logged
            if self._cancelled(exc):
                raise
            log.warning("node %r also failed in close(): %s", self.plan.node.name, exc, exc_info=exc)
        return cancelled

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

    async def _drive(self) -> None:
        """Run a `whole` node to its end, once. What it raises is the run's error."""
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


class InlineNode(NodeRun):
    __slots__ = ("_busy", "_calc", "_cc", "_held_by", "_last", "_opened")

    def __init__(self, run: GraphRun, plan: NodePlan, state: NodeState) -> None:
        super().__init__(run, plan, state)
        self._busy = True  # not to be called by `notice`: not open yet, in a call, held, or over
        self._opened = False
        self._held_by: Queue | None = None
        self._last = -1
        self._calc: Calculator
        self._cc: Context
        if len(self.sets) == 1:
            for queue in self.queues:
                queue.direct = None if queue.delay else self

    def start(self) -> None:
        for _, name in self.plan.side_packets:
            if name not in self.run.side_packets:
                self.task = asyncio.create_task(self._start_later(), name=f"node {self.plan.node.name}")
                return
        self._open()

    async def _start_later(self) -> None:
        try:
            for _, name in self.plan.side_packets:
                await self.run.side_packets.wait(name)
        except asyncio.CancelledError:
            self.retire()
            raise
        self._open()

    def _open(self) -> None:
        try:
            self._calc = self.plan.cls()
            self._cc = self.context()
            self._calc.open(self._cc)
            self._opened = True
            if self.plan.side_outputs:
                self.publish_sides(self._cc)
            if self._cc.outbox:
                self._emit()
        except BaseException as exc:  # noqa: BLE001  authors' code: fails its run, see registry.py
            self._fail("open", exc)
            return
        for queue in self.queues:
            if queue.packets or queue.bound:
                self._work()
                return
        self._busy = False
        self.run.rest()

    def notice(self) -> None:
        if self._busy:
            return  # the running call checks again before it returns
        if (work := self.ready()) is not None:
            self._busy = True
            self.run.active += 1
            self._work(work)
        else:
            self.pass_bounds()

    def direct(self, queue: Queue, timestamp: int, value: Any) -> bool:
        """Call the calculator with a packet that settles its timestamp, which is nearly every packet of a
        long stream. `_work` does the same in general, for twice the time."""
        run = self.run
        if self._busy or run.over or queue.packets:
            return False
        for other in self.queues:
            if other is not queue and (other.packets or other.bound <= timestamp):
                return False
        if self._full_queue() is not None:
            return False
        self._busy = True
        run.active += 1
        cc = self._cc
        self._last = cc.timestamp = timestamp
        queue.bound = bound = timestamp + 1
        cc.values = {queue.port: value}
        try:
            self._process(cc)
        except BaseException as exc:  # noqa: BLE001  authors' code: fails its run, see registry.py
            self._fail("process", exc)
            return True
        for stream in self.outputs.values():
            if stream.bound < bound:  # nothing was sent on it
                stream.advance(bound)
        if cc.finished or run.over or queue.packets or queue.bound != bound:
            self._work()
            return True
        self._busy = False
        run.active -= 1
        if not run.active:
            run.check_rest()
        return True

    def stop(self) -> None:
        if self.task is not None and not self._opened:
            self.task.cancel()
        elif self._held_by is not None:
            self._let_go()
            self._work()
        elif not self._busy:
            self._busy = True
            self.run.active += 1
            self._work()

    def _work(self, work: tuple[int, list[Queue]] | None = None) -> None:
        """Call the calculator while it has input. `_busy` is set, and the node counts as active."""
        cc, run = self._cc, self.run
        try:
            while not cc.finished:
                if run.over:
                    self._close_after_failure()
                    self.retire()
                    return
                if work is None and (work := self.ready()) is None:
                    self._busy = False
                    self.pass_bounds()
                    run.rest()
                    return
                if work[0] == TIMESTAMP_DONE:
                    break
                if (full := self._full_queue()) is not None:
                    self._hold(full)
                    return
                self._last = work[0]
                self.take(cc, *work)
                self._process(cc)
                self.pass_bounds(self._last + 1)
                work = None
        except BaseException as exc:  # noqa: BLE001  authors' code: fails its run, see registry.py
            self._fail("process", exc)
            return
        try:
            self._opened = False
            cc.timestamp = self._last + 1
            self._calc.close(cc)
            if cc.outbox:
                self._emit()
        except BaseException as exc:  # noqa: BLE001  authors' code: fails its run, see registry.py
            self._fail("close", exc)
            return
        self.retire()

    def _process(self, cc: Context) -> None:
        """Call the calculator with what `cc` holds, and emit what it sends."""
        began = time.perf_counter()
        self._calc.process(cc)
        if self.run.times is not None or self.run.watched.tap is not None:
            self.called(began)
        cc.values = {}
        if cc.outbox:
            self._emit()

    def _emit(self) -> None:
        outbox, self._cc.outbox = self._cc.outbox, []
        for port, timestamp, value in outbox:
            stream = self.outputs.get(port) or self.stream_of(self._cc, port)
            if stream is not None:
                stream.put(timestamp, value)

    def _full_queue(self) -> Queue | None:
        for stream in self.outputs.values():
            for queue in stream.queues:
                # The first test alone decides almost always, and `full` is a call for each packet.
                if len(queue.packets) >= queue.capacity and queue.full:
                    return queue
        return None

    def _hold(self, queue: Queue) -> None:
        room = asyncio.get_running_loop().create_future()
        room.add_done_callback(self._on_room)
        queue.writers.append(room)
        self._held_by = queue
        self.run.held.append(queue)
        self.run.rest()

    def _on_room(self, room: asyncio.Future[None]) -> None:
        if self._held_by is not None:
            self._let_go()
            self._work()

    def _let_go(self) -> None:
        assert self._held_by is not None
        self.run.held.remove(self._held_by)
        self._held_by = None
        self.run.active += 1

    def _fail(self, phase: str, exc: BaseException) -> None:
        self.run.fail(NodeError(self.plan.node.name, phase, exc), exc, self)
        self._close_after_failure()
        self.retire()

    def _close_after_failure(self) -> None:
        if not self._opened:
            return
        self._opened = False
        try:
            self._calc.close(self._cc)
        except BaseException as exc:  # code of graph authors; the first error counts
            log.warning("node %r also failed in close(): %s", self.plan.node.name, exc, exc_info=exc)
