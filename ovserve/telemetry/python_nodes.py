"""Measurements of Python nodes, per servable and node: how long handlers take, and how their calls fail."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from ovserve.errors import DeadlineExceeded, EngineDead, InvalidArgument, OvserveError
from ovserve.telemetry.histogram import TO_FIRST_TOKEN, Histogram


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
        found = next((name for kind, name in kinds if isinstance(error, kind)), error.code or error.kind)
        self.errors[node, found] += 1
