"""Metrics: counters per servable and for the server, histograms, and the families that read them.

Counters are plain numbers, kept across reloads. A servable reports each answer through an `Outcome`, which
ensures that an accepted request ends in exactly one of finished, failed, cancelled and rejected. What
calculators count with `cc.count` is kept by node and by the author's name of the event.

Times are `time.monotonic()` in seconds.

Histograms replace prometheus_client's own instruments, which take a lock and search the buckets one by one.
That costs four to five times as much (0.73 us against 0.16), and there is one observation per token. The
event loop is the only writer, so nothing needs a lock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import accumulate
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from ovserve.errors import Cancelled, DeadlineExceeded, Overloaded, OvserveError

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


def by_label(read_counts: Callable[[S], Mapping[Any, float | Histogram]]) -> Callable[[S], Iterable[Sample]]:
    """Return what reads numbers by their label, or by a tuple of labels."""
    return lambda source: [
        ((key,) if isinstance(key, str) else key, one) for key, one in read_counts(source).items()
    ]


def counter(
    name: str,
    help_: str,
    kind: str = "counter",
    by: tuple[str, ...] = (),
    start: Iterable[str] = (),
    **more: Any,
) -> Any:
    """Return a field of a dataclass of counters, with the family that shows it: a number, or numbers `by`
    labels, of which those of `start` are shown from the start. `more` are further fields of the family."""
    if not by:
        return field(default=0, metadata={"family": (name, kind, help_, value, more)})
    family = (name, kind, help_, by_label, {"labels": by, **more})
    return field(default_factory=lambda: Counter(dict.fromkeys(start, 0)), metadata={"family": family})


def histogram(name: str, help_: str, bounds: Bounds, by: tuple[str, ...] = (), **more: Any) -> Any:
    """Return a field of a dataclass of counters, with its family: a histogram, or histograms `by` a label."""
    samples = by_label if by else value
    return field(
        default_factory=lambda: defaultdict(lambda: Histogram(bounds)) if by else Histogram(bounds),
        metadata={"family": (name, "histogram", help_, samples, {"labels": by, **more})},
    )


def families_of(kind: type[Any]) -> tuple[Family[Any], ...]:
    """Return the families of the fields of a dataclass, in their order."""
    rows = ((one.metadata["family"], attrgetter(one.name)) for one in fields(kind) if one.metadata)
    return tuple(
        Family(name, type_, help_, samples(getter), **more)
        for (name, type_, help_, samples, more), getter in rows
    )


@dataclass(eq=False)
class RequestMetrics:
    """Sums over all requests to one model since the server started, across reloads and engine restarts."""

    queued: int = counter("ovserve_queue_requests", "Requests in the queue.", "gauge", plain=True)
    queued_tokens: int = counter(
        "ovserve_queue_tokens", "Tokens of the prompts in the queue, estimated.", "gauge"
    )
    in_engine: int = 0  # choices that run or wait in the engine
    finished: Counter[str] = counter(
        "ovserve_choices_finished_total",
        "Choices the engine ended, by reason.",
        by=("finished_reason",),
        vllm="vllm:request_success_total",
    )
    prompt_tokens: int = counter(
        "ovserve_prompt_tokens_total", "Tokens of prompts.", vllm="vllm:prompt_tokens_total"
    )
    generated_tokens: int = counter(
        "ovserve_generated_tokens_total", "Tokens generated.", vllm="vllm:generation_tokens_total"
    )
    ignored_params: int = counter(
        "ovserve_ignored_params_total", "Fields of request bodies that had no effect."
    )
    first_token: Histogram = histogram(
        "ovserve_time_to_first_token_seconds",
        "From a request to its first token.",
        TO_FIRST_TOKEN,
        vllm="vllm:time_to_first_token_seconds",
    )
    between_tokens: Histogram = histogram(
        "ovserve_inter_token_latency_seconds",
        "Between two tokens of a choice.",
        BETWEEN_TOKENS,
        vllm="vllm:inter_token_latency_seconds",
    )
    queue_time: Histogram = histogram(
        "ovserve_queue_time_seconds",
        "From a request to its admission by the engine.",
        OF_REQUESTS,
        vllm="vllm:request_queue_time_seconds",
        plain=True,
    )
    prefill_time: Histogram = histogram(
        "ovserve_prefill_time_seconds",
        "From the admission to the first token.",
        OF_REQUESTS,
        vllm="vllm:request_prefill_time_seconds",
    )
    decode_time: Histogram = histogram(
        "ovserve_decode_time_seconds",
        "From the first token to the last.",
        OF_REQUESTS,
        vllm="vllm:request_decode_time_seconds",
    )
    latency: Histogram = histogram(
        "ovserve_request_latency_seconds",
        "From a request to its last token.",
        OF_REQUESTS,
        vllm="vllm:e2e_request_latency_seconds",
        plain=True,
    )
    request_prompt_tokens: Histogram = histogram(
        "ovserve_request_prompt_tokens", "Tokens per prompt.", TOKENS, vllm="vllm:request_prompt_tokens"
    )
    request_generated_tokens: Histogram = histogram(
        "ovserve_request_generated_tokens",
        "Tokens generated per choice.",
        TOKENS,
        vllm="vllm:request_generation_tokens",
    )
    prefix_queries: int = counter(
        "ovserve_prefix_cache_queries_total",
        "Tokens of prompts looked up in the prefix cache.",
        vllm="vllm:prefix_cache_queries_total",
    )
    prefix_hits: int = counter(
        "ovserve_prefix_cache_hits_total",
        "Of the tokens looked up, those found, which are not computed again.",
        vllm="vllm:prefix_cache_hits_total",
    )

    @cached_property
    def of_batches(self) -> RequestMetrics:
        """The sums of lines of batches, which are not in these: their times say nothing of live requests."""
        return RequestMetrics()


# Each name is a time series for every scraper, so a client's text must not become one.
MAX_EVENTS = 100


class NodeEvents:
    """The counters of all nodes of one servable, kept across its reloads."""

    def __init__(self) -> None:
        self.values: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()  # calculators on executors count as well

    def add(self, node: str, event: str, n: int = 1) -> None:
        """Count `n` events. Raises ValueError for a negative number, and for a node's 101st name."""
        if n < 0:
            raise ValueError(f"event {event!r}: a counter cannot be decreased, got {n}")
        key = node, event
        with self._lock:
            if key not in self.values and sum(name == node for name, _ in self.values) >= MAX_EVENTS:
                raise ValueError(f"node {node!r} counts more than {MAX_EVENTS} kinds of events")
            self.values[key] += n


M = TypeVar("M")

# Why the work for a request was cancelled: disconnect of the client, a cancel request, its deadline,
# shutdown.
CANCEL_CAUSES = (DISCONNECT, REQUEST, TIMEOUT, SHUTDOWN) = ("disconnect", "request", "timeout", "shutdown")

# Why a graph was unloaded until the next request: without one for long, or for another graph.
UNLOAD_CAUSES = (IDLE, ROOM) = ("idle", "room")

# Causes of an Overloaded.
REFUSAL_CAUSES = ("queue_full", "queue_tokens", "queue_share", "queue_timeout", "memory", "unloaded")


class Front(NamedTuple):
    """The interfaces of requests, with the label values of OVMS."""

    api: str
    interface: str
    unary: str
    stream: str


REST = Front("V3", "REST", "Unary", "Stream")
KSERVE_REST = Front("KServe", "REST", "ModelInfer", "ModelInferStream")
GRPC = Front("KServe", "gRPC", "ModelInfer", "ModelInferStream")
TENSORFLOW = Front("TensorFlowServing", "REST", "Predict", "Predict")
GRPC_STREAM = GRPC._replace(unary=GRPC.stream)  # a gRPC stream may carry whole answers


MODEL_READY, MODEL_METADATA = "ModelReady", "ModelMetadata"


class Call(NamedTuple):
    """The labels of OVMS for the metrics of a graph."""

    api: str
    interface: str
    method: str


class KindMetrics:
    """The counters of each kind of model, by their class."""

    def __init__(self) -> None:
        self._counters: dict[type[Any], Any] = {}

    def of(self, kind: type[M]) -> M:
        """Return the counters of a kind; they begin when they are first asked for."""
        counters: M | None = self._counters.get(kind)
        if counters is None:
            counters = self._counters[kind] = kind()
        return counters


@dataclass(eq=False)
class ModelMetrics:
    meter: RequestMetrics = field(default_factory=RequestMetrics)
    kinds: KindMetrics = field(default_factory=KindMetrics)
    running: int = counter("ovms_current_graphs", "Answers under way.", "gauge")
    accepted: Counter[Call] = counter(
        "ovms_requests_accepted", "Requests that entered the graph.", by=Call._fields
    )
    rejected: Counter[Call] = counter(
        "ovms_requests_rejected", "Requests rejected because of the queue.", by=Call._fields
    )
    responses: Counter[Call] = counter(
        "ovms_responses", "Whole answers, and pieces of streamed ones.", by=Call._fields
    )
    errors: Counter[Call] = counter(
        "ovms_graph_error", "Requests that entered the graph and did not finish.", by=Call._fields
    )
    processing: defaultdict[str, Histogram] = histogram(
        "ovms_graph_processing_time_us",
        "Microseconds from a request to the end of its answer, for those that finished.",
        MICROSECONDS,
        by=("method",),
    )
    latencies: defaultdict[str, Histogram] = histogram(
        "ovms_graph_request_latency_us",
        "Microseconds from a request to the first piece of its streamed answer.",
        MICROSECONDS,
        by=("method",),
    )
    finished: int = counter("ovserve_requests_finished_total", "Requests answered to the end.")
    failed: Counter[str] = counter(  # by the error's code or kind
        "ovserve_requests_failed_total", "Requests that ended with an error.", by=("reason",)
    )
    cancelled: Counter[str] = counter(
        "ovserve_requests_cancelled_total",
        "Requests given up: client gone, asked for, timed out, server stopping.",
        by=("cause",),
        start=CANCEL_CAUSES,
    )
    refused: Counter[str] = counter(
        "ovserve_requests_refused_total",
        "Requests refused by the queue, at its deadline, or because memory was short.",
        by=("cause",),
        start=REFUSAL_CAUSES,
        plain=True,
    )
    # ModelReady and ModelMetadata calls that were answered, and those that failed.
    lookups: Counter[Call] = field(default_factory=Counter)
    lookup_failures: Counter[Call] = field(default_factory=Counter)
    versions: defaultdict[int, KindMetrics] = field(  # of a plain model
        default_factory=lambda: defaultdict(KindMetrics)
    )
    node_events: NodeEvents = field(default_factory=NodeEvents)
    wakes: Histogram = histogram(
        "ovserve_wake_seconds",
        "Seconds that loads on demand took; their number is `_count`.",
        OF_REQUESTS,
        plain=True,
    )
    unloads: Counter[str] = counter(
        "ovserve_unloads_total",
        "Times that the graph was unloaded until the next request: idle, or to make room for another one.",
        by=("cause",),
        start=UNLOAD_CAUSES,
        plain=True,
    )

    def __post_init__(self) -> None:
        for method in (REST.unary, REST.stream):  # so that a rate starts from zero
            call = Call(REST.api, REST.interface, method)
            for counts in (self.accepted, self.rejected, self.responses, self.errors):
                counts[call] = 0
            self.processing[method] = Histogram(MICROSECONDS)
        self.latencies[REST.stream] = Histogram(MICROSECONDS)

    @cached_property
    def of_batches(self) -> ModelMetrics:
        """The counters of lines of batches, whose times would say nothing of live requests."""
        return ModelMetrics()


class BatchMetrics:
    """Batches and their lines, which the metrics of live requests leave out."""

    def __init__(self) -> None:
        self.living: Counter[str] = Counter()  # by status, of all servers on the store
        self.oldest = 0.0  # when the oldest of them was created, Unix seconds; 0: there is none
        self.running = 0  # lines of this server
        self.lines: Counter[str] = Counter(completed=0, failed=0)


class Metrics:
    """Counters of the whole server. `enabled` names the metric families that are shown."""

    def __init__(self, enabled: frozenset[str] = frozenset()) -> None:
        self.enabled = enabled
        self.responses: Counter[int] = Counter()  # HTTP, by status
        self.batches = BatchMetrics()
        self._models: dict[str, ModelMetrics] = {}

    def of(self, name: str) -> ModelMetrics:
        """Return the counters of a servable; the same object for the lifetime of the server."""
        return self._models.setdefault(name, ModelMetrics())


class Outcome:
    """One answer, counted as begun once and as ended once, however often its end is reported."""

    __slots__ = ("_began", "_call", "_ended", "_model", "_unanswered")

    def __init__(self, model: ModelMetrics, front: Front, *, stream: bool) -> None:
        self._model = model
        self._call = Call(front.api, front.interface, front.stream if stream else front.unary)
        self._began = time.monotonic()
        self._ended = False
        self._unanswered = stream
        model.running += 1
        model.accepted[self._call] += 1

    def record_response(self) -> None:
        self._model.responses[self._call] += 1
        if self._unanswered:
            self._unanswered = False
            self._model.latencies[self._call.method].observe((time.monotonic() - self._began) * 1e6)

    def finished(self) -> None:
        if self._end():
            self._model.finished += 1
            self._model.processing[self._call.method].observe((time.monotonic() - self._began) * 1e6)

    def failed(self, error: OvserveError) -> None:
        if not self._end():
            return
        model = self._model
        if isinstance(error, Overloaded):
            model.rejected[self._call] += 1
            model.refused[error.cause] += 1
            return
        model.errors[self._call] += 1
        if isinstance(error, DeadlineExceeded):
            model.cancelled[TIMEOUT] += 1
        elif isinstance(error, Cancelled):
            model.cancelled[REQUEST] += 1
        else:
            model.failed[error.code or error.kind] += 1

    def close(self, error: BaseException | None) -> None:
        """Record that the answer is closed; if that is before its end, `error` is the reason."""
        if isinstance(error, OvserveError):
            self.failed(error)
        elif self._end():
            cause = str(error.args[0]) if isinstance(error, asyncio.CancelledError) and error.args else ""
            self._model.errors[self._call] += 1  # OVMS also counts a disconnected client as an error
            self._model.cancelled[cause if cause in CANCEL_CAUSES else DISCONNECT] += 1

    def _end(self) -> bool:
        first, self._ended = not self._ended, True
        if first:
            self._model.running -= 1
        return first
