"""The paths that a graph serves, as its nodes declare them.

An endpoint is a path without its version prefix. One that ends in `/*` stands for every path below it. An
*open* endpoint takes any method and any body, and needs no `model`: a Python node decides what they mean.
"""

from __future__ import annotations

from collections.abc import Iterable

from ovserve.graph.graph import Graph
from ovserve.kinds.payload import HttpCalculator

BELOW = "/*"


def declared(graph: Graph, servable: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the endpoints that the graph's nodes declare, and those of them that are open.

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
    return any(
        endpoint == name or (name.endswith(BELOW) and endpoint.startswith(name[:-1])) for name in names
    )
