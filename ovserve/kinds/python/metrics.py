"""Counters of Python nodes, per node."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from ovserve.errors import DeadlineExceeded, EngineDead, InvalidArgument, OvserveError
from ovserve.telemetry.metrics import TO_FIRST_TOKEN, Family, Histogram


class PythonMetrics:
    """Sums since the server started, across reloads and restarts. `errors` are keyed by node and type."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(TO_FIRST_TOKEN))
        self.errors: Counter[tuple[str, str]] = Counter()
        self.running: Counter[str] = Counter()  # calls, or items of generators, that are waited for

    @contextmanager
    def call(self, node: str) -> Iterator[None]:
        """Enter while a handler computes an answer, or the next item of its generator."""
        began = time.monotonic()
        self.running[node] += 1
        try:
            yield
        except OvserveError as error:
            self._failed(node, error)
            raise
        else:
            self.seconds[node].observe(time.monotonic() - began)
        finally:
            self.running[node] -= 1

    def _failed(self, node: str, error: OvserveError) -> None:
        kinds = ((InvalidArgument, "exception"), (DeadlineExceeded, "timeout"), (EngineDead, "process_ended"))
        kind_name = next((name for kind, name in kinds if isinstance(error, kind)), error.code or error.kind)
        self.errors[node, kind_name] += 1


FAMILIES: tuple[Family[PythonMetrics], ...] = (
    Family(
        "ovserve_python_call_seconds",
        "histogram",
        "Seconds until a handler answered, or its generator yielded the next item.",
        lambda metrics: [((node,), times) for node, times in metrics.seconds.items()],
        ("node",),
    ),
    Family(
        "ovserve_python_calls_running",
        "gauge",
        "Calls, and items of generators, that a handler computes or that wait for one.",
        lambda metrics: [((node,), count) for node, count in metrics.running.items()],
        ("node",),
    ),
    Family(
        "ovserve_python_errors_total",
        "counter",
        "Calls that failed, by type: exception, timeout, process_ended, or another kind of error.",
        lambda metrics: [(key, count) for key, count in metrics.errors.items()],
        ("node", "type"),
    ),
)
