"""The plan of a graph: what is known of it and its nodes before a packet flows, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ovserve.graph.calculator import Calculator, Contract, Input, Output, SideOutput, SidePacket
from ovserve.graph.config import GraphConfig
from ovserve.graph.node import Endpoint, Node
from ovserve.graph.runtime.executors import ExecutorPlan


@dataclass(frozen=True)
class InputPlan:
    port: Input[Any]
    stream: str
    back_edge: bool


@dataclass(frozen=True)
class OutputPlan:
    port: Output[Any]
    stream: str


@dataclass(frozen=True)
class NodePlan:
    """One node, checked. `sync_sets` hold indexes into `inputs`; together they hold each exactly once."""

    node: Node
    cls: type[Calculator]
    contract: Contract
    inputs: tuple[InputPlan, ...]
    outputs: tuple[OutputPlan, ...]
    side_packets: tuple[tuple[SidePacket[Any], str], ...]
    side_outputs: tuple[tuple[SideOutput[Any], str], ...]
    sync_sets: tuple[tuple[int, ...], ...]
    executor: str | None  # a key of GraphPlan.executors; None: the event loop

    def options(self, type_: Any) -> Any:
        """Return the node's options of this type, a struct or a protobuf message."""
        return self.contract.options_for(self.node, type_)

    @property
    def inline(self) -> bool:
        """It can be called where its input arrives: it never waits, and there is an input to call it."""
        return self.executor is None and bool(self.inputs) and not self.cls.waits


@dataclass(frozen=True)
class GraphPlan:
    """A checked graph. Streams are known by name; tags are labels of the graph's own ends."""

    config: GraphConfig
    nodes: tuple[NodePlan, ...]
    inputs: tuple[Endpoint, ...]
    outputs: tuple[Endpoint, ...]
    side_packets: frozenset[str]  # to be given when a run starts
    executors: Mapping[str, ExecutorPlan]
    max_queue_size: int  # packets per forward queue; -1: unlimited
    report_deadlock: bool
    warnings: tuple[str, ...] = field(default=())

    @property
    def whole(self) -> bool:
        """Return whether it is one node whose answer does not begin before it is complete."""
        if len(self.nodes) != 1:
            return False
        (node,) = self.nodes
        return node.cls.answers_whole and node.executor is None and not node.inline
