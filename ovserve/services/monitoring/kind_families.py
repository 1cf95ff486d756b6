"""Families of KV caches, of graphs that are unloaded while they are idle, and of the kinds of models.

OVMS has the metrics of text generation and of idle graphs only. A kind declares its own families.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple, TypeVar

from ovserve.engine.protocol.specs import TextFacts, TextSpec, block_tokens
from ovserve.kinds.encoders.metrics import EncoderMetrics
from ovserve.kinds.images.metrics import ImageMetrics
from ovserve.kinds.python.metrics import PythonMetrics
from ovserve.kinds.speech.metrics import SpeechMetrics
from ovserve.kinds.voice.metrics import TextToSpeechMetrics
from ovserve.serving.engines import AnyEngine
from ovserve.serving.servable import Servable
from ovserve.serving.status import ServableStatus, VersionState
from ovserve.telemetry.metrics import (
    Family,
    ModelMetrics,
    RequestMetrics,
    Sample,
    families_of,
    value,
)

# The source of the families of the page: one servable and its counters.


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
    def engines(self) -> Collection[AnyEngine]:
        return self.servable.engines.values() if self.servable else ()

    @property
    def in_engine_waiting(self) -> int:
        """Return the choices that the engine had admitted but not scheduled at its last report."""
        waiting = sum(e.usage.requests - e.usage.scheduled for e in self.engines)
        return max(0, min(waiting, self.metrics.meter.in_engine))

    @property
    def scheduled(self) -> int:
        return self.metrics.meter.in_engine - self.in_engine_waiting

    @property
    def waiting(self) -> int:
        return self.in_engine_waiting + self.metrics.meter.queued

    @property
    def cache_usage(self) -> float:
        return max((e.usage.cache for e in self.engines), default=0.0)

    @property
    def cache_bytes(self) -> int:
        return sum(e.usage.cache_bytes for e in self.engines)

    @property
    def engine_kinds(self) -> Counter[str]:
        return Counter(e.spec.kind for e in self.engines)

    def of_engines(self, name: str) -> int:
        """A field of EngineStats, summed."""
        return sum(getattr(e.stats(), name) for e in self.engines)


def states(model: Model) -> Iterator[Sample]:
    for state in VersionState:
        yield (state.name,), int(state is model.status.state)


M = TypeVar("M")


def _config(model: Model) -> list[Sample]:
    """Return one sample for the first language model that has a cache.

    Endpoint pickers and autoscalers multiply both labels to get the tokens that fit into the cache.
    """
    for engine in model.engines:
        spec, facts = engine.spec, engine.facts
        if isinstance(spec, TextSpec) and isinstance(facts, TextFacts):
            size = block_tokens(spec.device)
            blocks = spec.num_kv_blocks or facts.cache_tokens // size
            return [((str(size), str(blocks)), 1)]
    return []


CACHE_FAMILIES: tuple[Family[Model], ...] = (
    Family(
        "ovserve_kv_cache_usage_ratio",
        "gauge",
        "Part of the KV cache in use, 0 to 1. Without `cache_size` the whole is what free memory allows.",
        value(lambda m: m.cache_usage),
        vllm="vllm:kv_cache_usage_perc",
    ),
    Family("ovserve_kv_cache_bytes", "gauge", "Size of the KV cache.", value(lambda m: m.cache_bytes)),
    Family(
        "ovserve_kv_cache_config_info",
        "gauge",
        "Tokens per block of the KV cache, and its blocks; 0 blocks for a cache that grows as needed.",
        _config,
        ("block_size", "num_gpu_blocks"),
        vllm="vllm:cache_config_info",
    ),
)


STATES = ("loaded", "loading", "unloaded")


def _states(model: Model) -> Iterator[Sample]:
    state = _state(model)
    for name in STATES:
        yield (name,), int(name == state)


def _state(model: Model) -> str:
    """Return the state of the newest version; a graph without engines that is served is loaded."""
    if model.servable is None:
        return ""
    return model.servable.residence or "loaded"


IDLE_FAMILIES: tuple[Family[Model], ...] = (
    Family(
        "ovms_graph_loaded",
        "gauge",
        "1 while the graph is loaded, 0 while it is unloaded until the next request.",
        value(lambda m: int(_state(m) == "loaded")),
    ),
    Family(
        "ovserve_graph_state",
        "gauge",
        "1 for the state of a served graph's engines.",
        _states,
        ("state",),
        plain=True,
    ),
)


def _reading(counters: Callable[[Model], M], kind: type[M]) -> Iterator[Family[Model]]:
    """Yield the families of the fields of some of a model's counters, which are of this dataclass."""
    for family in families_of(kind):

        def read(model: Model, family: Family[M] = family) -> Iterable[Sample]:
            return family.read(counters(model))

        yield dataclasses.replace(family, read=read)


def _of(kind: type[M]) -> Iterator[Family[Model]]:
    return _reading(lambda model: model.metrics.kinds.of(kind), kind)


MODEL_FAMILIES = tuple(_reading(lambda model: model.metrics, ModelMetrics))
REQUEST_FAMILIES = tuple(_reading(lambda model: model.metrics.meter, RequestMetrics))

KIND_FAMILIES: tuple[Family[Model], ...] = (
    *_of(EncoderMetrics),
    *_of(ImageMetrics),
    *_of(PythonMetrics),
    *_of(SpeechMetrics),
    *_of(TextToSpeechMetrics),
)
