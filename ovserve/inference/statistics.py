"""Counts of infer requests by model, as in Triton's ModelStatistics.

Only requests of KServe's protocol count; /metrics counts those of every API.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ovserve.errors import OvserveError


@dataclass
class Statistics:
    """Durations are nanoseconds from the request's arrival to its last response."""

    success: int = 0
    success_ns: int = 0
    fail: int = 0
    fail_ns: int = 0
    cancel: int = 0
    cancel_ns: int = 0
    last: int = 0  # Unix time of the last request in milliseconds

    @contextmanager
    def request(self) -> Iterator[None]:
        self.last = int(time.time() * 1000)
        began = time.monotonic_ns()
        try:
            yield
        except OvserveError:
            self.fail += 1
            self.fail_ns += time.monotonic_ns() - began
            raise
        except BaseException:  # the client disconnected
            self.cancel += 1
            self.cancel_ns += time.monotonic_ns() - began
            raise
        self.success += 1
        self.success_ns += time.monotonic_ns() - began
