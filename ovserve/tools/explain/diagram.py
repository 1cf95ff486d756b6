"""The parts of a checked graph that are drawn: nodes with their ports, in the order of packets."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ovserve.graph.calculator import Calculator
from ovserve.graph.plan import GraphPlan, NodePlan
from ovserve.kinds.text.options import LlmOptions
from ovserve.serving.loader import Checked

MAX_VALUE = 60  # characters of an option's value


@dataclass(frozen=True)
class PortRow:
    """One end of a node. `stream` is None for an optional port that the graph does not connect."""

    tag: str
    type: str
    stream: str | None
    back_edge: bool = False
    side: bool = False


@dataclass(frozen=True)
class NodeBox:
    """`layer`: how many nodes a packet has passed at least before this one, back edges left out."""

    name: str
    calculator: str
    summary: str
    inputs: tuple[PortRow, ...]
    outputs: tuple[PortRow, ...]
    options: tuple[tuple[str, str], ...]
    layer: int


@dataclass(frozen=True)
class Diagram:
    title: str
    inputs: tuple[tuple[str, str], ...]  # tag and stream of the graph's own ends
    outputs: tuple[tuple[str, str], ...]
    nodes: tuple[NodeBox, ...]


def diagram(checked: Checked) -> Diagram:
    plan = checked.graph.plan
    layers = _layers(plan)
    engines = {
        engine.node.name: str(engine.options.engine.engine)
        for engine in checked.engines.values()
        if isinstance(engine.options, LlmOptions)
    }
    boxes = [_box(node, layers[i], engines.get(node.node.name, "")) for i, node in enumerate(plan.nodes)]
    order = sorted(range(len(boxes)), key=lambda i: (layers[i], i))
    title = (
        f"{checked.spec.graph}: takes {checked.interface.value}, {_count(len(boxes), 'node')}, "
        f"{_count(len(checked.engines), 'engine')}"
    )
    return Diagram(
        title,
        tuple((end.tag, end.name) for end in plan.inputs),
        tuple((end.tag, end.name) for end in plan.outputs),
        tuple(boxes[i] for i in order),
    )


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def _layers(plan: GraphPlan) -> list[int]:
    maker = {out.stream: i for i, node in enumerate(plan.nodes) for out in node.outputs}
    layers: dict[int, int] = {}

    def layer(i: int) -> int:
        if i not in layers:
            layers[i] = 0
            sources = [maker.get(p.stream) for p in plan.nodes[i].inputs if not p.back_edge]
            layers[i] = max((layer(s) + 1 for s in sources if s is not None), default=0)
        return layers[i]

    return [layer(i) for i in range(len(plan.nodes))]


def _box(plan: NodePlan, layer: int, engine: str) -> NodeBox:
    """`engine`: which one generates the node's text, and why; empty: none does."""
    ins = [PortRow(_tag(p.port), _type(p.port.type), p.stream, p.back_edge) for p in plan.inputs]
    ins += [PortRow(_tag(port), _type(port.type), name, side=True) for port, name in plan.side_packets]
    outs = [PortRow(_tag(p.port), _type(p.port.type), p.stream) for p in plan.outputs]
    outs += [PortRow(_tag(port), _type(port.type), name, side=True) for port, name in plan.side_outputs]
    connected: set[object] = {p.port for p in plan.inputs} | {p.port for p in plan.outputs}
    connected |= {port for port, _ in plan.side_packets}
    contract, options = plan.contract, {**_options(plan)}
    if engine:
        options.pop("engine", None)
    ins += [_unused(p) for p in (*contract.inputs, *contract.side_packets) if p not in connected]
    outs += [_unused(p) for p in contract.outputs if p not in connected]
    return NodeBox(
        plan.node.name,
        plan.node.calculator,
        _summary(plan.cls),
        tuple(ins),
        tuple(outs),
        (
            *((name, _short(value)) for name, value in options.items()),
            *([("engine", engine)] if engine else []),
        ),
        layer,
    )


def _unused(port: Any) -> PortRow:
    return PortRow(_tag(port), _type(port.type), None)


def _tag(port: Any) -> str:
    return f"{port.tag}:{port.index}" if port.index or not port.tag else str(port.tag)


def _type(type_: Any) -> str:
    if type_ is object:
        return "any"
    return type_.__name__ if isinstance(type_, type) else str(type_).replace("ovserve.", "").split(".")[-1]


def _summary(cls: type[Calculator]) -> str:
    """Return the first sentence of the class's docstring, else of its module's."""
    own = inspect.cleandoc(cls.__doc__) if "__doc__" in vars(cls) and cls.__doc__ else ""
    module = inspect.getmodule(cls)
    text = own or (module.__doc__ if module is not None and module.__doc__ else "")
    first = " ".join(text.split("\n\n")[0].split()).split(". ")[0].rstrip(".")
    first = re.sub(r"^\w+: ", "", first)  # the name, which stands above
    return first[:1].upper() + first[1:]


def _options(plan: NodePlan) -> Mapping[str, Any]:
    options = plan.contract.options
    if isinstance(options, msgspec.Struct):
        return {name: getattr(options, name) for name in type(options).__struct_fields__}
    values_by_name: dict[str, Any] = {}
    config, position = plan.node.config, plan.node.position
    for type_name in config.option_types(position):
        values = config.values(position, type_name)
        values_by_name |= values.value if values is not None else {}
    return values_by_name


def _short(value: Any) -> str:
    text = str(msgspec.to_builtins(value)) if isinstance(value, msgspec.Struct) else repr(value)
    return text if len(text) <= MAX_VALUE else f"{text[: MAX_VALUE - 3]}..."
