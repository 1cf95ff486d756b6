"""All metrics as Prometheus text.

The text format 0.0.4 is written here, because prometheus_client appends `_total` to the name of every
counter, and OVMS's have no suffix. The library's collector reports on the processes, this one and each
engine's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from prometheus_client import ProcessCollector

from ovserve.access import current_request
from ovserve.monitoring.families import (
    ENGINE_PROCESS,
    FAMILIES,
    HTTP_RESPONSES,
    PROCESS,
    RELOADS,
    WRONG_CONFIGURATION,
)
from ovserve.monitoring.family import Family, Model
from ovserve.serving.manager import Manager
from ovserve.serving.servable import Servable
from ovserve.serving.status import VersionState
from ovserve.telemetry.counters import Metrics
from ovserve.telemetry.histogram import Bounds, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RELOAD_RESULTS = ("changed", "unchanged", "failed", "invalid")  # see status.ReloadResult
ENGINE = "0"  # vLLM numbers the engines of a model; here there is one

Labels = Mapping[str, str]


def scrape(manager: Manager) -> bytes:
    metrics = manager.metrics
    models = list(_models(manager))
    lines: list[str] = []
    for family in FAMILIES:
        if family.name in metrics.enabled:
            lines += _family(family.name, family, models, lambda name: {"name": name})
        if family.vllm in metrics.enabled:
            lines += _family(family.vllm, family, models, lambda name: {"model_name": name, "engine": ENGINE})
    lines += _server(manager)
    lines += _processes(metrics, models)
    return ("\n".join(lines) + "\n").encode()


def _models(manager: Manager) -> Iterator[Model]:
    """Yield the models the caller may use: a key limited to some graphs does not see others."""
    versions: dict[str, list[Servable]] = {}
    for servable in manager.servables:
        versions.setdefault(servable.name, []).append(servable)
    may = current_request().caller.may_use
    newest = {status.name: status for status in manager.statuses() if status.state is not VersionState.END}
    for status in ({s.name: s for s in manager.statuses()} | newest).values():
        if not may(status.name):
            continue
        found = tuple(versions.get(status.name, ()))
        yield Model(status.name, manager.metrics.of(status.name), found[-1] if found else None, status, found)


def _family(
    name: str, family: Family, models: Iterable[Model], labels_of: Callable[[str], dict[str, str]]
) -> Iterator[str]:
    yield from _head(name, family.kind, family.help)
    for model in models:
        if model.plain and not family.plain:
            continue
        common = _inside(labels_of(model.name))
        for values, number in family.read(model):
            labels = values if isinstance(values, Mapping) else dict(zip(family.labels, values, strict=True))
            own = _inside(labels)
            inside = f"{common},{own}" if own else common
            if isinstance(number, Histogram):
                yield from _histogram(name, inside, number)
            else:
                yield f"{name}{{{inside}}} {number}"


def _server(manager: Manager) -> Iterator[str]:
    metrics = manager.metrics
    if HTTP_RESPONSES in metrics.enabled:
        yield from _head(
            HTTP_RESPONSES, "counter", "HTTP responses by status; 499 for a client that disconnected."
        )
        for status, count in sorted(metrics.responses.items()):
            yield _sample(HTTP_RESPONSES, {"status": str(status)}, count)
    if RELOADS in metrics.enabled:
        yield from _head(RELOADS, "counter", "Reloads of the configuration by result.")
        for result in sorted({*RELOAD_RESULTS, *manager.reloads}):
            yield _sample(RELOADS, {"result": result}, manager.reloads[result])
    if WRONG_CONFIGURATION in metrics.enabled:
        text = "1 while the configuration last read is invalid and the previous one stays active."
        yield from _head(WRONG_CONFIGURATION, "gauge", text)
        yield _sample(WRONG_CONFIGURATION, {}, int(bool(manager.fault)))


def _processes(metrics: Metrics, models: Iterable[Model]) -> Iterator[str]:
    """Yield memory, CPU time and descriptors; nothing where there is no /proc."""
    if PROCESS in metrics.enabled:
        for family in ProcessCollector(registry=None).collect():
            yield from _head(family.samples[0].name, family.type, family.documentation)
            yield from (_sample(s.name, s.labels, s.value) for s in family.samples)
    if ENGINE_PROCESS not in metrics.enabled:
        return
    found: dict[str, list[str]] = {}
    for labels, pid in _engine_processes(models):
        for family in ProcessCollector("ovserve_engine", partial(int, pid), registry=None).collect():
            name = family.samples[0].name
            lines = found.setdefault(name, [*_head(name, family.type, family.documentation)])
            lines += [_sample(name, s.labels | labels, s.value) for s in family.samples]
    for lines in found.values():
        yield from lines


def _engine_processes(models: Iterable[Model]) -> Iterator[tuple[dict[str, str], int]]:
    """Yield the processes: one of a model by the model's name, a shared one once, by its own."""
    shared: dict[str, int] = {}
    for model in models:
        for engine in model.servable.engines.values() if model.servable else ():
            if engine.shared_process:
                shared[engine.shared_process] = engine.pid
            else:
                yield {"name": model.name}, engine.pid
    yield from (({"process": name}, pid) for name, pid in sorted(shared.items()))


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _histogram(name: str, inside: str, histogram: Histogram) -> Iterator[str]:
    """Yield the lines of one; a hundred models have 27,000 of them, and the event loop waits."""
    cumulated = histogram.cumulated()
    bucket = f'{name}_bucket{{{inside},le="'
    for bound, count in zip(_bounds(histogram.bounds), cumulated, strict=True):
        yield f'{bucket}{bound}"}} {count}'
    yield f"{name}_sum{{{inside}}} {histogram.sum}"
    yield f"{name}_count{{{inside}}} {cumulated[-1]}"


@functools.cache
def _bounds(bounds: Bounds) -> tuple[str, ...]:
    return (*(f"{bound:g}" if bound < 1e6 else f"{bound:.0f}" for bound in bounds), "+Inf")


def _sample(name: str, labels: Labels, value: float) -> str:
    inside = _inside(labels)
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def _inside(labels: Labels) -> str:
    return ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
