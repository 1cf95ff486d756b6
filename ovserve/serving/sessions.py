"""Plain models as the nodes of graphs use them: which are there, and whether a graph fits them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from ovserve.errors import LoadError, ModelNotFound, Unavailable
from ovserve.graph.planning import GraphPlan, NodePlan
from ovserve.kinds.tensors.inference import (
    InferenceCalculator,
    Models,
    Session,
    SessionCalculator,
    Wire,
    Wiring,
    check_wiring,
)
from ovserve.kinds.tensors.node import PlainModel
from ovserve.kinds.tensors.spec import TensorFacts, TensorInfo
from ovserve.serving.entries import RETRY_AFTER, Entries


class ServedModels:
    """A `kinds.tensors.session.Models`."""

    def __init__(self, entries: Entries) -> None:
        self._entries = entries

    @property
    def names(self) -> Sequence[str]:
        entries = self._entries
        return [name for name in entries.all_names() if any(e.spec.plain for e in entries.of(name))]

    @contextmanager
    def lease(self, name: str, version: str) -> Iterator[PlainModel]:
        entry = self._entries.find(name, version)
        if entry is None or entry.servable is None or entry.servable.model is None:
            label = f"{name!r} version {version}" if version else repr(name)
            why = "it is not configured" if entry is None else entry.status.without_details.reason
            raise Unavailable(
                f"the graph's model {label} is not loaded: {why or 'it is loading'}", retry_after=RETRY_AFTER
            )
        with entry.servable.lease():
            yield entry.servable.model

    def facts(self, name: str, version: str) -> TensorFacts | None:
        try:
            entry = self._entries.find(name, version)
        except ModelNotFound:
            return None
        model = entry.servable.model if entry is not None and entry.servable is not None else None
        return None if model is None else model.model


def bind_sessions(nodes: Iterable[NodePlan], models: Models) -> None:
    """Connect the session nodes of a graph with the server's models, and check the nodes that use them.

    Raises LoadError for a model that is not configured and, as far as models are loaded, for tensors that
    they lack.
    """
    nodes = list(nodes)
    for error in unknown_models(nodes, models.names):
        raise error
    for plan in nodes:
        if issubclass(plan.cls, SessionCalculator):
            declaration = plan.cls.session_of(plan.contract.options)
            if not declaration.own:
                declaration.session.bind(models)
    for plan in nodes:
        if issubclass(plan.cls, InferenceCalculator):
            session = session_of(plan, nodes)
            if session is not None and (facts := session.facts) is not None:
                check_wiring(plan.node, plan.contract.options, facts, session.name)


def unknown_models(nodes: Iterable[NodePlan], names: Collection[str]) -> Iterator[LoadError]:
    """Yield an error for each session whose model is not among these."""
    for plan in nodes:
        if issubclass(plan.cls, SessionCalculator):
            declaration = plan.cls.session_of(plan.contract.options)
            if not declaration.own and declaration.session.name not in names:
                served = ", ".join(names) or "none"
                message = f"{declaration.session.name!r} is not a model of this server; its models: {served}"
                yield plan.node.error(message, declaration.field)


def session_of(plan: NodePlan, nodes: Iterable[NodePlan]) -> Session | None:
    """Return the session of an inference node; None if another kind of node makes it."""
    if issubclass(plan.cls, SessionCalculator):
        return plan.cls.session_of(plan.contract.options).session
    packets = {packet for port, packet in plan.side_packets if port.tag == "SESSION"}
    for other in nodes:
        if issubclass(other.cls, SessionCalculator) and packets & {name for _, name in other.side_outputs}:
            return other.cls.session_of(other.contract.options).session
    return None


def input_info(plan: GraphPlan, stream: str) -> TensorInfo | None:
    """Return what the models say of an input of a graph; None if other nodes take it, or they disagree."""
    takers = [node for node in plan.nodes if stream in {end.stream for end in node.inputs}]
    infos = [_info(node, plan, stream, "inputs") for node in takers]
    first = infos[0] if infos else None
    if first is None or any(i is None or (i.datatype, i.dims) != (first.datatype, first.dims) for i in infos):
        return None
    return first


def output_info(plan: GraphPlan, stream: str) -> TensorInfo | None:
    """Return what a model says of an output of a graph; None if no inference node sends it."""
    senders = [node for node in plan.nodes if stream in {end.stream for end in node.outputs}]
    return _info(senders[0], plan, stream, "outputs") if senders else None


def _info(node: NodePlan, plan: GraphPlan, stream: str, side: str) -> TensorInfo | None:
    if not issubclass(node.cls, InferenceCalculator):
        return None
    session = session_of(node, plan.nodes)
    facts = session.facts if session is not None else None
    wiring: Wiring = node.contract.options
    wires: Sequence[Wire] = getattr(wiring, side)
    infos = _infos(stream, wires, getattr(facts, side)) if facts is not None else []
    return infos[0] if len(infos) == 1 else None


def _infos(stream: str, wires: Iterable[Wire], among: Sequence[TensorInfo]) -> list[TensorInfo]:
    mine = [wire for wire in wires if wire.endpoint.name == stream and not wire.plural]
    return [info for wire in mine for info in wire.infos(among) if info is not None]
