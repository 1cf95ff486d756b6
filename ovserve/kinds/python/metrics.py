"""Counters of Python nodes, per node."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ovserve.errors import DeadlineExceeded, EngineDead, InvalidArgument, OvserveError
from ovserve.telemetry.metrics import TO_FIRST_TOKEN, Histogram, counter, histogram


@dataclass(eq=False)
class PythonMetrics:
    """Sums since the server started, across reloads and restarts."""

    seconds: defaultdict[str, Histogram] = histogram(
        "ovserve_python_call_seconds",
        "Seconds until a handler answered, or its generator yielded the next item.",
        TO_FIRST_TOKEN,
        by=("node",),
    )
    running: Counter[str] = counter(
        "ovserve_python_calls_running",
        "Calls, and items of generators, that a handler computes or that wait for one.",
        "gauge",
        by=("node",),
    )
    errors: Counter[tuple[str, str]] = counter(
        "ovserve_python_errors_total",
        "Calls that failed, by type: exception, timeout, process_ended, or another kind of error.",
        by=("node", "type"),
    )

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
