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


def check_streams(
    config: GraphConfig,
    nodes: list[NodePlan],
    inputs: tuple[Endpoint, ...],
    outputs: tuple[Endpoint, ...],
    warnings: list[str],
) -> None:
    producers: dict[str, tuple[str, Any]] = {e.name: ("the graph's input_stream", object) for e in inputs}
    for plan in nodes:
        for out, end in zip(plan.outputs, plan.node.outputs, strict=True):
            if out.stream in producers:
                first = producers[out.stream][0]
                raise plan.node.error(
                    f"stream {out.stream!r} is already produced by {first}", "output_stream", end.text
                )
            producers[out.stream] = (f"node {plan.node.name!r}", out.port.type)
    consumed = {e.name for e in outputs}
    for plan in nodes:
        for inp, end in zip(plan.inputs, plan.node.inputs, strict=True):
            consumed.add(inp.stream)
            if inp.stream not in producers:
                near = difflib.get_close_matches(inp.stream, producers, n=1)
                hint = f" (did you mean {near[0]!r}?)" if near else ""
                raise plan.node.error(
                    f"no node produces stream {inp.stream!r}{hint}", "input_stream", end.text
                )
            made = producers[inp.stream][1]
            if not compatible(made, inp.port.type):
                raise plan.node.error(
                    f"{end.text!r} takes {_type_name(inp.port.type)}, but {producers[inp.stream][0]} "
                    f"produces {_type_name(made)}",
                    "input_stream",
                    end.text,
                )
    for end in outputs:
        if end.name not in producers:
            raise LoadError(f"no node produces stream {end.name!r}", file=config.file, field="output_stream")
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
    config: GraphConfig, nodes: list[NodePlan], provided: Mapping[str, type]
) -> frozenset[str]:
    declared, wrong = split_endpoints(list(config.message.input_side_packet))
    if wrong:
        raise LoadError(wrong, file=config.file, field="input_side_packet")
    outside: dict[str, Any] = {e.name: object for e in declared} | dict(provided)
    made: dict[str, tuple[NodePlan, Any]] = {}
    for plan in nodes:
        for out, name in plan.side_outputs:
            if name in made or name in outside:
                raise plan.node.error(f"side packet {name!r} is already provided", "output_side_packet")
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
                known = ", ".join(sorted({*made, *outside})) or "none"
                raise plan.node.error(
                    f"no node provides side packet {name!r}; known: {known}", "input_side_packet"
                )
            if not compatible(given, port.type):
                raise plan.node.error(
                    f"side packet {name!r} is {_type_name(given)}, {port!r} takes {_type_name(port.type)}",
                    "input_side_packet",
                )
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
