"""A diagram for the terminal: nodes from top to bottom, and left of them a lane for each stream.

┌─ DECODED  decoded: DecodedRequest      a stream begins at an output
├▶ DECODED  decoded: DecodedRequest      an input reads it, and others will
└▶ DECODED  decoded: DecodedRequest      the last input that reads it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ovserve.tools.explain.diagram import Diagram, NodeBox, PortRow

ASCII = str.maketrans(
    {
        "┌": "+",
        "├": "+",
        "└": "+",
        "│": "|",
        "─": "-",
        "┼": "-",
        "▶": ">",
        "■": "#",
        "↺": "@",
        "◆": "*",
        "…": "~",
    }
)
BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
LANES = [f"\x1b[{code}m" for code in (36, 33, 35, 32, 34, 31)]  # colours of streams, by their lane


@dataclass(frozen=True)
class _Row:
    text: str
    stream: str = ""
    begins: bool = False
    style: str = ""


@dataclass(frozen=True)
class _Line:
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


def draw(diagram: Diagram, *, ascii_only: bool = False, width: int = 0, coloured: bool = False) -> str:
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
        lines.append(_Line(_gutter(lanes, row, ends), text, row.style, lane))
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
