"""Counters of plain models, per version; `services/monitoring/families.py` gives them OVMS's names."""

from __future__ import annotations

import time
from collections import Counter, defaultdict

from ovserve.telemetry.metrics import MICROSECONDS, Histogram


class TensorMetrics:
    """`success` and `fail` are keyed by the labels api, interface and method."""

    def __init__(self) -> None:
        self.current = 0  # requests under way
        self.active = 0  # calls that the engine holds
        self.success: Counter[tuple[str, str, str]] = Counter()
        self.fail: Counter[tuple[str, str, str]] = Counter()
        self.request_us: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(MICROSECONDS))
        self.inference_us = Histogram(MICROSECONDS)
        self.wait_us = Histogram(MICROSECONDS)

    def request(self, api: str, interface: str, method: str) -> _Request:
        """Count a request from here to the end of the block; time those that succeed, by interface."""
        return _Request(self, (api, interface, method))


class _Request:
    __slots__ = ("_began", "_call", "_metrics")

    def __init__(self, metrics: TensorMetrics, call: tuple[str, str, str]) -> None:
        self._metrics, self._call = metrics, call

    def __enter__(self) -> None:
        self._began = time.monotonic()
        self._metrics.current += 1

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        metrics, call = self._metrics, self._call
        metrics.current -= 1
        if kind is None:
            metrics.success[call] += 1
            metrics.request_us[call[1]].observe((time.monotonic() - self._began) * 1e6)
        elif issubclass(kind, Exception):  # a client that disconnects is not a failure of the model
            metrics.fail[call] += 1
