"""All metrics as Prometheus text.

The text format 0.0.4 is written here, because prometheus_client appends `_total` to the name of every
counter, and OVMS's have no suffix. The library's collector reports on the processes, this one and each
engine's.

An endpoint picker scrapes twenty times a second, and most histograms have not changed since: their lines are
kept. A page of one model takes 0.3 ms of CPU, and 0.9 ms without (AMD EPYC, 2026-11-23; `measure_scrape` in
tests/http/test_metrics_port.py).
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from prometheus_client import ProcessCollector

from ovserve.api.openai.batches import LIVING as BATCH_STATES
from ovserve.services.monitoring.families import (
    BATCH_LINES,
    BATCH_LINES_RUNNING,
    BATCHES,
    ENGINE_PROCESS,
    FAMILIES,
    HTTP_RESPONSES,
    OLDEST_BATCH,
    PROCESS,
    RELOADS,
    WRONG_CONFIGURATION,
    Model,
)
from ovserve.serving.manager import Manager
from ovserve.serving.servable import Servable
from ovserve.serving.status import VersionState
from ovserve.telemetry.metrics import Bounds, Family, Histogram, Metrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RELOAD_RESULTS = ("changed", "unchanged", "failed", "invalid")  # see status.ReloadResult
PROCESS_SECONDS = 1.0
SAMPLES_PER_TURN = 200  # written without a turn for others; a histogram is one
ENGINE = "0"  # vLLM numbers the engines of a model; here there is one

Labels = Mapping[str, str]


class Scraper:
    """Writes the page. It keeps the lines of histograms, and for PROCESS_SECONDS those of processes."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._histograms: dict[str, dict[tuple[str, str], _Kept]] = {}  # by model
        self._processes: dict[tuple[tuple[str, int], ...], tuple[float, list[str]]] = {}

    async def scrape(self) -> bytes:
        """Return the page. Requests have their turns meanwhile: of 500 models it takes half a second."""
        metrics, models = self._manager.metrics, list(_models(self._manager))
        lines: list[str] = []
        turn = SAMPLES_PER_TURN
        for family in FAMILIES:
            forms = (family.name, "name", ""), (family.vllm, "model_name", f',engine="{ENGINE}"')
            for name, label, more in forms:
                if name not in metrics.enabled:
                    continue
                lines += _head(name, family.kind, family.help)
                for model in models:
                    if family.plain or not model.plain:
                        lines += self._samples(name, family, model, f'{label}="{_escaped(model.name)}"{more}')
                    if len(lines) > turn:  # not within a model, whose counters would change
                        turn = len(lines) + SAMPLES_PER_TURN
                        await asyncio.sleep(0)
        lines += _server(self._manager)
        lines += self._of_processes(metrics, models)
        self._forget()
        return ("\n".join(lines) + "\n").encode()

    def _samples(self, name: str, family: Family[Model], model: Model, common: str) -> Iterator[str]:
        for values, number in family.read(model):
            labels = values if isinstance(values, Mapping) else dict(zip(family.labels, values, strict=True))
            inside = f"{common},{_inside(labels)}" if labels else common
            if isinstance(number, Histogram):
                yield self._histogram(model.name, name, inside, number)
            else:
                yield f"{name}{{{inside}}} {number}"

    def _histogram(self, model: str, name: str, inside: str, histogram: Histogram) -> str:
        cached = self._histograms.setdefault(model, {})
        entry, count = cached.get((name, inside)), histogram.count
        if entry is None or entry.of is not histogram:
            cached[name, inside] = entry = _Kept(histogram, _heads(name, inside, histogram.bounds))
        if entry.count != count:
            entry.count = count
            numbers = (*histogram.cumulated(), histogram.sum, count)
            entry.text = "\n".join(
                [f"{head} {number}" for head, number in zip(entry.heads, numbers, strict=True)]
            )
        return entry.text

    def _of_processes(self, metrics: Metrics, models: Iterable[Model]) -> list[str]:
        """Return the lines of processes, which are read in /proc once a second: that takes 0.3 ms."""
        engines = tuple((_inside(labels), pid) for labels, pid in _engine_processes(models))
        now = time.monotonic()
        read_at, lines = self._processes.get(engines, (0.0, []))
        if now - read_at >= PROCESS_SECONDS:
            lines = list(_processes(metrics, models))
            self._processes = {engines: (now, lines)}
        return lines

    def _forget(self) -> None:
        """Drop what was kept of models that are gone."""
        names = {status.name for status in self._manager.statuses()}
        for name in self._histograms.keys() - names:
            del self._histograms[name]


class _Kept:
    """The lines of a histogram at one count, and their text before the numbers."""

    __slots__ = ("count", "heads", "of", "text")

    def __init__(self, histogram: Histogram, heads: tuple[str, ...]) -> None:
        self.of = histogram
        self.heads = heads
        self.count = -1
        self.text = ""


def _models(manager: Manager) -> Iterator[Model]:
    """Yield the models that the caller may use."""
    versions: dict[str, list[Servable]] = {}
    for servable in manager.servables:
        versions.setdefault(servable.name, []).append(servable)
    statuses = manager.usable_statuses
    newest = {status.name: status for status in statuses if status.state is not VersionState.END}
    for status in ({s.name: s for s in statuses} | newest).values():
        of_name = tuple(versions.get(status.name, ()))
        yield Model(
            status.name, manager.metrics.of(status.name), of_name[-1] if of_name else None, status, of_name
        )


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
    yield from _batches(metrics)


def _batches(metrics: Metrics) -> Iterator[str]:
    batches = metrics.batches
    if BATCHES in metrics.enabled:
        yield from _head(
            BATCHES, "gauge", "Batches that have not ended, by status, of all servers of a store."
        )
        for status in BATCH_STATES:
            yield _sample(BATCHES, {"status": status}, batches.living[status])
    if OLDEST_BATCH in metrics.enabled:
        yield from _head(OLDEST_BATCH, "gauge", "Age of the oldest batch that has not ended; 0 without one.")
        yield _sample(OLDEST_BATCH, {}, max(0.0, time.time() - batches.oldest) if batches.oldest else 0)
    if BATCH_LINES_RUNNING in metrics.enabled:
        yield from _head(BATCH_LINES_RUNNING, "gauge", "Lines of batches that run or wait for an engine.")
        yield _sample(BATCH_LINES_RUNNING, {}, batches.running)
    if BATCH_LINES in metrics.enabled:
        yield from _head(BATCH_LINES, "counter", "Lines of batches with a result, by outcome.")
        for outcome, count in sorted(batches.lines.items()):
            yield _sample(BATCH_LINES, {"outcome": outcome}, count)


def _processes(metrics: Metrics, models: Iterable[Model]) -> Iterator[str]:
    """Yield memory, CPU time and descriptors; nothing where there is no /proc."""
    if PROCESS in metrics.enabled:
        for family in ProcessCollector(registry=None).collect():
            yield from _head(family.samples[0].name, family.type, family.documentation)
            yield from (_sample(s.name, s.labels, s.value) for s in family.samples)
    if ENGINE_PROCESS not in metrics.enabled:
        return
    families: dict[str, list[str]] = {}
    for labels, pid in _engine_processes(models):
        for family in ProcessCollector("ovserve_engine", partial(int, pid), registry=None).collect():
            name = family.samples[0].name
            lines = families.setdefault(name, [*_head(name, family.type, family.documentation)])
            lines += [_sample(name, s.labels | labels, s.value) for s in family.samples]
    for lines in families.values():
        yield from lines


def _engine_processes(models: Iterable[Model]) -> Iterator[tuple[dict[str, str], int]]:
    """Yield the processes: one of a model by the model's name, a shared one once, by its own."""
    shared: dict[str, int] = {}
    for model in models:
        for engine in model.engines:
            if engine.shared_process:
                shared[engine.shared_process] = engine.pid
            else:
                yield {"name": model.name}, engine.pid
    yield from (({"process": name}, pid) for name, pid in sorted(shared.items()))


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _heads(name: str, inside: str, bounds: Bounds) -> tuple[str, ...]:
    """Return all of a histogram's lines without their numbers."""
    buckets = (f'{name}_bucket{{{inside},le="{bound}"}}' for bound in _bounds(bounds))
    return (*buckets, f"{name}_sum{{{inside}}}", f"{name}_count{{{inside}}}")


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
