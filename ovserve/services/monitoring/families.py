"""Every metric of a servable: name, type, help, labels, where its numbers are.

Families named `ovms_` are OVMS's, with its labels and buckets. Those named `ovserve_` are what OVMS lacks;
most are shown a second time under the name vLLM gives to the same thing, since autoscalers (KEDA), routers
(llm-d) and dashboards look for those.

Those of plain models have a sample for each version.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from ovserve.errors import InvalidArgument
from ovserve.kinds.tensors.metrics import TensorMetrics
from ovserve.services.monitoring.kind_families import (
    CACHE_FAMILIES,
    IDLE_FAMILIES,
    KIND_FAMILIES,
    MODEL_FAMILIES,
    REQUEST_FAMILIES,
    Model,
    states,
)
from ovserve.telemetry.metrics import Call, Family, Histogram, Sample, by_label, value

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


FAMILIES: tuple[Family[Model], ...] = (
    *MODEL_FAMILIES,
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
    *REQUEST_FAMILIES,
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
    *CACHE_FAMILIES,
    *IDLE_FAMILIES,
    *PLAIN_MODEL_FAMILIES,
    *KIND_FAMILIES,
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
