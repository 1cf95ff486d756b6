"""The interface of a graph, derived from the tags of its streams, and the paths that its nodes declare.

The rules are OVMS's table, with one tensor type in place of its seven. A graph with HTTP_REQUEST_PAYLOAD and
HTTP_RESPONSE_PAYLOAD is an HTTP endpoint, and so is one with REQUEST_PAYLOAD and RESPONSE_PAYLOAD, as OVMS's
graphs of embeddings have it; one with only REQUEST and RESPONSE takes whole KServe requests. In
any other, each input and each output is a tensor with the stream's name. OVMS compares the beginning of a
tag, so REQUEST_PAYLOAD counts as REQUEST; here the whole tag counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any

from ovserve.api.kserve import InferRequest, InferResponse, Tensor
from ovserve.errors import LoadError
from ovserve.graph.graph import Graph
from ovserve.graph.planning import GraphPlan, compatible
from ovserve.kinds.payload import AnswerPacket, HttpCalculator, HttpPayload

HTTP_PAIRS = (
    ("HTTP_REQUEST_PAYLOAD", "HTTP_RESPONSE_PAYLOAD"),
    ("REQUEST_PAYLOAD", "RESPONSE_PAYLOAD"),
)
WHOLE = "REQUEST", "RESPONSE"


class Interface(Enum):
    HTTP = "HTTP payloads"
    WHOLE = "infer requests"
    TENSORS = "tensors"


_TYPES: dict[Interface, tuple[Any, Any]] = {
    Interface.HTTP: (HttpPayload, AnswerPacket | str),
    Interface.WHOLE: (InferRequest, InferResponse),
    Interface.TENSORS: (Tensor, Tensor),
}


def interface_of(graph: Graph) -> Interface:
    """Return the interface. Raises LoadError for streams that do not fit together, or nodes with other packet
    types."""
    plan = graph.plan
    tags = [e.tag for e in plan.inputs], [e.tag for e in plan.outputs]
    for field, present in zip(("input_stream", "output_stream"), tags, strict=True):
        if not present:
            raise LoadError("a servable graph needs at least one", file=plan.config.file, field=field)
    detected = Interface.TENSORS
    pairs = [(Interface.HTTP, pair) for pair in HTTP_PAIRS] + [(Interface.WHOLE, WHOLE)]
    for interface, pair in pairs:
        if not any(tag in present for tag, present in zip(pair, tags, strict=True)):
            continue
        detected = interface
        for field, tag, present in zip(("input_stream", "output_stream"), pair, tags, strict=True):
            if present.count(tag) != 1 or (interface is Interface.WHOLE and len(present) > 1):
                alone = ", alone" if interface is Interface.WHOLE else ""
                raise LoadError(
                    f"expected exactly one {tag} stream{alone}", file=plan.config.file, field=field
                )
        break
    _check_types(plan, detected)
    return detected


def _check_types(plan: GraphPlan, interface: Interface) -> None:
    into, out_of = _TYPES[interface]
    inputs, outputs = _ends(plan, interface)
    for node in plan.nodes:
        ends = [("input_stream", p.stream, p.port.type, into) for p in node.inputs if p.stream in inputs]
        ends += [
            ("output_stream", p.stream, p.port.type, out_of) for p in node.outputs if p.stream in outputs
        ]
        for field, stream, has, expected in ends:
            if not compatible(expected, has):
                raise node.node.error(
                    f"the graph's stream {stream!r} has {interface.value}, and the node's is {has}", field
                )


def http_streams(plan: GraphPlan) -> tuple[str, str]:
    """Return the names of the streams that carry HTTP payloads. Raises StopIteration in a graph without."""
    pair = next(p for p in HTTP_PAIRS if any(e.tag == p[0] for e in plan.inputs))
    into = next(e.name for e in plan.inputs if e.tag == pair[0])
    return into, next(e.name for e in plan.outputs if e.tag == pair[1])


def _ends(plan: GraphPlan, interface: Interface) -> tuple[set[str], set[str]]:
    """Return the streams with the interface's packets; an HTTP graph may have unconnected others."""
    if interface is Interface.HTTP:
        into, out_of = http_streams(plan)
        return {into}, {out_of}
    tags = WHOLE if interface is Interface.WHOLE else None
    inputs = {e.name for e in plan.inputs if tags is None or e.tag == tags[0]}
    outputs = {e.name for e in plan.outputs if tags is None or e.tag == tags[1]}
    return inputs, outputs


BELOW = "/*"


def declared(graph: Graph, servable: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the endpoints that the graph's nodes declare, and those of them that are open.

    An endpoint is a path without its version prefix. One that ends in `/*` stands for every path below it. An
    *open* endpoint takes any method and any body, and needs no `model`: a Python node decides what they mean.
    Without any, the graph takes every request.
    """
    names: set[str] = set()
    open_: set[str] = set()
    for plan in graph.plan.nodes:
        if issubclass(plan.cls, HttpCalculator):
            endpoints = set(plan.cls.endpoints_of(plan.contract.options, servable))
            names |= endpoints
            open_ |= endpoints if plan.cls.open_endpoints else set()
    return frozenset(names), frozenset(open_)


def matches(endpoint: str, names: Iterable[str]) -> bool:
    return endpoint in names or any(name.endswith(BELOW) and endpoint.startswith(name[:-1]) for name in names)
