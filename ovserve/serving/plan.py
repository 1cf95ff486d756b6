"""Plan what must be done to get from the current servables to the desired ones; pure.

| served now                        | wanted        | files          | plan                             |
|-----------------------------------|---------------|----------------|----------------------------------|
| no, or removed                    | yes           |                | load                             |
| no, taken out by an unload        | yes           |                | nothing; load if `retry`         |
| yes                               | no            |                | remove                           |
| yes                               | yes           | as loaded      | nothing                          |
| yes, the last change has failed   | yes           | as loaded      | clear the error                  |
| yes, the last change has failed   | yes           | as that failed | nothing; load if `retry`         |
| failed, nothing is served         | yes           | as that failed | nothing; load if `retry`         |
| either, the failure is transient  | yes           | as that failed | load                             |
| either                            | yes           | another        | load                             |

`retry` is true when a person or a program requested the reload. The watcher does not retry what has failed
before its files change: a model that takes a minute to fail would be loaded forever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeGuard

import msgspec

from ovserve.engine.protocol.specs import Spec
from ovserve.graph import Calculator, Node, Registry
from ovserve.graph.config import GraphConfig
from ovserve.graph.graph import Graph
from ovserve.graph.planning import NodePlan
from ovserve.kinds.resource import EngineCalculator, ResourceKind
from ovserve.kinds.tensors.inference import OpenVINOInferenceAdapter
from ovserve.serving.fingerprint import Fingerprint
from ovserve.serving.settings import ServableSpec

# EngineNode: a node, or several, whose options ask for an engine, by the side packet.


@dataclass(frozen=True)
class EngineNode:
    """A node whose options specify the engine of a side packet."""

    node: Node
    kind: ResourceKind[Any]
    options: Any  # as the kind parsed them, or joined those of several nodes
    spec: Spec
    fallback: Spec | None = None  # if the first one cannot serve the model

    @classmethod
    def of(
        cls, nodes: Sequence[Node], kind: ResourceKind[Any], options: Sequence[Any], servable: str
    ) -> EngineNode:
        """Raises LoadError for several nodes whose kind does not join them."""
        (first, *others), (joined, *_) = nodes, options
        if kind.join is not None:
            joined = kind.join(list(zip(nodes, options, strict=True)))
        elif others:
            packet = next(e.name for e in first.side_inputs if e.tag == kind.tag)
            raise others[0].error(
                f"node {first.name!r} already fills side packet {packet!r}; rename it", "input_side_packet"
            )
        spec = kind.spec(joined)
        if spec.one_servable:
            spec = msgspec.structs.replace(spec, servable=servable)
        return cls(first, kind, joined, spec, kind.fallback(joined))


def packets_of(config: GraphConfig, tag: str) -> set[str]:
    """Return names of the side packets that nodes take under `tag`; OVMS always calls them `llm` and
    `llm_ctx`."""
    ends = (e.split(":") for n in config.message.node for e in n.input_side_packet)
    return {e[-1] for e in ends if e[0] == tag and len(e) > 1}


def companions_of(config: GraphConfig, kind: ResourceKind[Any]) -> set[str]:
    return {packet for tag in kind.companions for packet in packets_of(config, tag)}


def kinds_of(registry: Registry) -> list[ResourceKind[Any]]:
    """Return the resource kinds of all calculators that could be in a graph."""
    classes = (registry[name] for name in registry.names)
    return list(dict.fromkeys(cls.resource for cls in classes if _holds_engine(cls)))


def _holds_engine(cls: type[Calculator]) -> TypeGuard[type[EngineCalculator]]:
    return issubclass(cls, EngineCalculator)


def _adapters(graph: Graph) -> dict[str, EngineNode]:
    """Return the nodes with a plain model of their own, by names that no side packet can have."""
    nodes = [plan for plan in graph.plan.nodes if issubclass(plan.cls, OpenVINOInferenceAdapter)]
    kind = OpenVINOInferenceAdapter.kind
    return {
        f"model of {plan.node.name}": EngineNode.of([plan.node], kind, [plan.contract.options], "")
        for plan in nodes
    }


def engine_nodes(graph: Graph, servable: str) -> dict[str, EngineNode]:
    """Return the engines of a graph that is served under a name. Raises LoadError for a side packet without
    a node that fills it, or with several."""
    holders: dict[str, list[NodePlan]] = {}
    nodes: dict[str, tuple[Node, ResourceKind[Any]]] = {}
    kinds = {p.cls.resource.tag: p.cls.resource for p in graph.plan.nodes if _holds_engine(p.cls)}
    for plan in graph.plan.nodes:
        for port, packet in plan.side_packets:
            kind = kinds.get(port.tag)
            if kind is None:
                continue
            nodes.setdefault(packet, (plan.node, kind))
            # TAG:1 and further of a node are engines of others, which it only uses.
            if _holds_engine(plan.cls) and plan.cls.resource is kind and not port.index:
                holders.setdefault(packet, []).append(plan)
    engines: dict[str, EngineNode] = {}
    for packet, (node, kind) in nodes.items():
        plans = holders.get(packet)
        if not plans:
            near = get_close_matches(packet, holders, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            text = f"no node with {kind.options_type.DESCRIPTOR.name} fills side packet {packet!r}{hint}"
            raise node.error(text, "input_side_packet", f"{kind.tag}:{packet}")
        options = [plan.contract.options for plan in plans]
        engines[packet] = EngineNode.of([plan.node for plan in plans], kind, options, servable)
    return engines | _adapters(graph)


Desired = tuple[ServableSpec, Fingerprint]  # with the digests of at least the models seen before


class Current(msgspec.Struct, frozen=True):
    """One name: what is current, and what was tried last (the same unless that failed)."""

    active: Desired | None = None
    attempted: Desired | None = None
    unloaded: bool = False  # by request; its files are still wanted
    transient: bool = False  # the last load failed, and may succeed with the same files

    @property
    def failed(self) -> bool:
        return self.attempted is not None and self.attempted != self.active


@dataclass(frozen=True)
class Plan:
    load: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    clear_error: tuple[str, ...] = ()  # names whose failed change was taken back

    def __bool__(self) -> bool:
        return bool(self.load or self.remove or self.clear_error)


def diff(current: Mapping[str, Current], desired: Mapping[str, Desired], *, retry: bool) -> Plan:
    load: list[str] = []
    clear_error: list[str] = []
    for name, want in desired.items():
        now = current.get(name)
        if now is not None and now.unloaded:
            load += [name] if retry else []
        elif now is not None and _same(want, now.active):
            clear_error += [name] if now.failed else []
        elif retry or now is None or now.transient or not _same(want, now.attempted):
            load.append(name)
    there = (n for n, k in current.items() if k.active or k.attempted or k.unloaded)
    return Plan(tuple(load), tuple(n for n in there if n not in desired), tuple(clear_error))


def _same(want: Desired, active: Desired | None) -> bool:
    return active is not None and want[0] == active[0] and want[1].covers(active[1])
