"""A graph as a picture in text: what is drawn, and how."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ovserve.graph.calculator import Calculator
from ovserve.graph.planning import GraphPlan, NodePlan
from ovserve.kinds.text.options import LlmOptions
from ovserve.serving.loader import Checked

# The parts of a checked graph that are drawn: nodes with their ports, in the order of packets.


MAX_VALUE = 60  # characters of an option's value


class PortRow(msgspec.Struct, frozen=True):
    """One end of a node. `stream` is None for an optional port that the graph does not connect."""

    tag: str
    type: str
    stream: str | None
    back_edge: bool = False
    side: bool = False


class NodeBox(msgspec.Struct, frozen=True):
    """`layer`: how many nodes a packet has passed at least before this one, back edges left out."""

    name: str
    calculator: str
    summary: str
    inputs: tuple[PortRow, ...]
    outputs: tuple[PortRow, ...]
    options: tuple[tuple[str, str], ...]
    layer: int


class Diagram(msgspec.Struct, frozen=True):
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
    ins = [PortRow(p.port.label, _type(p.port.type), p.stream, p.back_edge) for p in plan.inputs]
    ins += [PortRow(port.label, _type(port.type), name, side=True) for port, name in plan.side_packets]
    outs = [PortRow(p.port.label, _type(p.port.type), p.stream) for p in plan.outputs]
    outs += [PortRow(port.label, _type(port.type), name, side=True) for port, name in plan.side_outputs]
    connected: set[object] = {p.port for p in plan.inputs} | {p.port for p in plan.outputs}
    connected |= {port for port, _ in plan.side_packets}
    contract, options = plan.contract, {**_options(plan)}
    if engine:
        options.pop("engine", None)
    unused_inputs = [p for p in (*contract.inputs, *contract.side_packets) if p not in connected]
    ins += [PortRow(port.label, _type(port.type), None) for port in unused_inputs]
    outs += [PortRow(p.label, _type(p.type), None) for p in contract.outputs if p not in connected]
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


# A diagram for the terminal: nodes from top to bottom, and left of them a lane for each stream.
#
# ┌─ DECODED  decoded: DecodedRequest      a stream begins at an output
# ├▶ DECODED  decoded: DecodedRequest      an input reads it, and others will
# └▶ DECODED  decoded: DecodedRequest      the last input that reads it


ASCII = str.maketrans("┌├└│─┼▶■↺◆…", "+++|-->#@*~")
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
LANES = [f"\x1b[{code}m" for code in (36, 33, 35, 32, 34, 31)]  # colours of streams, by their lane


@dataclass(frozen=True)
class _Row:
    text: str
    stream: str = ""
    begins: bool = False
    style: str = ""


@dataclass(frozen=True)
class _TextLine:
    gutter: str
    text: str
    style: str
    lane: int | None  # that of the row's own stream, from which on the gutter has its colour

    def plain(self, width: int) -> str:
        whole = f"{self.gutter}{self.text}".rstrip()
        return f"{whole[: width - 1]}…" if 0 < width < len(whole) else whole

    def coloured(self, width: int) -> str:
        text, lane = self.plain(width), self.lane
        gutter, rest = text[: len(self.gutter)], text[len(self.gutter) :]
        visible_lanes = gutter if lane is None else gutter[:lane]
        painted = "".join(_paint(char, LANES[i % len(LANES)]) for i, char in enumerate(visible_lanes))
        if lane is not None:
            painted += _paint(gutter[lane:] + rest[:2], LANES[lane % len(LANES)])
            rest = rest[2:]
        return painted + _paint(rest, self.style)


def _paint(text: str, style: str) -> str:
    return f"{style}{text}{PLAIN}" if style and text.strip() else text


def draw_text(diagram: Diagram, *, ascii_only: bool = False, width: int = 0, coloured: bool = False) -> str:
    """Return the lines of a picture, cut to `width` columns unless that is 0."""
    rows = list(_rows(diagram))
    last = {row.stream: i for i, row in enumerate(rows) if row.stream and not row.begins}
    lanes: list[str | None] = []
    lines = []
    for i, row in enumerate(rows):
        if row.begins and row.stream in last:
            if None in lanes:
                lanes[lanes.index(None)] = row.stream
            else:
                lanes.append(row.stream)
        ends = last.get(row.stream) == i
        text = row.text if row.stream in lanes or not row.begins else f" ↺{row.text[2:]}"
        lane = lanes.index(row.stream) if row.stream and row.stream in lanes else None
        lines.append(_TextLine(_gutter(lanes, row, ends), text, row.style, lane))
        if ends and row.stream in lanes:
            lanes[lanes.index(row.stream)] = None
    lines = [replace(line, gutter=line.gutter.ljust(len(lanes), _fill(line.gutter))) for line in lines]
    picture = "\n".join(line.coloured(width) if coloured else line.plain(width) for line in lines)
    text = f"{diagram.title}\n\n{picture}\n"
    return text.translate(ASCII) if ascii_only else text


def _fill(gutter: str) -> str:
    return "─" if gutter[-1:] in ("─", "┌", "├", "└", "┼") and gutter.strip("│ ") else " "


def _gutter(lanes: list[str | None], row: _Row, ends: bool) -> str:
    if not row.stream or row.stream not in lanes:
        return "".join("│" if lane else " " for lane in lanes)
    at = lanes.index(row.stream)
    lines_before = "".join("│" if lane else " " for lane in lanes[:at])
    corner = "┌" if row.begins else "└" if ends else "├"
    return lines_before + corner + "".join("┼" if lane else "─" for lane in lanes[at + 1 :])


def _rows(diagram: Diagram) -> Iterator[_Row]:
    for tag, stream in diagram.inputs:
        yield _Row(f"── {tag or 'input'}  {stream}", stream, begins=True)
    for node in diagram.nodes:
        yield _Row("")
        yield from _node(node)
    yield _Row("")
    for tag, stream in diagram.outputs:
        yield _Row(f"─▶ {tag or 'output'}  {stream}", stream)


def _node(node: NodeBox) -> Iterator[_Row]:
    of = "" if node.name == node.calculator else f"  ({node.calculator})"
    yield _Row(f" ■ {node.name}{of}", style=BOLD)
    if node.summary:
        yield _Row(f"   {node.summary}", style=DIM)
    tags = [len(port.tag) for port in (*node.inputs, *node.outputs)]
    width = max(tags, default=0)
    for port in node.inputs:
        yield _port(port, width, into=True)
    for name, value in node.options:
        yield _Row(f"     {name} = {value}", style=DIM)
    for port in node.outputs:
        yield _port(port, width, into=False)


def _port(port: PortRow, width: int, *, into: bool) -> _Row:
    what = f"{port.tag.ljust(width)}  {port.stream or 'not connected'}: {port.type}"
    if port.stream is None:
        return _Row(f"   {what}", style=DIM)
    if port.side:
        return _Row(f" ◆ {what}  ({'side packet' if into else 'sets this side packet'})")
    if port.back_edge:
        return _Row(f" ↺ {what}  (back edge)")
    return _Row(f"{'─▶' if into else '──'} {what}", port.stream, begins=not into)
