"""A graph ready to run: a host (the server, a test) loads it once and starts a run of it for every
request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ovserve.graph.calculator import NodeState
from ovserve.graph.config import GraphConfig, load_graph, parse_graph
from ovserve.graph.loading import load_node, unload_node
from ovserve.graph.plan import GraphPlan, NodePlan
from ovserve.graph.planning import plan_graph
from ovserve.graph.registry import Registry
from ovserve.graph.runtime.executors import Pools
from ovserve.graph.runtime.nodes import InlineNode, TaskNode, WholeNode
from ovserve.graph.runtime.scheduler import GraphRun, NodeRun
from ovserve.graph.runtime.streams import TapSlot
from ovserve.telemetry.counters import NodeEvents


class Graph:
    """A checked graph and the thread pools of its executors.

    `side_packets` at load are the types of what the host will provide to each run; raises LoadError.
    """

    def __init__(
        self, config: GraphConfig, registry: Registry, side_packets: Mapping[str, type] | None = None
    ) -> None:
        self.plan: GraphPlan = plan_graph(config, registry, side_packets or {})
        self.states: list[NodeState] = [NodeState() for _ in self.plan.nodes]
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
        nodes = self._whole if whole and self.plan.whole else self._nodes
        return GraphRun(self.plan, self._pools, side, names, self.watched, nodes)

    def _nodes(self, run: GraphRun) -> list[NodeRun]:
        return [
            (InlineNode if plan.inline else TaskNode)(run, plan, state)
            for plan, state in zip(self.plan.nodes, self.states, strict=True)
        ]

    def _whole(self, run: GraphRun) -> list[NodeRun]:
        return [WholeNode(run, self.plan.nodes[0], self.states[0])]

    def close(self) -> None:
        """Release the thread pools; runs under way finish."""
        self._pools.close()
