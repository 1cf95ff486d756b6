"""Check a parsed graph and lay it out for the scheduler: every wiring fault is rejected here, at load.

A fault names file, line, node and field. MediaPipe rejects most of these too. Two are rejected only here: a
back edge that shares a sync set, because by rule 1 of the scheduler such a node would wait for itself; and
handler options that name a tag the node does not have, on which MediaPipe aborts the process.

Each node is checked against its calculator's contract: ends, side packets, options, executor. Then all are
checked together: who produces each stream and side packet, of which type, and in what circles.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import msgspec

from ovserve.errors import LoadError
from ovserve.graph.calculator import Calculator, Contract, Input, Output, Port, SideOutput, SidePacket
from ovserve.graph.config import GraphConfig
from ovserve.graph.node import Endpoint, Node, split_endpoints
from ovserve.graph.options import option_message, struct_options
from ovserve.graph.registry import Registry, contract_of
from ovserve.graph.streams import ExecutorPlan, plan_executors, plan_sync_sets

# The plan of a graph: what is known of it and its nodes before a packet flows, checked.


class InputPlan(msgspec.Struct, frozen=True):
    port: Input[Any]
    stream: str
    back_edge: bool


class OutputPlan(msgspec.Struct, frozen=True):
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

    @cached_property
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

    @cached_property
    def whole(self) -> bool:
        """Return whether it is one node whose answer does not begin before it is complete."""
        if len(self.nodes) != 1:
            return False
        (node,) = self.nodes
        return node.cls.answers_whole and node.executor is None and not node.inline


def plan_node(
    config: GraphConfig, i: int, registry: Registry, executors: Mapping[str, ExecutorPlan]
) -> NodePlan:
    message = config.message.node[i]
    name = canonical_name(config, i)
    ends: dict[str, tuple[Endpoint, ...]] = {}
    node = Node(config, i, name, message.calculator)
    for field_name in ("input_stream", "output_stream", "input_side_packet", "output_side_packet"):
        texts = list(getattr(message, field_name))
        endpoints, wrong = split_endpoints(texts)
        if wrong:
            raise node.error(
                wrong, field_name, texts[len(endpoints)] if len(endpoints) < len(texts) else texts[-1]
            )
        ends[field_name] = tuple(endpoints)
    node = Node(config, i, name, message.calculator, *ends.values())
    if not message.calculator:
        raise node.error("no calculator is named", "calculator")
    if message.calculator not in registry:
        raise node.error(registry.unknown(message.calculator), "calculator", message.calculator)
    for name_, none in (("max_in_flight", (0, 1)), ("option_value", ()), ("external_input", ())):
        if getattr(message, name_) not in (none if none else ([],)) and getattr(message, name_):
            raise node.error("not supported by this server", name_)
    if message.HasField("output_stream_handler"):
        handler = message.output_stream_handler.output_stream_handler
        if handler != "InOrderOutputStreamHandler":
            raise node.error(f"{handler!r}: only InOrderOutputStreamHandler", "output_stream_handler")
    cls = registry[message.calculator]
    _check_option_types(node, cls)
    contract = contract_of(node, cls)
    if cls.options_type is not None and issubclass(cls.options_type, msgspec.Struct):
        own = struct_options(node, cls.options_type)
        contract = (
            replace(contract, options=own) if contract.options is None else replace(contract, own_options=own)
        )
    inputs = _match(node, "input_stream", node.inputs, contract.inputs)
    outputs = _match(node, "output_stream", node.outputs, contract.outputs)
    side_in = _match(node, "input_side_packet", node.side_inputs, contract.side_packets)
    side_out = _match(node, "output_side_packet", node.side_outputs, contract.side_outputs)
    back_edges, sync_sets = plan_sync_sets(node, immediate=cls.immediate)
    return NodePlan(
        node,
        cls,
        contract,
        tuple(InputPlan(p, e.name, e.key in back_edges) for p, e in inputs),
        tuple(OutputPlan(p, e.name) for p, e in outputs),
        tuple((p, e.name) for p, e in side_in),
        tuple((p, e.name) for p, e in side_out),
        sync_sets,
        _executor(node, cls, message.executor, executors),
    )


def canonical_name(config: GraphConfig, i: int) -> str:
    """MediaPipe's: the node's name or its calculator's, with _1, _2 ... from the second of them on."""
    names = [n.name or n.calculator for n in config.message.node[: i + 1]]
    before = names.count(names[i]) - 1
    return f"{names[i]}_{before}" if before else names[i]


def _check_option_types(node: Node, cls: type[Calculator]) -> None:
    messages = []
    for type_ in (cls.options_type, cls.engine_options_type):
        if type_ is not None and issubclass(type_, msgspec.Struct):
            messages.append(option_message(node, type_))
        elif type_ is not None:
            messages.append(type_.DESCRIPTOR.full_name)
    for type_name in node.config.option_types(node.position):
        if type_name not in messages:
            takes = f"takes {' and '.join(dict.fromkeys(messages))}" if messages else "takes no options"
            raise node.error(f"{node.calculator} {takes}, got {type_name}", "node_options")


P = typing.TypeVar("P", bound=Port[Any])


def _match(
    node: Node, field_name: str, ends: tuple[Endpoint, ...], ports: tuple[P, ...]
) -> list[tuple[P, Endpoint]]:
    """Pair the node's endpoints with the contract's ports: nothing undeclared, nothing required missing."""
    by_key = {p.key: p for p in ports}
    pairs = []
    for end in ends:
        port = by_key.pop(end.key, None)
        if port is None:
            labels = [p.label for p in ports]
            near = difflib.get_close_matches(end.label, labels, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            has = ", ".join(labels) or "none"
            raise node.error(
                f"{end.text!r}: {node.calculator} has no {end.label}{hint}; it has {has}",
                field_name,
                end.text,
            )
        pairs.append((port, end))
    for port in by_key.values():
        if not port.optional:
            raise node.error(
                f"{node.calculator} needs {port.label}, which the node does not connect", field_name
            )
    return pairs


def _executor(
    node: Node, cls: type[Calculator], name: str, executors: Mapping[str, ExecutorPlan]
) -> str | None:
    if name and name not in executors:
        declared = ", ".join(n for n in executors if n) or "none"
        raise node.error(f"{name!r} is not declared; declared: {declared}", "executor", name)
    if cls.runs_on == "loop" and name:
        raise node.error(
            f"{node.calculator} runs on the event loop; it cannot take an executor", "executor", name
        )
    if name:
        return name
    return "" if cls.runs_on == "thread" else None


class Faults:
    """The mistakes of a graph, all at once. What a wrong node reads and writes counts as there."""

    def __init__(self) -> None:
        self.errors: list[LoadError] = []
        self.wrong_nodes = 0
        self.written: set[str] = set()
        self.read: set[str] = set()
        self.side_packets: set[str] = set()

    def add_node(self, error: LoadError, node: Any) -> None:
        """Add the mistake of a node, which is one of the graph's message."""
        self.errors.append(error)
        self.wrong_nodes += 1
        self.written |= {text.rpartition(":")[2] for text in node.output_stream}
        self.read |= {text.rpartition(":")[2] for text in node.input_stream}
        self.side_packets |= {text.rpartition(":")[2] for text in node.output_side_packet}

    def end(self) -> None:
        """Raise LoadError if there are any: the first in the file, with the others."""
        if self.errors:
            raise LoadError.of(sorted(self.errors, key=lambda error: (error.line, error.column)))


def check_streams(
    config: GraphConfig,
    nodes: list[NodePlan],
    inputs: tuple[Endpoint, ...],
    outputs: tuple[Endpoint, ...],
    warnings: list[str],
    faults: Faults,
) -> None:
    producers: dict[str, tuple[str, Any]] = {e.name: ("the graph's input_stream", object) for e in inputs}
    producers |= dict.fromkeys(faults.written - producers.keys(), ("a node with mistakes", object))
    for plan in nodes:
        for out, end in zip(plan.outputs, plan.node.outputs, strict=True):
            if out.stream in producers:
                text = f"stream {out.stream!r} is already produced by {producers[out.stream][0]}"
                faults.errors.append(plan.node.error(text, "output_stream", end.text))
            producers[out.stream] = (f"node {plan.node.name!r}", out.port.type)
    consumed = {e.name for e in outputs} | faults.read
    for plan in nodes:
        for inp, end in zip(plan.inputs, plan.node.inputs, strict=True):
            consumed.add(inp.stream)
            if inp.stream not in producers:
                near = difflib.get_close_matches(inp.stream, producers, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                text = f"no node produces stream {inp.stream!r}{hint}"
                faults.errors.append(plan.node.error(text, "input_stream", end.text))
                continue
            produced = producers[inp.stream][1]
            if not compatible(produced, inp.port.type):
                text = (
                    f"{end.text!r} takes {_type_name(inp.port.type)}, but {producers[inp.stream][0]} "
                    f"produces {_type_name(produced)}"
                )
                faults.errors.append(plan.node.error(text, "input_stream", end.text))
    # A wrong node may be the one that lacks the output.
    absent = [end for end in outputs if end.name not in producers and not faults.wrong_nodes]
    for end in absent:
        line, column = config.place_of(None, "output_stream", end.text)
        text = f"no node produces stream {end.name!r}"
        faults.errors.append(
            LoadError(text, file=config.file, line=line, column=column, field="output_stream")
        )
    warnings += [
        str(plan.node.error(f"stream {end.name!r} is read by no node", "output_stream", end.text))
        for plan in nodes
        for end in plan.node.outputs
        if end.name not in consumed
    ]
    warnings += [
        f"{config.file}: graph input {e.name!r} is read by no node" for e in inputs if e.name not in consumed
    ]


def _members(type_: Any) -> tuple[Any, ...]:
    return typing.get_args(type_) if isinstance(type_, types.UnionType) else (type_,)


def compatible(produced: Any, accepted: Any) -> bool:
    """Could a value of one type be of the other? Wider declarations are checked packet by packet."""
    pairs = [(m, t) for m in _members(produced) for t in _members(accepted)]
    return any(issubclass(m, t) or issubclass(t, m) for m, t in pairs)


def _type_name(type_: Any) -> str:
    return " | ".join(t.__name__ for t in _members(type_))


def check_cycles(nodes: list[NodePlan]) -> None:
    made_by = {out.stream: plan for plan in nodes for out in plan.outputs}
    finished: set[int] = set()

    def visit(plan: NodePlan, path: list[tuple[NodePlan, str]]) -> None:
        for inp in plan.inputs:
            source = made_by.get(inp.stream)
            if inp.back_edge or source is None or source.node.position in finished:
                continue
            step = [*path, (plan, inp.stream)]
            start = next((i for i, (p, _) in enumerate(step) if p is source), None)
            if start is not None:
                loop = [source.node.name] + [f"<-({s})- {p.node.name}" for p, s in reversed(step[start:])]
                raise plan.node.error(
                    f"cycle without a back edge: {' '.join(loop)}; mark one input with "
                    "input_stream_info { tag_index: ... back_edge: true }",
                    "input_stream",
                    next(e.text for e in plan.node.inputs if e.name == inp.stream),
                )
            visit(source, step)
        finished.add(plan.node.position)

    for plan in nodes:
        visit(plan, [])


def check_side_packets(
    config: GraphConfig, nodes: list[NodePlan], provided: Mapping[str, type], faults: Faults
) -> frozenset[str]:
    declared, wrong = split_endpoints(list(config.message.input_side_packet))
    if wrong:
        raise LoadError(wrong, file=config.file, field="input_side_packet")
    outside: dict[str, Any] = dict.fromkeys((e.name for e in declared), object) | dict(provided)
    outside = dict.fromkeys(faults.side_packets, object) | outside
    produced: dict[str, tuple[NodePlan, Any]] = {}
    for plan in nodes:
        for out, name in plan.side_outputs:
            if name in produced or name in outside:
                text = f"side packet {name!r} is already provided"
                faults.errors.append(plan.node.error(text, "output_side_packet"))
            produced[name] = (plan, out.type)
    needed: set[str] = {e.name for e in declared}
    for plan in nodes:
        for port, name in plan.side_packets:
            if name in produced:
                produced_type = produced[name][1]
            elif name in outside:
                produced_type = outside[name]
                needed.add(name)
            else:
                names = sorted({*produced, *outside})
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names) or 'none'}"
                text = f"no node provides side packet {name!r}; {hint}"
                faults.errors.append(plan.node.error(text, "input_side_packet", f"{port.tag}:{name}"))
                continue
            if not compatible(produced_type, port.type):
                takes = f"{port!r} takes {_type_name(port.type)}"
                text = f"side packet {name!r} is {_type_name(produced_type)}, {takes}"
                faults.errors.append(plan.node.error(text, "input_side_packet"))
    if not faults.errors:
        _check_side_cycles(nodes, produced)
    return frozenset(needed)


def _check_side_cycles(nodes: list[NodePlan], produced: Mapping[str, tuple[NodePlan, Any]]) -> None:
    opened: set[int] = set()
    waiting = list(nodes)
    while waiting:
        ready = [
            p
            for p in waiting
            if all(n not in produced or produced[n][0].node.position in opened for _, n in p.side_packets)
        ]
        if not ready:
            names = ", ".join(p.node.name for p in waiting)
            raise waiting[0].node.error(f"side packets form a cycle among {names}", "input_side_packet")
        opened.update(p.node.position for p in ready)
        waiting = [p for p in waiting if p not in ready]


DEFAULT_QUEUE_SIZE = 100  # MediaPipe's max_queue_size


def plan_graph(config: GraphConfig, registry: Registry, provided: Mapping[str, type]) -> GraphPlan:
    """Check everything that can be known before a packet flows. `provided`: side packets the host gives."""
    message = config.message
    _refuse_unsupported(config)
    if not message.node:
        raise LoadError("the graph has no node", file=config.file)
    executors = plan_executors(config)
    inputs = _graph_endpoints(config, "input_stream", message.input_stream)
    outputs = _graph_endpoints(config, "output_stream", message.output_stream)
    nodes: list[NodePlan] = []
    faults = Faults()
    for i in range(len(message.node)):
        try:
            nodes.append(plan_node(config, i, registry, executors))
        except LoadError as error:
            faults.add_node(error, message.node[i])
    warnings = [*config.warnings, *_without_effect(config), *_renamed(config)]
    check_streams(config, nodes, inputs, outputs, warnings, faults)
    side = check_side_packets(config, nodes, provided, faults)
    faults.end()
    check_cycles(nodes)
    size = message.max_queue_size if message.HasField("max_queue_size") else DEFAULT_QUEUE_SIZE
    if size == 0 or size < -1:
        raise LoadError(
            f"{size} is neither -1 (unlimited) nor a size", file=config.file, field="max_queue_size"
        )
    return GraphPlan(
        config, tuple(nodes), inputs, outputs, side, executors, size, message.report_deadlock, tuple(warnings)
    )


def _refuse_unsupported(config: GraphConfig) -> None:
    message = config.message
    for name in (
        "packet_factory",
        "packet_generator",
        "status_handler",
        "graph_options",
        "output_side_packet",
    ):
        if getattr(message, name):
            raise LoadError("not supported by this server", file=config.file, field=name)
    if message.HasField("output_stream_handler"):
        handler = message.output_stream_handler.output_stream_handler
        if handler != "InOrderOutputStreamHandler":
            raise LoadError(
                f"{handler!r}: only InOrderOutputStreamHandler",
                file=config.file,
                field="output_stream_handler",
            )


def _without_effect(config: GraphConfig) -> list[str]:
    """MediaPipe fields that mean nothing here: a graph that has them works, with a warning."""
    message = config.message
    ignored = [
        (0, name) for name in ("package", "type", "profiler_config", "options") if message.HasField(name)
    ]
    for i, node in enumerate(message.node):
        ignored += [
            (config.line_of_node(i), name)
            for name in ("source_layer", "buffer_size_hint", "profiler_config")
            if node.HasField(name)
        ]
    return [
        f"{config.file}{f':{line}' if line else ''}: {name} has no effect in this server"
        for line, name in ignored
    ]


def _renamed(config: GraphConfig) -> list[str]:
    """Return a warning for each node whose name another node has: logs and metrics show it with a number."""
    names = [node.name for node in config.message.node]
    return [
        f"{config.file}:{config.line_of_node(i)}: node {name!r}: another node has this name, so it becomes "
        f"{canonical_name(config, i)!r}"
        for i, name in enumerate(names)
        if name and name in names[:i]
    ]


def _graph_endpoints(config: GraphConfig, field_name: str, texts: Iterable[str]) -> tuple[Endpoint, ...]:
    endpoints, wrong = split_endpoints(list(texts))
    if wrong is None:
        names = [e.name for e in endpoints]
        twice = next((n for n in names if names.count(n) > 1), None)
        wrong = f"stream {twice!r} is declared twice" if twice else None
    if wrong:
        raise LoadError(wrong, file=config.file, field=field_name)
    return tuple(endpoints)
