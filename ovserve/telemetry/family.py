"""A family of metrics, and how its samples are read from its source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ovserve.telemetry.histogram import Histogram

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
