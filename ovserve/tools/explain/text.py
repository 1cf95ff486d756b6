"""A diagram for the terminal: nodes from top to bottom, and left of them a lane for each stream.

┌─ DECODED  decoded: DecodedRequest      a stream begins at an output
├▶ DECODED  decoded: DecodedRequest      an input reads it, and others will
└▶ DECODED  decoded: DecodedRequest      the last input that reads it
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ovserve.tools.explain.diagram import Diagram, NodeBox, PortRow

ASCII = str.maketrans(
    {"┌": "+", "├": "+", "└": "+", "│": "|", "─": "-", "┼": "-", "▶": ">", "■": "#", "↺": "@", "◆": "*"}
)


@dataclass(frozen=True)
class _Row:
    text: str
    stream: str = ""
    begins: bool = False


def draw(diagram: Diagram, *, ascii_only: bool = False) -> str:
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
        lines.append((_gutter(lanes, row, ends), text))
        if ends and row.stream in lanes:
            lanes[lanes.index(row.stream)] = None
    width = len(lanes)
    text = "\n".join(f"{gutter.ljust(width, _fill(gutter))}{line}".rstrip() for gutter, line in lines)
    text = f"{diagram.title}\n\n{text}\n"
    return text.translate(ASCII) if ascii_only else text


def _fill(gutter: str) -> str:
    return "─" if gutter[-1:] in ("─", "┌", "├", "└", "┼") and gutter.strip("│ ") else " "


def _gutter(lanes: list[str | None], row: _Row, ends: bool) -> str:
    if not row.stream or row.stream not in lanes:
        return "".join("│" if lane else " " for lane in lanes)
    at = lanes.index(row.stream)
    left = "".join("│" if lane else " " for lane in lanes[:at])
    corner = "┌" if row.begins else "└" if ends else "├"
    return left + corner + "".join("┼" if lane else "─" for lane in lanes[at + 1 :])


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
    yield _Row(f" ■ {node.name}{of}")
    if node.summary:
        yield _Row(f"   {node.summary}")
    tags = [len(port.tag) for port in (*node.inputs, *node.outputs)]
    width = max(tags, default=0)
    for port in node.inputs:
        yield _port(port, width, into=True)
    for name, value in node.options:
        yield _Row(f"     {name} = {value}")
    for port in node.outputs:
        yield _port(port, width, into=False)


def _port(port: PortRow, width: int, *, into: bool) -> _Row:
    what = f"{port.tag.ljust(width)}  {port.stream or 'not connected'}: {port.type}"
    if port.stream is None:
        return _Row(f"   {what}")
    if port.side:
        return _Row(f" ◆ {what}  ({'side packet' if into else 'sets this side packet'})")
    if port.back_edge:
        return _Row(f" ↺ {what}  (back edge)")
    return _Row(f"{'─▶' if into else '──'} {what}", port.stream, begins=not into)
