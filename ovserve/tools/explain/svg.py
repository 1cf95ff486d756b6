"""A diagram as SVG: a row for each layer from top to bottom, and a line with the name of each stream.

A stream that passes rows on its way has a lane of its own in each of them, so that no line crosses a box.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from xml.sax.saxutils import escape

from ovserve.tools.explain.diagram import Diagram, NodeBox, PortRow

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


def draw(diagram: Diagram) -> str:
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
