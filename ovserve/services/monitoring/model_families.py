"""OVMS's metrics of plain models, with its names, labels and buckets: one sample for each version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from ovserve.kinds.tensors.metrics import TensorMetrics
from ovserve.services.monitoring.model import Model
from ovserve.telemetry.counters import Call
from ovserve.telemetry.family import Family, Sample
from ovserve.telemetry.histogram import Histogram

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


CALL = ("api", "interface", "method")

MODEL_FAMILIES: tuple[Family[Model], ...] = (
    Family(
        "ovms_requests_success",
        "counter",
        "ModelReady and ModelMetadata calls that were answered, and inferences of plain models.",
        calls(lambda m: m.metrics.lookups, "success"),
        CALL,
        plain=True,
    ),
    Family(
        "ovms_requests_fail",
        "counter",
        "ModelReady and ModelMetadata calls that were not, and inferences of plain models.",
        calls(lambda m: m.metrics.lookup_failures, "fail"),
        CALL,
        plain=True,
    ),
    Family(
        "ovms_current_requests",
        "gauge",
        "Requests to a plain model under way.",
        _each(lambda m: m.current),
        ("version",),
        plain=True,
    ),
    Family(
        "ovms_request_time_us",
        "histogram",
        "Microseconds from a request to a plain model to its answer, for those that succeed.",
        _request_times,
        ("interface", "version"),
        plain=True,
    ),
    Family(
        "ovms_inference_time_us",
        "histogram",
        "Microseconds of an inference in the engine.",
        _each(lambda m: m.inference_us),
        ("version",),
        plain=True,
    ),
    Family(
        "ovms_wait_for_infer_req_time_us",
        "histogram",
        "Microseconds between the arrival of a call in the engine and its inference.",
        _each(lambda m: m.wait_us),
        ("version",),
        plain=True,
    ),
    Family(
        "ovms_streams",
        "gauge",
        "Inferences that the device runs at a time.",
        _facts("streams"),
        ("version",),
        plain=True,
    ),
    Family(
        "ovms_infer_req_queue_size", "gauge", "Infer requests.", _facts("max_calls"), ("version",), plain=True
    ),
    Family(
        "ovms_infer_req_active",
        "gauge",
        "Inferences that run or wait in the engine.",
        _each(lambda m: m.active),
        ("version",),
        plain=True,
    ),
)
