"""Every metric of a servable: name, type, help, labels, where its numbers are.

Families named `ovms_` are OVMS's, with its labels and buckets. Those named `ovserve_` are what OVMS lacks;
most are shown a second time under the name vLLM gives to the same thing, since autoscalers (KEDA), routers
(llm-d) and dashboards look for those. OVMS has the metrics of text generation and of idle graphs only.

Those of plain models have a sample for each version.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

from ovserve.engine.protocol.specs import TextFacts, TextSpec, block_tokens
from ovserve.errors import InvalidArgument
from ovserve.kinds.encoders.metrics import EncoderMetrics
from ovserve.kinds.images.metrics import ImageMetrics
from ovserve.kinds.python.metrics import PythonMetrics
from ovserve.kinds.speech.metrics import SpeechMetrics
from ovserve.kinds.tensors.metrics import TensorMetrics
from ovserve.kinds.voice.metrics import TextToSpeechMetrics
from ovserve.serving.engines import AnyEngine
from ovserve.serving.servable import Servable
from ovserve.serving.status import ServableStatus, VersionState
from ovserve.telemetry.metrics import (
    Call,
    Family,
    Histogram,
    ModelMetrics,
    RequestMetrics,
    Sample,
    by_label,
    families_of,
    value,
)

M = TypeVar("M")


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


Read = Callable[[Model], Iterable[Sample]]


def calls(of_graph: Callable[[Model], Counter[Call]], name: str) -> Read:
    """Read calls that have no version in OVMS, and the counter `name` of each version."""

    def read(model: Model) -> Iterator[Sample]:
        for call, count in of_graph(model).items():
            yield tuple(call), count
        for version, metrics in model.metrics.versions.items() if model.plain else ():
            for (api, interface, method), count in getattr(metrics.of(TensorMetrics), name).items():
                labels = {"api": api, "interface": interface, "method": method, "version": str(version)}
                yield labels, count

    return read


def _each(read_value: Callable[[TensorMetrics], float | Histogram]) -> Read:
    return lambda model: [
        ({"version": str(version)}, read_value(metrics.of(TensorMetrics)))
        for version, metrics in model.metrics.versions.items()
    ]


def _request_times(model: Model) -> Iterator[Sample]:
    for version, metrics in model.metrics.versions.items():
        for interface, histogram in metrics.of(TensorMetrics).request_us.items():
            yield {"interface": interface, "version": str(version)}, histogram


def _facts(name: str) -> Read:
    def read(model: Model) -> Iterator[Sample]:
        for servable in model.versions:
            if servable.model is not None:
                yield {"version": servable.version}, getattr(servable.model.model, name)

    return read


def _plain(
    name: str, kind: str, help_: str, read: Read, labels: tuple[str, ...] = ("version",)
) -> Family[Model]:
    return Family(name, kind, help_, read, labels, plain=True)


PLAIN_MODEL_FAMILIES: tuple[Family[Model], ...] = (
    _plain(
        "ovms_requests_success",
        "counter",
        "ModelReady and ModelMetadata calls that were answered, and inferences of plain models.",
        calls(lambda m: m.metrics.lookups, "success"),
        Call._fields,
    ),
    _plain(
        "ovms_requests_fail",
        "counter",
        "ModelReady and ModelMetadata calls that were not, and inferences of plain models.",
        calls(lambda m: m.metrics.lookup_failures, "fail"),
        Call._fields,
    ),
    _plain(
        "ovms_current_requests", "gauge", "Requests to a plain model under way.", _each(lambda m: m.current)
    ),
    _plain(
        "ovms_request_time_us",
        "histogram",
        "Microseconds from a request to a plain model to its answer, for those that succeed.",
        _request_times,
        ("interface", "version"),
    ),
    _plain(
        "ovms_inference_time_us",
        "histogram",
        "Microseconds of an inference in the engine.",
        _each(lambda m: m.inference_us),
    ),
    _plain(
        "ovms_wait_for_infer_req_time_us",
        "histogram",
        "Microseconds between the arrival of a call in the engine and its inference.",
        _each(lambda m: m.wait_us),
    ),
    _plain("ovms_streams", "gauge", "Inferences that the device runs at a time.", _facts("streams")),
    _plain("ovms_infer_req_queue_size", "gauge", "Infer requests.", _facts("max_calls")),
    _plain(
        "ovms_infer_req_active",
        "gauge",
        "Inferences that run or wait in the engine.",
        _each(lambda m: m.active),
    ),
)


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


def _reading(counters: Callable[[Model], M], kind: type[M]) -> Iterator[Family[Model]]:
    """Yield the families of the fields of some of a model's counters, which are of this dataclass."""
    for family in families_of(kind):

        def read(model: Model, family: Family[M] = family) -> Iterable[Sample]:
            return family.read(counters(model))

        yield dataclasses.replace(family, read=read)


def _of(kind: type[M]) -> Iterator[Family[Model]]:
    return _reading(lambda model: model.metrics.kinds.of(kind), kind)


FAMILIES: tuple[Family[Model], ...] = (
    *_reading(lambda model: model.metrics, ModelMetrics),
    Family(
        "ovserve_node_events_total",
        "counter",
        "Counts of calculators.",
        lambda m: list(m.metrics.node_events.values.items()),  # at once: executors add to it meanwhile
        ("node", "event"),
    ),
    Family(
        "ovserve_engines",
        "gauge",
        "Engines that the graph holds, by kind; one that is shared counts in each graph.",
        by_label(lambda m: m.engine_kinds),
        ("kind",),
        plain=True,
    ),
    *_reading(lambda model: model.metrics.meter, RequestMetrics),
    Family(
        "ovserve_batch_prompt_tokens_total",
        "counter",
        "Tokens of prompts of batches, which other metrics of requests leave out.",
        value(lambda m: m.metrics.meter.of_batches.prompt_tokens),
    ),
    Family(
        "ovserve_batch_generated_tokens_total",
        "counter",
        "Tokens generated for batches, likewise.",
        value(lambda m: m.metrics.meter.of_batches.generated_tokens),
    ),
    Family(
        "ovserve_drafted_tokens_total",
        "counter",
        "Tokens proposed by a draft model or by prompt lookup.",
        value(lambda m: m.of_engines("drafted_tokens")),
        vllm="vllm:spec_decode_num_draft_tokens_total",
    ),
    Family(
        "ovserve_accepted_tokens_total",
        "counter",
        "Of the proposed tokens, those the model took.",
        value(lambda m: m.of_engines("accepted_tokens")),
        vllm="vllm:spec_decode_num_accepted_tokens_total",
    ),
    Family(
        "ovserve_requests_running",
        "gauge",
        "Choices that are being generated.",
        value(lambda m: m.scheduled),
        vllm="vllm:num_requests_running",
    ),
    Family(
        "ovserve_requests_waiting",
        "gauge",
        "Choices that wait, in the queue or inside of the engine.",
        value(lambda m: m.waiting),
        vllm="vllm:num_requests_waiting",
    ),
    Family(
        "ovserve_engine_restarts_total",
        "counter",
        "Engine processes started in the place of one that died.",
        value(lambda m: m.of_engines("restarts")),
        plain=True,
    ),
    Family(
        "ovserve_engine_stalled_total",
        "counter",
        "Engine processes replaced because they made no progress.",
        value(lambda m: m.of_engines("stalls")),
        plain=True,
    ),
    Family(
        "ovserve_requests_repeated_total",
        "counter",
        "Requests sent to another engine because theirs ended before anything of the answer was read.",
        value(lambda m: m.of_engines("repeated")),
        plain=True,
    ),
    Family(
        "ovserve_servable_state",
        "gauge",
        "1 for the state the servable is in.",
        states,
        ("state",),
        plain=True,
    ),
    Family(
        "ovserve_servable_error",
        "gauge",
        "1 while its last load or its engine has failed, whether an older version answers or not.",
        value(lambda m: int(m.status.error_code != "OK")),
        plain=True,
    ),
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
    *PLAIN_MODEL_FAMILIES,
    *_of(EncoderMetrics),
    *_of(ImageMetrics),
    *_of(PythonMetrics),
    *_of(SpeechMetrics),
    *_of(TextToSpeechMetrics),
)

# Of the server, not of a servable.
HTTP_RESPONSES = "ovserve_http_responses_total"
RELOADS = "ovserve_reloads_total"
WRONG_CONFIGURATION = "ovserve_configuration_error"
BATCHES = "ovserve_batches"
OLDEST_BATCH = "ovserve_batch_oldest_seconds"
BATCH_LINES_RUNNING = "ovserve_batch_lines_running"
BATCH_LINES = "ovserve_batch_lines_total"
ALL = "all"
PROCESS = "process"  # the library's names begin so: process_resident_memory_bytes
ENGINE_PROCESS = "ovserve_engine_process"

NAMES = frozenset(
    {f.name for f in FAMILIES}
    | {f.vllm for f in FAMILIES if f.vllm}
    | {HTTP_RESPONSES, RELOADS, WRONG_CONFIGURATION, PROCESS, ENGINE_PROCESS}
    | {BATCHES, OLDEST_BATCH, BATCH_LINES_RUNNING, BATCH_LINES}
)


def choose(names: Sequence[str] | None) -> frozenset[str]:
    """Return the families to show: the named ones; all without a list. Raises InvalidArgument for unknown
    names."""
    if names is None:
        return NAMES
    for name in names:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise InvalidArgument(f"{name!r} is not a known metric family{hint}", param="metrics_list")
    return frozenset(names)


def parse_list(text: str) -> frozenset[str]:
    """Parse names separated by commas for `choose`; "all" means no list."""
    return choose(None if text == ALL else [name.strip() for name in text.split(",") if name.strip()])
