"""A graph ready to run: a host (the server, a test) loads it once and starts a run of it for every
request.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from ovserve.errors import LoadError, described
from ovserve.graph.calculator import LoadContext, NodeState
from ovserve.graph.config import GraphConfig, load_graph, parse_graph
from ovserve.graph.nodes import InlineNode, TaskNode
from ovserve.graph.planning import GraphPlan, NodePlan, plan_graph
from ovserve.graph.registry import Registry, innermost
from ovserve.graph.scheduler import GraphRun
from ovserve.graph.streams import Pools, TapSlot
from ovserve.telemetry.metrics import NodeEvents

T = TypeVar("T")

log = logging.getLogger(__name__)


async def load_node(plan: NodePlan, side: Mapping[str, Any], state: NodeState) -> None:
    """Call the node's `load()`: on the event loop if it is a coroutine, else on a thread.

    A calculator lives for one request. The class method `load` makes what is expensive and the same for all
    of them: an index, a database, a client session. It runs once per node and loaded graph; `unload` releases
    it. Raises LoadError.
    """
    began = time.monotonic()
    packets = {port: side[name] for port, name in plan.side_packets if name in side}
    cls, context = plan.cls, LoadContext(plan.node, plan.contract, packets)
    try:
        if inspect.iscoroutinefunction(cls.load):
            state.value = await cls.load(context)
        else:
            state.value = await on_thread(cls.load, context)
    except (LoadError, GeneratorExit):
        raise
    except BaseException as exc:
        task = asyncio.current_task()
        if isinstance(exc, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        place = f" ({at})" if (at := innermost(exc, context.directory)) else ""
        fault = f"{plan.node.calculator}: load() raised {described(exc)}{place}"
        raise plan.node.error(fault, "calculator") from exc
    state.seconds = time.monotonic() - began


async def on_thread(call: Callable[[Any], T], argument: Any, name: str = "load") -> T:
    """Call it on a thread of its own, which does not keep a stopping server alive if it hangs."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if isinstance(error, StopIteration):  # a future cannot carry one
            error = RuntimeError("StopIteration")
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    def run() -> None:
        result, error = None, None
        try:
            result = call(argument)
        except BaseException as exc:  # noqa: BLE001  authors' code: raised in the caller
            error = exc
        with suppress(RuntimeError):  # the loop has ended without waiting
            loop.call_soon_threadsafe(settle, result, error)

    Thread(target=copy_context().run, args=(run,), daemon=True, name=f"{name} {call.__qualname__}").start()
    return await done


async def unload_node(plan: NodePlan, state: NodeState) -> None:
    """Call the node's `unload()`. Its failure is logged, because no caller is left."""
    if lost := await state.follow_ups.drain():
        log.warning("node %r: %d follow-ups of requests are lost with the unload", plan.node.name, lost)
    if not plan.cls.loads:
        return
    try:
        if inspect.iscoroutinefunction(plan.cls.unload):
            await plan.cls.unload(state.value)
        else:
            await on_thread(plan.cls.unload, state.value)
    except (GeneratorExit, asyncio.CancelledError):
        raise
    except BaseException as exc:  # code of graph authors
        log.warning("node %r failed in unload(): %s", plan.node.name, exc, exc_info=exc)


class Graph:
    """A checked graph and the thread pools of its executors.

    `side_packets` at load are the types of what the host will provide to each run; raises LoadError.
    """

    def __init__(
        self, config: GraphConfig, registry: Registry, side_packets: Mapping[str, type] | None = None
    ) -> None:
        self.plan: GraphPlan = plan_graph(config, registry, side_packets or {})
        self.states: list[NodeState] = [NodeState() for _ in self.plan.nodes]
        pairs = list(zip(self.plan.nodes, self.states, strict=True))
        self._nodes = [(InlineNode if plan.inline else TaskNode, plan, state) for plan, state in pairs]
        self._whole = [(partial(TaskNode, whole=True), *pair) for pair in pairs] if self.plan.whole else []
        self._pools = Pools(self.plan.executors)
        self._loaded = 0  # nodes whose load() has returned
        self.watched = TapSlot()

    @classmethod
    def load(cls, path: Path, registry: Registry, side_packets: Mapping[str, type] | None = None) -> Graph:
        """Load a file, together with the directory's own `calculators.py`."""
        return cls(load_graph(path), registry.for_directory(path.parent), side_packets)

    @classmethod
    def parse(cls, text: str, registry: Registry, side_packets: Mapping[str, type] | None = None) -> Graph:
        return cls(parse_graph(text), registry, side_packets)

    async def load_nodes(
        self, side_packets: Mapping[str, Any] | None = None, counts: NodeEvents | None = None
    ) -> None:
        """Call `load()` of each node, in the order of the file. Raises LoadError, and unloads then."""
        side, shared = dict(side_packets or {}), counts or NodeEvents()
        for state in self.states:
            state.counts = shared
        try:
            for plan, state in zip(self.plan.nodes, self.states, strict=True):
                if plan.cls.loads:
                    await load_node(plan, side, state)
                self._loaded += 1
        except BaseException:
            await self.unload_nodes()
            raise

    @property
    def loaded(self) -> list[tuple[NodePlan, NodeState]]:
        """Return the nodes that have a `load()` of their own and are loaded, in the order of the file."""
        pairs = zip(self.plan.nodes[: self._loaded], self.states, strict=False)
        return [(plan, state) for plan, state in pairs if plan.cls.loads]

    async def unload_nodes(self) -> None:
        """Call `unload()` of each loaded node, the last one first."""
        while self._loaded:
            self._loaded -= 1
            state = self.states[self._loaded]
            plan = self.plan.nodes[self._loaded]
            await unload_node(plan, state)
            state.value = None

    def start(
        self,
        side_packets: Mapping[str, Any] | None = None,
        read: Iterable[str] | None = None,
        *,
        whole: bool = False,
    ) -> GraphRun:
        """Return a run, to be entered with `async with`.

        `read` names the graph outputs that will be read; the others are dropped (default: all are read, and
        one left unread holds the graph once its queue is full). `whole`: each input gets one packet and is
        closed before the first read. Raises ValueError for a missing side packet.
        """
        side = side_packets or {}
        if not self.plan.side_packets <= side.keys():
            missing = self.plan.side_packets - side.keys()
            raise ValueError(f"side packets missing: {', '.join(sorted(missing))}")
        names = [e.name for e in self.plan.outputs] if read is None else read
        nodes = (whole and self._whole) or self._nodes
        return GraphRun(self.plan, self._pools, side, names, self.watched, nodes)

    def close(self) -> None:
        """Release the thread pools; runs under way finish."""
        self._pools.close()
