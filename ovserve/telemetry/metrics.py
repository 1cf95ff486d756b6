"""Families of metrics, how their samples are read, and histograms as plain numbers with their buckets.

Histograms replace prometheus_client's own instruments, which take a lock and search the buckets one by one.
That costs four to five times as much (0.73 us against 0.16), and there is one observation per token. The
event loop is the only writer, so nothing needs a lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

Bounds = tuple[float, ...]

# OVMS's buckets, in microseconds: floor(10 * 1.8^i).
MICROSECONDS: Bounds = tuple(float(int(10 * 1.8**i)) for i in range(33))
# vLLM's buckets, so that its dashboards fit; two more below its first, because small models are faster than
# that.
TO_FIRST_TOKEN: Bounds = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS: Bounds = (
    *(0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
OF_REQUESTS: Bounds = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
TOKENS: Bounds = tuple(float(n * 10**power) for power in range(6) for n in (1, 2, 5))


class Histogram:
    """Counts per bucket, not cumulated; the last one counts values over every bound."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulated(self) -> list[int]:
        """Return one number per bound and one for infinity, in Prometheus's form."""
        return list(accumulate(self._counts))


S = TypeVar("S")
# Values of the family's own labels, or labels and values where they differ from sample to sample.
Sample = tuple[tuple[str, ...] | Mapping[str, str], float | Histogram]


@dataclass(frozen=True)
class Family(Generic[S]):
    """`read` reads a source: the counters of one kind, or one servable and all that is counted of it.

    `labels` are those besides the servable's name. `vllm` is the other name of the same thing.

    Plain models have only the families that are `plain`.
    """

    name: str
    kind: str
    help: str
    read: Callable[[S], Iterable[Sample]]
    labels: tuple[str, ...] = ()
    vllm: str = ""
    plain: bool = False


def value(read_value: Callable[[S], float | Histogram]) -> Callable[[S], Iterable[Sample]]:
    return lambda source: [((), read_value(source))]


def by_label(read_counts: Callable[[S], Counter[str]]) -> Callable[[S], Iterable[Sample]]:
    return lambda source: [((label,), count) for label, count in read_counts(source).items()]
