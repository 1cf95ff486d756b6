"""Counters of plain models, per version; `services/monitoring/families.py` gives them OVMS's names."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

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

    @contextmanager
    def request(self, api: str, interface: str, method: str) -> Iterator[None]:
        """Count a request from here to the end of the block; time those that succeed, by interface."""
        began = time.monotonic()
        self.current += 1
        try:
            yield
        except Exception:  # a client that disconnects is not a failure of the model
            self.fail[api, interface, method] += 1
            raise
        else:
            self.success[api, interface, method] += 1
            self.request_us[interface].observe((time.monotonic() - began) * 1e6)
        finally:
            self.current -= 1
