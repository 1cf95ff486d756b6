"""The source of the families of the page: one servable and its counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ovserve.serving.servable import Servable
from ovserve.serving.status import ServableStatus, VersionState
from ovserve.telemetry.metrics import Call, ModelMetrics, Sample


class Model(NamedTuple):
    """One name: what is counted of it, and the servable if it is loaded."""

    name: str
    metrics: ModelMetrics
    servable: Servable | None
    status: ServableStatus
    versions: tuple[Servable, ...] = ()  # all that answer, of a plain model

    @property
    def plain(self) -> bool:
        return bool(self.metrics.versions) and (self.servable is None or self.servable.model is not None)

    @property
    def in_engine_waiting(self) -> int:
        """Return the choices that the engine had admitted but not scheduled at its last report."""
        engines = self.servable.engines.values() if self.servable else ()
        waiting = sum(e.usage.requests - e.usage.scheduled for e in engines)
        return max(0, min(waiting, self.metrics.meter.in_engine))

    @property
    def scheduled(self) -> int:
        return self.metrics.meter.in_engine - self.in_engine_waiting

    @property
    def waiting(self) -> int:
        return self.in_engine_waiting + self.metrics.meter.queued

    @property
    def cache_usage(self) -> float:
        return (
            max((e.usage.cache for e in self.servable.engines.values()), default=0.0)
            if self.servable
            else 0.0
        )

    @property
    def cache_bytes(self) -> int:
        return sum(e.usage.cache_bytes for e in self.servable.engines.values()) if self.servable else 0

    @property
    def engine_kinds(self) -> Counter[str]:
        return Counter(e.spec.kind for e in self.servable.engines.values()) if self.servable else Counter()

    def of_engines(self, name: str) -> int:
        """A field of EngineStats, summed."""
        return sum(getattr(e.stats(), name) for e in self.servable.engines.values()) if self.servable else 0


def by_call(read_counts: Callable[[Model], Counter[Call]]) -> Callable[[Model], Iterable[Sample]]:
    return lambda model: [(tuple(call), count) for call, count in read_counts(model).items()]


def node_events(model: Model) -> list[Sample]:
    return list(model.metrics.node_events.values.items())


def states(model: Model) -> Iterator[Sample]:
    for state in VersionState:
        yield (state.name,), int(state is model.status.state)
