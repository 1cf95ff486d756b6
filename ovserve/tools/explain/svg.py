"""A diagram as SVG: nodes in columns by layer, inputs at their left side, outputs at their right."""

from __future__ import annotations

from collections.abc import Iterator
from xml.sax.saxutils import escape

from ovserve.tools.explain.diagram import Diagram, NodeBox, PortRow

LINE = 16  # pixels
LETTER = 6.7  # width of one letter of 11 px monospace
PAD = 10
GAP_X, GAP_Y = 90, 28
STYLE = (
    "text{font:11px monospace;fill:#222}.name{font-weight:bold}.type,.more{fill:#777}"
    "rect{fill:#f7f9fc;stroke:#4a6fa5}path{fill:none;stroke:#4a6fa5}.back{stroke-dasharray:4 3}"
)

Point = tuple[float, float]


class _Placed:
    """A node with its place."""

    def __init__(self, node: NodeBox, x: float, y: float) -> None:
        self.node, self.x, self.y = node, x, y
        self.lines = _lines(node)
        self.width = max(len(text) for _, text, _ in self.lines) * LETTER + 2 * PAD
        self.height = len(self.lines) * LINE + PAD

    def ports(self) -> Iterator[tuple[PortRow, bool, Point]]:
        """Yield each connected stream's port, whether it is an input, and where its line ends."""
        for i, (_, _, end) in enumerate(self.lines):
            if end is not None and end[0].stream is not None and not end[0].side:
                port, into = end
                yield port, into, (self.x if into else self.x + self.width, self.y + i * LINE + PAD + 4)

    def draw(self) -> Iterator[str]:
        size = f'width="{self.width:.0f}" height="{self.height:.0f}"'
        yield f'<rect x="{self.x:.0f}" y="{self.y:.0f}" {size} rx="4"/>'
        for i, (kind, text, _) in enumerate(self.lines):
            at = f'x="{self.x + PAD:.0f}" y="{self.y + (i + 1) * LINE:.0f}"'
            yield f'<text {at} class="{kind}">{escape(text)}</text>'


def _lines(node: NodeBox) -> list[tuple[str, str, tuple[PortRow, bool] | None]]:
    """Return the lines of a box: class, text, and the port with whether it is an input."""
    found: list[tuple[str, str, tuple[PortRow, bool] | None]] = [("name", node.name, None)]
    if node.calculator != node.name:
        found.append(("more", node.calculator, None))
    for port in node.inputs:
        note = " (side packet)" if port.side else " (back edge)" if port.back_edge else ""
        found.append(("port", f"in  {port.tag}: {port.type}{note}", (port, True)))
    found += [("more", f"    {name} = {value}", None) for name, value in node.options]
    found += [("port", f"out {port.tag}: {port.type}", (port, False)) for port in node.outputs]
    return found


def draw(diagram: Diagram) -> str:
    placed = _place(diagram)
    right = max((p.x + p.width for p in placed), default=0) + GAP_X
    bottom = max((p.y + p.height for p in placed), default=0) + 2 * GAP_Y
    middle = bottom / 2
    made: dict[str, Point] = {stream: (8, middle + i * LINE) for i, (_, stream) in enumerate(diagram.inputs)}
    taken: list[tuple[str, Point, bool]] = []
    for each in placed:
        for port, into, point in each.ports():
            assert port.stream is not None
            if into:
                taken.append((port.stream, point, port.back_edge))
            else:
                made[port.stream] = point
    ends = [(stream, (right + 60.0, middle + i * LINE)) for i, (_, stream) in enumerate(diagram.outputs)]
    taken += [(stream, point, False) for stream, point in ends]
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 180:.0f} {bottom:.0f}" '
        f'width="{right + 180:.0f}" height="{bottom:.0f}"><title>{escape(diagram.title)}</title>'
        f"<style>{STYLE}</style>"
    ]
    out += [_edge(made[stream], point, stream, back) for stream, point, back in taken if stream in made]
    for each in placed:
        out += each.draw()
    out += [_label(stream, (8, middle + i * LINE - 4)) for i, (_, stream) in enumerate(diagram.inputs)]
    out += [_label(stream, (x + 4, y + 4)) for stream, (x, y) in ends]
    return "\n".join([*out, "</svg>\n"])


def _place(diagram: Diagram) -> list[_Placed]:
    placed: list[_Placed] = []
    x = 120.0
    for layer in range(max((n.layer for n in diagram.nodes), default=-1) + 1):
        y = float(GAP_Y)
        column = []
        for node in (n for n in diagram.nodes if n.layer == layer):
            box = _Placed(node, x, y)
            y += box.height + GAP_Y
            column.append(box)
        x += max((box.width for box in column), default=0) + GAP_X
        placed += column
    return placed


def _edge(start: Point, end: Point, stream: str, back: bool) -> str:
    (x1, y1), (x2, y2) = start, end
    bend = max(40.0, abs(x2 - x1) / 2) if not back else 60.0
    path = f"M{x1:.0f},{y1:.0f} C{x1 + bend:.0f},{y1:.0f} {x2 - bend:.0f},{y2:.0f} {x2:.0f},{y2:.0f}"
    kind = ' class="back"' if back else ""
    return f'<path d="{path}"{kind}><title>{escape(stream)}</title></path>'


def _label(text: str, at: Point) -> str:
    return f'<text x="{at[0]:.0f}" y="{at[1]:.0f}">{escape(text)}</text>'
