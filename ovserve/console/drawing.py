"""A graph as the page draws it: nodes with ports and lines of the file, streams, side packets, executors."""

from __future__ import annotations

from typing import Any

import msgspec
from google.protobuf import text_format
from google.protobuf.message import Message

from ovserve.graph.calculator import Calculator, Input, Output, Port, SideOutput, SidePacket
from ovserve.graph.graph import Graph
from ovserve.graph.node import Endpoint
from ovserve.graph.pbtxt.struct import STRUCT
from ovserve.graph.plan import NodePlan
from ovserve.graph.registry import Registry

FAMILIES = (  # by calculator or its options; the first that fits
    ("ends", ("Frontend", "ResponseWriter", "HttpLLM", "RealtimeSession")),
    ("parsing", ("Parser",)),
    ("engine", ("Executor", "LLM", "Inference", "Embedding", "Rerank", "Speech", "Transcri", "Image")),
    ("engine", ("Classification", "VoiceActivity", "RealtimeThink", "RealtimeSpeak")),
)


def drawing(graph: Graph) -> dict[str, Any]:
    plan = graph.plan
    return {
        "inputs": [{"tag": e.tag, "stream": e.name} for e in plan.inputs],
        "outputs": [{"tag": e.tag, "stream": e.name} for e in plan.outputs],
        "side_packets": sorted(plan.side_packets),
        "executors": {name: one.num_threads for name, one in plan.executors.items()},
        "max_queue_size": plan.max_queue_size,
        "warnings": list(plan.warnings),
        "nodes": [_node(node) for node in plan.nodes],
    }


def calculators(registry: Registry) -> list[dict[str, Any]]:
    """Return what an editor completes: names, tags and options of the calculators a graph may use."""
    return [_calculator(name, registry[name]) for name in registry.names]


def _calculator(name: str, cls: type[Calculator]) -> dict[str, Any]:
    kinds = (
        ("inputs", Input),
        ("outputs", Output),
        ("side_inputs", SidePacket),
        ("side_outputs", SideOutput),
    )
    ports = [
        value for base in reversed(cls.__mro__) for value in vars(base).values() if isinstance(value, Port)
    ]
    type_, fields = _option_fields(cls.options_type)
    return {
        "name": name,
        **{kind: sorted({label(p) for p in ports if isinstance(p, type_)}) for kind, type_ in kinds},
        "options_type": type_,
        "options": fields,
    }


def _node(plan: NodePlan) -> dict[str, Any]:
    config, i = plan.node.config, plan.node.position
    first, last = config.lines_of_node(i)
    return {
        "name": plan.node.name,
        "calculator": plan.node.calculator,
        "about": (plan.cls.__doc__ or "").strip().split("\n\n")[0],
        "family": _family(plan),
        "lines": [first, last],
        "executor": plan.executor,
        "waits": plan.cls.waits,
        "inputs": [
            {"port": label(i.port), "stream": i.stream, "type": _type(i.port), "back_edge": i.back_edge}
            for i in plan.inputs
        ],
        "outputs": [{"port": label(o.port), "stream": o.stream, "type": _type(o.port)} for o in plan.outputs],
        "side_inputs": [{"port": label(p), "packet": name} for p, name in plan.side_packets],
        "side_outputs": [{"port": label(p), "packet": name} for p, name in plan.side_outputs],
        "sync_sets": len(plan.sync_sets),
        "options": _options(plan),
    }


def label(port: Port[Any]) -> str:
    return Endpoint(port.tag, port.index, "", "").label


def _option_fields(type_: type[Message] | type[msgspec.Struct] | None) -> tuple[str, list[str]]:
    """Return the name of the options' type in a graph file, and its fields."""
    if type_ is None:
        return "", []
    if issubclass(type_, msgspec.Struct):  # a calculator of the operator's own
        return STRUCT, list(type_.__struct_fields__)
    return type_.DESCRIPTOR.full_name, [field.name for field in type_.DESCRIPTOR.fields]


def _type(port: Port[Any]) -> str:
    return getattr(port.type, "__name__", str(port.type))


def _family(plan: NodePlan) -> str:
    if not plan.cls.__module__.startswith("ovserve."):
        return "own"
    words = plan.node.calculator
    return next((family for family, marks in FAMILIES if any(m in words for m in marks)), "transform")


def _options(plan: NodePlan) -> list[list[str]]:
    """Return name and value of each option that the file sets."""
    rows = []
    type_ = plan.cls.options_type
    if type_ is not None and issubclass(type_, msgspec.Struct):  # a calculator of the operator's own
        rows += [[name, str(value)] for name, value in msgspec.structs.asdict(plan.options(type_)).items()]
        type_ = plan.cls.engine_options_type
    message = plan.node.options(type_) if type_ is not None else None
    if message is None:
        return rows
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        rows += [[field.name, _value(field, one)] for one in values]
    return rows


def _value(field: Any, value: Any) -> str:
    if field.message_type is not None:
        return text_format.MessageToString(value, as_one_line=True)
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    return str(value).lower() if isinstance(value, bool) else str(value)
