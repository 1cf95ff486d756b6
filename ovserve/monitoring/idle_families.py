"""Metrics of graphs that are unloaded while they are idle."""

from __future__ import annotations

from collections.abc import Iterator

from ovserve.monitoring.family import Family, Model, Sample, by_label, value

STATES = ("loaded", "loading", "unloaded")


def _states(model: Model) -> Iterator[Sample]:
    state = _state(model)
    for name in STATES:
        yield (name,), int(name == state)


def _state(model: Model) -> str:
    """Return the state of the newest version; a graph without engines that is served is loaded."""
    if model.servable is None:
        return ""
    return model.servable.residence or "loaded"


FAMILIES = (
    Family(
        "ovms_graph_loaded",
        "gauge",
        "1 while the graph is loaded, 0 while it is unloaded until the next request.",
        value(lambda m: int(_state(m) == "loaded")),
    ),
    Family(
        "ovserve_graph_state",
        "gauge",
        "1 for the state of a served graph's engines.",
        _states,
        ("state",),
        plain=True,
    ),
    Family(
        "ovserve_wake_seconds",
        "histogram",
        "Seconds that loads on demand took; their number is `_count`.",
        value(lambda m: m.metrics.wakes),
        plain=True,
    ),
    Family(
        "ovserve_unloads_total",
        "counter",
        "Times that the graph was unloaded until the next request: idle, or to make room for another one.",
        by_label(lambda m: m.metrics.unloads),
        ("cause",),
        plain=True,
    ),
    Family(
        "ovserve_warm_prefix_tokens_total",
        "counter",
        "Prompt tokens of shared prefixes that were computed again after a load, before a client needs them.",
        value(lambda m: m.of_engines("replayed_tokens")),
    ),
)
