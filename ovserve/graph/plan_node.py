"""Check one node against its calculator's contract: ends, side packets, options, executor."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from ovserve.graph.authors import contract_of
from ovserve.graph.calculator import Calculator, Port
from ovserve.graph.config import GraphConfig
from ovserve.graph.node import Endpoint, Node, split_endpoints
from ovserve.graph.options import option_message, struct_options
from ovserve.graph.plan import InputPlan, NodePlan, OutputPlan
from ovserve.graph.registry import Registry
from ovserve.graph.runtime.executors import ExecutorPlan
from ovserve.graph.runtime.handlers import plan_sync_sets


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
    for given in node.config.option_types(node.position):
        if given not in messages:
            takes = f"takes {' and '.join(dict.fromkeys(messages))}" if messages else "takes no options"
            raise node.error(f"{node.calculator} {takes}, got {given}", "node_options")


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
            labels = [Endpoint(p.tag, p.index, "", "").label for p in ports]
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
            label = Endpoint(port.tag, port.index, "", "").label
            raise node.error(f"{node.calculator} needs {label}, which the node does not connect", field_name)
    return pairs


def _executor(
    node: Node, cls: type[Calculator], name: str, executors: Mapping[str, ExecutorPlan]
) -> str | None:
    if name and name not in executors:
        known = ", ".join(n for n in executors if n) or "none"
        raise node.error(f"{name!r} is not declared; declared: {known}", "executor", name)
    if cls.runs_on == "loop" and name:
        raise node.error(
            f"{node.calculator} runs on the event loop; it cannot take an executor", "executor", name
        )
    if name:
        return name
    return "" if cls.runs_on == "thread" else None
