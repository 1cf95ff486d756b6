"""The metrics of Python nodes. OVMS has none for them."""

from __future__ import annotations

from ovserve.monitoring.family import Family

FAMILIES: tuple[Family, ...] = (
    Family(
        "ovserve_python_call_seconds",
        "histogram",
        "Seconds until a handler answered, or its generator yielded the next item.",
        lambda model: [((node,), times) for node, times in model.metrics.python.seconds.items()],
        ("node",),
    ),
    Family(
        "ovserve_python_calls_running",
        "gauge",
        "Calls, and items of generators, that a handler computes or that wait for one.",
        lambda model: [((node,), count) for node, count in model.metrics.python.running.items()],
        ("node",),
    ),
    Family(
        "ovserve_python_errors_total",
        "counter",
        "Calls that failed, by type: exception, timeout, process_ended, or another kind of error.",
        lambda model: [(key, count) for key, count in model.metrics.python.errors.items()],
        ("node", "type"),
    ),
)
