"""Every metric of a servable: name, type, help, labels, where its numbers are; and the choice among them.

Families named `ovms_` are OVMS's, with its labels and buckets. Those named `ovserve_` are what OVMS lacks;
most are shown a second time under the name vLLM gives to the same thing, since autoscalers (KEDA), routers
(llm-d) and dashboards look for those. `choose` is for the option --metrics_list and for the monitoring
section of config.json.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ovserve.errors import InvalidArgument
from ovserve.serving.servable import Servable
from ovserve.serving.status import ServableStatus, VersionState
from ovserve.telemetry.counters import Call, ModelMetrics
from ovserve.telemetry.histogram import Histogram

Sample = tuple[tuple[str, ...], float | Histogram]  # values of the family's own labels


class Model(NamedTuple):
    """One name: what is counted of it, and the servable if it is loaded."""

    name: str
    metrics: ModelMetrics
    servable: Servable | None
    status: ServableStatus

    @property
    def in_engine_waiting(self) -> int:
        """Choices that the engine has taken but did not schedule when it last told."""
        engines = self.servable.engines.values() if self.servable else ()
        told = sum(e.usage.requests - e.usage.scheduled for e in engines)
        return max(0, min(told, self.metrics.meter.in_engine))

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
        """How many engines of each kind it has."""
        return Counter(e.spec.kind for e in self.servable.engines.values()) if self.servable else Counter()

    def of_engines(self, name: str) -> int:
        """A field of EngineStats, summed."""
        return sum(getattr(e.stats(), name) for e in self.servable.engines.values()) if self.servable else 0


@dataclass(frozen=True)
class Family:
    """`labels` are those besides the servable's name. `vllm` is the other name of the same thing."""

    name: str
    kind: str
    help: str
    read: Callable[[Model], Iterable[Sample]]
    labels: tuple[str, ...] = ()
    vllm: str = ""


def _value(read: Callable[[Model], float | Histogram]) -> Callable[[Model], Iterable[Sample]]:
    return lambda model: [((), read(model))]


def _by_label(read: Callable[[Model], Counter[str]]) -> Callable[[Model], Iterable[Sample]]:
    return lambda model: [((label,), count) for label, count in read(model).items()]


def _by_call(read: Callable[[Model], Counter[Call]]) -> Callable[[Model], Iterable[Sample]]:
    return lambda model: [(tuple(call), count) for call, count in read(model).items()]


def _states(model: Model) -> Iterator[Sample]:
    for state in VersionState:
        yield (state.name,), int(state is model.status.state)


CALL = ("api", "interface", "method")

FAMILIES: tuple[Family, ...] = (
    Family("ovms_current_graphs", "gauge", "Answers under way.", _value(lambda m: m.metrics.running)),
    Family(
        "ovms_requests_accepted",
        "counter",
        "Requests that entered the graph.",
        _by_call(lambda m: m.metrics.accepted),
        CALL,
    ),
    Family(
        "ovms_requests_rejected",
        "counter",
        "Requests refused because of the queue.",
        _by_call(lambda m: m.metrics.rejected),
        CALL,
    ),
    Family(
        "ovms_responses",
        "counter",
        "Whole answers, and pieces of streamed ones.",
        _by_call(lambda m: m.metrics.responses),
        CALL,
    ),
    Family(
        "ovms_graph_error",
        "counter",
        "Requests that entered the graph and did not finish.",
        _by_call(lambda m: m.metrics.errors),
        CALL,
    ),
    Family(
        "ovms_graph_processing_time_us",
        "histogram",
        "Microseconds from a request to the end of its answer, for those that finished.",
        lambda m: [((method,), times) for method, times in m.metrics.processing.items()],
        ("method",),
    ),
    Family(
        "ovms_requests_success",
        "counter",
        "ModelReady and ModelMetadata calls that were answered.",
        _by_call(lambda m: m.metrics.looked),
        CALL,
    ),
    Family(
        "ovms_requests_fail",
        "counter",
        "ModelReady and ModelMetadata calls that were not.",
        _by_call(lambda m: m.metrics.looked_in_vain),
        CALL,
    ),
    Family(
        "ovserve_requests_finished_total",
        "counter",
        "Requests answered to the end.",
        _value(lambda m: m.metrics.finished),
    ),
    Family(
        "ovserve_requests_failed_total",
        "counter",
        "Requests that ended with an error.",
        _by_label(lambda m: m.metrics.failed),
        ("reason",),
    ),
    Family(
        "ovserve_requests_cancelled_total",
        "counter",
        "Requests whose work was given up: client gone, asked for, timed out, server stopping.",
        _by_label(lambda m: m.metrics.cancelled),
        ("cause",),
    ),
    Family(
        "ovserve_requests_refused_total",
        "counter",
        "Requests the queue did not take, or not keep until the engine had room, or memory was short.",
        _by_label(lambda m: m.metrics.refused),
        ("cause",),
    ),
    Family(
        "ovserve_engines",
        "gauge",
        "Engines that the graph holds, by kind; one that is shared counts in each graph.",
        _by_label(lambda m: m.engine_kinds),
        ("kind",),
    ),
    Family(
        "ovserve_queue_requests",
        "gauge",
        "Requests in the queue.",
        _value(lambda m: m.metrics.meter.queued),
    ),
    Family(
        "ovserve_queue_tokens",
        "gauge",
        "Tokens of the prompts in the queue, estimated.",
        _value(lambda m: m.metrics.meter.queued_tokens),
    ),
    Family(
        "ovserve_choices_finished_total",
        "counter",
        "Choices the engine ended, by reason.",
        _by_label(lambda m: m.metrics.meter.finished),
        ("finished_reason",),
        "vllm:request_success_total",
    ),
    Family(
        "ovserve_prompt_tokens_total",
        "counter",
        "Tokens of prompts.",
        _value(lambda m: m.metrics.meter.prompt_tokens),
        vllm="vllm:prompt_tokens_total",
    ),
    Family(
        "ovserve_generated_tokens_total",
        "counter",
        "Tokens generated.",
        _value(lambda m: m.metrics.meter.generated_tokens),
        vllm="vllm:generation_tokens_total",
    ),
    Family(
        "ovserve_prefix_cache_queries_total",
        "counter",
        "Tokens of prompts looked up in the prefix cache.",
        _value(lambda m: m.metrics.meter.prefix_queries),
        vllm="vllm:prefix_cache_queries_total",
    ),
    Family(
        "ovserve_prefix_cache_hits_total",
        "counter",
        "Of the tokens looked up, those found, which are not computed again.",
        _value(lambda m: m.metrics.meter.prefix_hits),
        vllm="vllm:prefix_cache_hits_total",
    ),
    Family(
        "ovserve_drafted_tokens_total",
        "counter",
        "Tokens proposed by a draft model or by prompt lookup.",
        _value(lambda m: m.of_engines("drafted_tokens")),
        vllm="vllm:spec_decode_num_draft_tokens_total",
    ),
    Family(
        "ovserve_accepted_tokens_total",
        "counter",
        "Of the proposed tokens, those the model took.",
        _value(lambda m: m.of_engines("accepted_tokens")),
        vllm="vllm:spec_decode_num_accepted_tokens_total",
    ),
    Family(
        "ovserve_ignored_params_total",
        "counter",
        "Fields of request bodies that had no effect.",
        _value(lambda m: m.metrics.meter.ignored_params),
    ),
    Family(
        "ovserve_requests_running",
        "gauge",
        "Choices that are being generated.",
        _value(lambda m: m.scheduled),
        vllm="vllm:num_requests_running",
    ),
    Family(
        "ovserve_requests_waiting",
        "gauge",
        "Choices that wait, in the queue or inside of the engine.",
        _value(lambda m: m.waiting),
        vllm="vllm:num_requests_waiting",
    ),
    Family(
        "ovserve_kv_cache_usage_ratio",
        "gauge",
        "Part of the KV cache in use, 0 to 1.",
        _value(lambda m: m.cache_usage),
        vllm="vllm:kv_cache_usage_perc",
    ),
    Family("ovserve_kv_cache_bytes", "gauge", "Size of the KV cache.", _value(lambda m: m.cache_bytes)),
    Family(
        "ovserve_time_to_first_token_seconds",
        "histogram",
        "From a request to its first token.",
        _value(lambda m: m.metrics.meter.first_token),
        vllm="vllm:time_to_first_token_seconds",
    ),
    Family(
        "ovserve_inter_token_latency_seconds",
        "histogram",
        "Between two tokens of a choice.",
        _value(lambda m: m.metrics.meter.between_tokens),
        vllm="vllm:inter_token_latency_seconds",
    ),
    Family(
        "ovserve_queue_time_seconds",
        "histogram",
        "From a request to its admission by the engine.",
        _value(lambda m: m.metrics.meter.queue_time),
        vllm="vllm:request_queue_time_seconds",
    ),
    Family(
        "ovserve_prefill_time_seconds",
        "histogram",
        "From the admission to the first token.",
        _value(lambda m: m.metrics.meter.prefill_time),
        vllm="vllm:request_prefill_time_seconds",
    ),
    Family(
        "ovserve_decode_time_seconds",
        "histogram",
        "From the first token to the last.",
        _value(lambda m: m.metrics.meter.decode_time),
        vllm="vllm:request_decode_time_seconds",
    ),
    Family(
        "ovserve_request_latency_seconds",
        "histogram",
        "From a request to its last token.",
        _value(lambda m: m.metrics.meter.latency),
        vllm="vllm:e2e_request_latency_seconds",
    ),
    Family(
        "ovserve_request_prompt_tokens",
        "histogram",
        "Tokens per prompt.",
        _value(lambda m: m.metrics.meter.request_prompt_tokens),
        vllm="vllm:request_prompt_tokens",
    ),
    Family(
        "ovserve_request_generated_tokens",
        "histogram",
        "Tokens generated per choice.",
        _value(lambda m: m.metrics.meter.request_generated_tokens),
        vllm="vllm:request_generation_tokens",
    ),
    Family(
        "ovserve_engine_restarts_total",
        "counter",
        "Engine processes started in the place of one that died.",
        _value(lambda m: m.of_engines("restarts")),
    ),
    Family(
        "ovserve_engine_stalled_total",
        "counter",
        "Engine processes replaced because they made no progress for --stall_timeout seconds.",
        _value(lambda m: m.of_engines("stalls")),
    ),
    Family(
        "ovserve_requests_repeated_total",
        "counter",
        "Requests sent to another engine because theirs ended before anything of the answer was read.",
        _value(lambda m: m.of_engines("repeated")),
    ),
    Family("ovserve_servable_state", "gauge", "1 for the state the servable is in.", _states, ("state",)),
    Family(
        "ovserve_servable_error",
        "gauge",
        "1 while its last load or its engine has failed, whether an older version answers or not.",
        _value(lambda m: int(m.status.error_code != "OK")),
    ),
)

# Of the server, not of a servable.
HTTP_RESPONSES = "ovserve_http_responses_total"
RELOADS = "ovserve_reloads_total"
WRONG_CONFIGURATION = "ovserve_configuration_error"
ALL = "all"
PROCESS = "process"  # the library's names begin so: process_resident_memory_bytes
ENGINE_PROCESS = "ovserve_engine_process"

# OVMS's families of tensor models; known, so that a list of theirs is taken, but no graph has them.
OF_TENSOR_MODELS = frozenset(
    (
        "ovms_current_requests",
        "ovms_request_time_us",
        "ovms_inference_time_us",
        "ovms_wait_for_infer_req_time_us",
        "ovms_streams",
        "ovms_infer_req_queue_size",
        "ovms_infer_req_active",
    )
)
NAMES = frozenset(
    {f.name for f in FAMILIES}
    | {f.vllm for f in FAMILIES if f.vllm}
    | {HTTP_RESPONSES, RELOADS, WRONG_CONFIGURATION, PROCESS, ENGINE_PROCESS}
)


def choose(names: Sequence[str] | None) -> frozenset[str]:
    """The families to show: those named; all, if there is no list. Raises InvalidArgument for others."""
    if names is None:
        return NAMES
    for name in names:
        if name not in NAMES | OF_TENSOR_MODELS:
            near = difflib.get_close_matches(name, NAMES | OF_TENSOR_MODELS, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            raise InvalidArgument(f"{name!r} is not a known metric family{hint}", param="metrics_list")
    return frozenset(names)


def parse_list(text: str) -> frozenset[str]:
    """`choose`, of names separated by commas; "all" is no list."""
    return choose(None if text == ALL else [name.strip() for name in text.split(",") if name.strip()])
