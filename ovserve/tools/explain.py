"""A graph as a picture: what is drawn, and how, as SVG and as text."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any
from xml.sax.saxutils import escape

import msgspec

from ovserve.graph.calculator import Calculator
from ovserve.graph.planning import GraphPlan, NodePlan
from ovserve.kinds.text.options import LlmOptions
from ovserve.serving.loader import Checked

# The parts of a checked graph that are drawn: nodes with their ports, in the order of packets.


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


# A diagram as SVG: a row for each layer from top to bottom, and a line with the name of each stream.
#
# A stream that passes rows on its way has a lane of its own in each of them, so that no line crosses a box.


LINE_PIXELS = 16  # pixels
LETTER_PIXELS = 6.7  # width of one letter of 11 px monospace
PAD_PIXELS = 10
GAP_X, GAP_Y, EDGE = 36, 64, 24
LANE_PIXELS = 12
STYLE = (
    "svg{background:#fff}text{font:11px monospace;fill:#222}.name{font-weight:bold}.type,.more{fill:#777}"
    "rect{fill:#f7f9fc;stroke:#4a6fa5}path{fill:none;stroke:#4a6fa5}.back{stroke-dasharray:4 3}"
    ".stream{fill:#4a6fa5}marker path{fill:#4a6fa5;stroke:none}"
)
ARROW = (
    '<marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0,0 8,4 0,8z"/></marker>'
)

Point = tuple[float, float]


@dataclass
class _Box:
    """A node, an end of the graph, or the lane of a stream that passes a row."""

    lines: tuple[tuple[str, str], ...]  # class and text
    takes: tuple[PortRow, ...] = ()
    makes: tuple[PortRow, ...] = ()
    x: float = 0
    y: float = 0
    passed: float = 0  # the height of the row that a lane passes

    @property
    def width(self) -> float:
        letters = max((len(text) for _, text in self.lines), default=0)
        ends = max(len(self.takes), len(self.makes)) * 2 * LANE_PIXELS
        return max(letters * LETTER_PIXELS + 2 * PAD_PIXELS, ends) if self.lines else LANE_PIXELS

    @property
    def height(self) -> float:
        return len(self.lines) * LINE_PIXELS + PAD_PIXELS if self.lines else self.passed

    def end(self, port: PortRow) -> Point:
        """Return where the line of `port` begins or ends: inputs at the top, outputs at the bottom."""
        into = port in self.takes
        ports = self.takes if into else self.makes
        x = self.x + self.width * (ports.index(port) + 1) / (len(ports) + 1)
        return (x, self.y if into else self.y + self.height)

    def draw(self) -> Iterator[str]:
        if self.lines:
            size = f'width="{self.width:.0f}" height="{self.height:.0f}"'
            yield f'<rect x="{self.x:.0f}" y="{self.y:.0f}" {size} rx="4"/>'
        for i, (kind, text) in enumerate(self.lines):
            at = f'x="{self.x + PAD_PIXELS:.0f}" y="{self.y + (i + 1) * LINE_PIXELS:.0f}"'
            yield f'<text {at} class="{kind}">{escape(text)}</text>'


@dataclass
class _Line:
    """A stream from the box that makes it to one that takes it."""

    stream: str
    start: tuple[_Box, PortRow]
    end: tuple[_Box, PortRow]
    back: bool
    lanes: list[_Box] = field(default_factory=list)


def draw_svg(diagram: Diagram) -> str:
    rows, lines = _boxes(diagram)
    _place(rows, lines)
    boxes = [box for row in rows for box in row]
    width = max(box.x + box.width for box in boxes) + EDGE + LANE_PIXELS
    height = max(box.y + box.height for box in boxes) + EDGE
    size = f"{width:.0f} {height:.0f}"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" width="{width:.0f}" '
        f'height="{height:.0f}"><title>{escape(diagram.title)}</title><style>{STYLE}</style>{ARROW}'
    ]
    out += [_path(line) for line in lines]
    for box in boxes:
        out += box.draw()
    labelled: set[str] = set()
    for line in lines:
        if line.stream not in labelled:
            labelled.add(line.stream)
            (x, y), below = line.start[0].end(line.start[1]), LINE_PIXELS + 8 * (len(labelled) % 2)
            out.append(
                f'<text x="{x + 4:.0f}" y="{y + below:.0f}" class="stream">{escape(line.stream)}</text>'
            )
    return "\n".join([*out, "</svg>\n"])


def _boxes(diagram: Diagram) -> tuple[list[list[_Box]], list[_Line]]:
    """Return the rows of boxes, the graph's own ends in the first and the last, and the lines between."""
    depth = max((node.layer for node in diagram.nodes), default=-1) + 1
    rows: list[list[_Box]] = [[] for _ in range(depth + 2)]
    producers: dict[str, tuple[int, _Box, PortRow]] = {}
    consumers: list[tuple[int, _Box, PortRow]] = []
    first = [(tag, stream, 0) for tag, stream in diagram.inputs]
    for tag, stream, row in [*first, *((tag, stream, depth + 1) for tag, stream in diagram.outputs)]:
        port = PortRow(tag, "", stream)
        box = _Box((("port", tag),), (port,) if row else (), () if row else (port,))
        rows[row].append(box)
        if row:
            consumers.append((row, box, port))
        else:
            producers[stream] = (row, box, port)
    for node in diagram.nodes:
        box = _Box(tuple(_lines(node)), _streams(node.inputs), _streams(node.outputs))
        rows[node.layer + 1].append(box)
        consumers += [(node.layer + 1, box, port) for port in box.takes]
        producers |= {str(port.stream): (node.layer + 1, box, port) for port in box.makes}
    lines = []
    for row, box, port in consumers:
        if port.stream in producers:
            above, maker, output = producers[port.stream]
            line = _Line(port.stream, (maker, output), (box, port), port.back_edge)
            if not port.back_edge:
                line.lanes = [_Box(()) for _ in range(above + 1, row)]
                for i, lane in enumerate(line.lanes, above + 1):
                    rows[i].append(lane)
            lines.append(line)
    return rows, lines


def _place(rows: list[list[_Box]], lines: Sequence[_Line]) -> None:
    """Give each box its place: boxes of a row in the order of what they read, each row in the middle."""
    above: dict[int, list[_Box]] = {}
    for line in lines:
        if not line.back:
            chain = [line.start[0], *line.lanes, line.end[0]]
            for upper, lower in pairwise(chain):
                above.setdefault(id(lower), []).append(upper)

    def wanted(box: _Box) -> float:
        makers = above.get(id(box), [])
        return sum(b.x + b.width / 2 for b in makers) / len(makers) if makers else 0.0

    y = float(EDGE)
    for row in rows:
        row.sort(key=wanted)
        x = -(sum(box.width for box in row) + GAP_X * (len(row) - 1)) / 2
        for box in row:
            box.x, box.y = x, y
            x += box.width + GAP_X
        height = max((box.height for box in row), default=0)
        for box in row:
            box.passed = height
        y += height + GAP_Y
    leftmost = min((box.x for row in rows for box in row), default=0) - EDGE
    for row in rows:
        for box in row:
            box.x -= leftmost


def _lines(node: NodeBox) -> Iterator[tuple[str, str]]:
    """Yield class and text of the lines of a box."""
    yield "name", node.name
    if node.calculator != node.name:
        yield "more", node.calculator
    for port in node.inputs:
        note = f" (side packet {port.stream})" if port.side and port.stream else _note(port)
        yield "port", f"in  {port.tag}: {port.type}{note}"
    for name, value in node.options:
        yield "more", f"    {name} = {value}"
    for port in node.outputs:
        yield "port", f"out {port.tag}: {port.type}{_note(port)}"


def _note(port: PortRow) -> str:
    if port.stream is None:
        return " (not connected)"
    return " (back edge)" if port.back_edge else " (side packet)" if port.side else ""


def _streams(ports: Sequence[PortRow]) -> tuple[PortRow, ...]:
    return tuple(port for port in ports if port.stream is not None and not port.side)


def _path(line: _Line) -> str:
    start, end = line.start[0].end(line.start[1]), line.end[0].end(line.end[1])
    if line.back:  # around the left side of the box
        lane_x = min(line.start[0].x, line.end[0].x) - LANE_PIXELS
        turns = f"v{LANE_PIXELS} H{lane_x:.0f} V{end[1] - LANE_PIXELS:.0f} H{end[0]:.0f} V{end[1]:.0f}"
        path, kind = f"M{start[0]:.0f},{start[1]:.0f} {turns}", ' class="back"'
    else:
        path, kind = f"M{start[0]:.0f},{start[1]:.0f}", ""
        (x, y), stops = start, [(lane.x + LANE_PIXELS / 2, lane.y, lane.height) for lane in line.lanes]
        for to, top, height in [*stops, (*end, 0.0)]:
            middle = (y + top) / 2
            path += f" C{x:.0f},{middle:.0f} {to:.0f},{middle:.0f} {to:.0f},{top:.0f}"
            path += f" v{height:.0f}" if height else ""  # without a length it would turn the arrow
            x, y = to, top + height
    return f'<path d="{path}"{kind} marker-end="url(#arrow)"><title>{escape(line.stream)}</title></path>'


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
