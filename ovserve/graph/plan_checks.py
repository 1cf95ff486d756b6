"""Check how nodes are wired: who produces each stream and side packet, of which type, and in what circles."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any

from ovserve.errors import LoadError
from ovserve.graph.config import GraphConfig
from ovserve.graph.node import Endpoint, split_endpoints
from ovserve.graph.plan import NodePlan


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
            made = producers[inp.stream][1]
            if not compatible(made, inp.port.type):
                text = (
                    f"{end.text!r} takes {_type_name(inp.port.type)}, but {producers[inp.stream][0]} "
                    f"produces {_type_name(made)}"
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


def compatible(made: Any, taken: Any) -> bool:
    """Could a value of one type be of the other? Wider declarations are checked packet by packet."""
    pairs = [(m, t) for m in _members(made) for t in _members(taken)]
    return any(issubclass(m, t) or issubclass(t, m) for m, t in pairs)


def _type_name(type_: Any) -> str:
    return " | ".join(t.__name__ for t in _members(type_))


def check_cycles(nodes: list[NodePlan]) -> None:
    made_by = {out.stream: plan for plan in nodes for out in plan.outputs}
    done: set[int] = set()

    def visit(plan: NodePlan, path: list[tuple[NodePlan, str]]) -> None:
        for inp in plan.inputs:
            source = made_by.get(inp.stream)
            if inp.back_edge or source is None or source.node.position in done:
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
        done.add(plan.node.position)

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
    made: dict[str, tuple[NodePlan, Any]] = {}
    for plan in nodes:
        for out, name in plan.side_outputs:
            if name in made or name in outside:
                text = f"side packet {name!r} is already provided"
                faults.errors.append(plan.node.error(text, "output_side_packet"))
            made[name] = (plan, out.type)
    needed: set[str] = {e.name for e in declared}
    for plan in nodes:
        for port, name in plan.side_packets:
            if name in made:
                given = made[name][1]
            elif name in outside:
                given = outside[name]
                needed.add(name)
            else:
                known = sorted({*made, *outside})
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known) or 'none'}"
                text = f"no node provides side packet {name!r}; {hint}"
                faults.errors.append(plan.node.error(text, "input_side_packet", f"{port.tag}:{name}"))
                continue
            if not compatible(given, port.type):
                text = f"side packet {name!r} is {_type_name(given)}, {port!r} takes {_type_name(port.type)}"
                faults.errors.append(plan.node.error(text, "input_side_packet"))
    if not faults.errors:
        _check_side_cycles(nodes, made)
    return frozenset(needed)


def _check_side_cycles(nodes: list[NodePlan], made: Mapping[str, tuple[NodePlan, Any]]) -> None:
    opened: set[int] = set()
    waiting = list(nodes)
    while waiting:
        ready = [
            p
            for p in waiting
            if all(n not in made or made[n][0].node.position in opened for _, n in p.side_packets)
        ]
        if not ready:
            names = ", ".join(p.node.name for p in waiting)
            raise waiting[0].node.error(f"side packets form a cycle among {names}", "input_side_packet")
        opened.update(p.node.position for p in ready)
        waiting = [p for p in waiting if p not in ready]
