"""The threads that run inferences: one per stream, each with an inference request of its own.

Two compiled models share the weights on disk. One has a stream per core and does most under load, because
its threads never wait for each other. The other has one stream over all cores; it runs alone, for one
client. Short texts of one client get a model of their own shape instead (`ShapeModels`).

Whether a second core pays depends on the processor. With AMX it hardly makes 16 tokens of MiniLM faster,
costs as much CPU time again, and takes the core that the server needs. Without AMX it halves the time. So the
first model of a shape is for one core, and is measured against all cores. Where it is slower, a model for all
cores replaces it. `python -m benchmarks.encoder_forms` measures both, docs/performance.md has its numbers.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import openvino as ov

from ovserve.engine.protocol.call_backend import Deliver
from ovserve.errors import Internal
from ovserve.kinds.encoders.spec import BatchCounts
from ovserve.kinds.encoders.worker.model import (
    OWN_STREAMS,
    Compiled,
    Output,
    Row,
    matrix_bytes,
    usable_cores,
    weight_bytes,
)
from ovserve.kinds.encoders.worker.pool import BATCH_TOKENS, Job, Place, Pool

LENGTH_MULTIPLE = 16  # lengths are multiples of it, which cost as much as any length between
MAX_SINGLE_CORE_TOKENS = 32  # tokens; with more, all cores were faster even with AMX
MATRIX_MEMORY = 96 << 20  # bytes of matrices as float32: each model has its own copy of them
# Looks for one size in a row, because a model takes long to compile. Among texts of other sizes it was slower
# than the one over all cores: each has its own copy of the matrices, and the caches do not hold two.
FREQUENT_CALLS = 32
EQUAL_TOLERANCE = 1e-5  # of the largest value: an answer must not depend on the model that has made it
# One stream: of two, the one that is called was slower after the process had slept.
ONE_CORE = {"NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": 1}
ALL_CORES = {"PERFORMANCE_HINT": "LATENCY"}
MAX_SLOWDOWN = 1.2  # times as long on one core as on all: up to here, half the CPU time is worth it
TIMED_INFERENCES = 3  # inferences by each; the fastest counts, because other processes can only slow one down
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class FixedShape:
    """A compiled model for a row of up to `tokens`, with its inputs in place. For one thread at a time."""

    def __init__(
        self, model: ov.Model, properties: Mapping[str, Any], tokens: int, *, one_core: bool = True
    ) -> None:
        """Raises RuntimeError for a model that cannot have this shape."""
        self.tokens, self.one_core = tokens, one_core
        self.proven = False
        fixed = model.clone()
        fixed.reshape({port: [1, tokens] for port in fixed.inputs})
        threads = ONE_CORE if one_core else ALL_CORES
        compiled = ov.Core().compile_model(fixed, "CPU", {**properties, **threads})
        self._request = compiled.create_infer_request()
        self._arrays = {
            next(n for n in INPUTS if n in i.get_names()): np.zeros(
                (1, tokens), i.get_element_type().to_dtype()
            )
            for i in compiled.inputs
        }
        for name, array in self._arrays.items():
            self._request.set_tensor(name, ov.Tensor(array, shared_memory=True))

    def infer(self, row: Row, pad: int, types: Sequence[int] = ()) -> Output:
        """Return [1, width]. `types`: where the second text begins, if there are two."""
        size = len(row)
        ids, mask = self._arrays["input_ids"][0], self._arrays["attention_mask"][0]
        ids[:size], ids[size:] = row, pad
        mask[:size], mask[size:] = 1, 0
        if (second := self._arrays.get("token_type_ids")) is not None:
            second[0] = 0
            if types:
                second[0, types[0] : size] = 1
        self._request.infer()
        output: Output = self._request.get_output_tensor(0).data.astype(np.float32)
        return output

    def agrees(self, output: Output, expected: Output) -> bool:
        """Return whether it answers like the model that has computed `expected`.

        The library may compute what it folds into constants otherwise: MPNet differed by 1e-4.
        """
        return bool(np.abs(output - expected).max() <= EQUAL_TOLERANCE * np.abs(expected).max())


class Shapes:
    """The model of the shape that has come often of late. Not thread-safe: `runner.py` holds its lock."""

    def __init__(self, model: ov.Model, properties: Mapping[str, Any]) -> None:
        """`properties` are those of the device."""
        has_inputs = all(any(n in i.get_names() for n in INPUTS) for i in model.inputs)
        self._open = has_inputs and not model.get_sinks() and matrix_bytes(model) <= MATRIX_MEMORY
        self._model, self._properties = model, properties
        self._made: FixedShape | None = None
        self._making = False
        self._size = self._looks = 0  # tokens, and how often they were looked for in a row
        self._one_core: dict[int, bool] = {}  # by tokens: whether one core is fast enough

    def find(self, tokens: int) -> FixedShape | None:
        """Return the model for a lone row of so many tokens; None if it should have none, or has none yet."""
        size = -(-tokens // LENGTH_MULTIPLE) * LENGTH_MULTIPLE
        if size != self._size:
            self._size, self._looks = size, 0
        self._looks += 1
        if not self._open or size > MAX_SINGLE_CORE_TOKENS or self._looks < FREQUENT_CALLS:
            return None
        if self._made is not None and self._made.tokens == size:
            return self._made
        if not self._making:
            self._making = True
            threading.Thread(target=self._make, args=(size,), name=f"shape {size}", daemon=True).start()
        return None

    def prove(self, shape: FixedShape, here: Callable[[], Output], there: Callable[[], Output]) -> Output:
        """Return what `there` makes, on all cores; use `shape` from now on if it makes the same `here`.

        No other inference may run.
        """
        expected, all_cores = _fastest(there)
        output, seconds = _fastest(here)
        if not shape.agrees(output, expected):
            self.close()
        elif shape.one_core and seconds > MAX_SLOWDOWN * all_cores:
            self._one_core[shape.tokens] = False
            self._made = None
        else:
            shape.proven = True
        return expected

    def close(self) -> None:
        """Have no model from now on."""
        self._open = False
        self._made = None

    def _make(self, size: int) -> None:
        one_core = self._one_core.get(size, True)
        try:
            shape = FixedShape(self._model, self._properties, size, one_core=one_core)
        except RuntimeError as error:
            print(f"no model for {size} tokens alone: {error}")  # noqa: T201  stdout is this process's log
            self.close()
            return
        if self._open:
            self._made = shape
        self._making = False


def _fastest(infer: Callable[[], Output]) -> tuple[Output, float]:
    """Return what it makes, and the seconds of the fastest of several inferences."""
    seconds = []
    for _ in range(TIMED_INFERENCES):
        began = time.perf_counter()
        output = infer()
        seconds.append(time.perf_counter() - began)
    return output, min(seconds)


LARGE_WEIGHTS = 512 << 20  # bytes; beyond, one compiled model over all cores: each has its own copy
LINGER_SECONDS = 0.0015  # seconds after the last request that has arrived
LONGEST_LINGER = 0.006  # seconds after the first
# Requests at a time from which on the model over all cores does not run. With two, the second would wait for
# the first, and threads that wait for each other spin: 170 texts a second where one client gets 190.
MAX_REQUESTS_ALONE = 1.5
AT_ONCE = 0.00015  # seconds; the next request of one client takes at least twice as long
PEAK_DECAY = 0.97  # of the maximum, per request
MAX_REPORTED_BATCHES = 4096  # batches that are kept until a report takes them


class Batch(NamedTuple):
    """The rows of one inference. `alone`: no other runs; by the model over all cores, or by `fixed`."""

    places: list[Place]
    alone: bool
    fixed: FixedShape | None


class Runner:
    """Runs the rows of jobs. `run` returns when the rows of one job are done, from any thread."""

    def __init__(self, model: ov.Model, device: str, properties: Mapping[str, Any], pad: int) -> None:
        """Raises LoadError when the device does not take the model or its properties."""
        self.deliver: Deliver = lambda outcomes: None  # takes what the `then` of jobs returns
        self._pad = pad
        cores = usable_cores()
        self._alone: Compiled | None = None
        self._shapes: Shapes | None = None
        if device != "CPU" or any(name in properties for name in OWN_STREAMS):
            self._streams = Compiled(model, device, properties)
        elif weight_bytes(model) > LARGE_WEIGHTS:
            self._streams = Compiled(model, device, {"PERFORMANCE_HINT": "LATENCY", **properties}, 1)
        else:
            self._streams = Compiled(model, device, {"NUM_STREAMS": cores, **properties}, cores)
            if cores > 1:
                self._alone = Compiled(model, device, {"PERFORMANCE_HINT": "LATENCY", **properties}, 1)
                self._shapes = Shapes(model, properties)
        self._pool = Pool()
        self._changed = threading.Condition()
        self._closed = False
        self._running = 0
        self._running_jobs = 0  # requests in the batches that run
        self._newest = 0.0  # when the last request arrived
        self._present = 0.0  # requests that wait or run, as a slowly falling maximum
        self._free_since = 0.0  # the caller of `run`
        self._exclusive = False  # the model over all cores runs
        self._padded: deque[int] = deque(maxlen=MAX_REPORTED_BATCHES)
        self._tokens = 0
        self._waited: deque[float] = deque(maxlen=MAX_REPORTED_BATCHES)
        for number in range(len(self._streams.requests)):
            threading.Thread(target=self._work, args=(number,), name=f"stream{number}", daemon=True).start()

    def submit(self, *jobs: Job) -> None:
        with self._changed:
            self._add(jobs)
            self._changed.notify()

    def run(self, *jobs: Job) -> None:
        """Like `submit`; but a lone short row is run here: a switch of threads costs a tenth of it.

        Meanwhile no other request is read. One that has waited for that is of another client.
        """
        with self._changed:
            self._add(jobs)
            if jobs and jobs[0].arrived - self._free_since < AT_ONCE:
                self._present = max(self._present, 2.0)
            short = self._short()
            if short is None or not short.proven:
                self._changed.notify()
                return
            batch = self._begin(self._pool.take(), fixed=short, alone=True)
        self._run(len(self._streams.requests), batch)
        self._free_since = time.monotonic()

    def _add(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            if not job.rows:
                job.done.set()
                continue
            idle = not self._pool.jobs and not self._running_jobs
            self._pool.add(job)
            # One client whose long texts are run without a wait would else stay on one core for long.
            falling = (self._present + 1) / 2 if idle else self._present * PEAK_DECAY
            self._present = max(falling, self._pool.jobs + self._running_jobs)
        self._newest = time.monotonic()

    def withdraw(self, job: Job) -> None:
        """Drop the rows of a job that have not begun."""
        with self._changed:
            self._pool.remove(job)

    def counts(self) -> BatchCounts:
        """Return what has run since the last call."""
        with self._changed:
            counts = BatchCounts(list(self._padded), self._tokens, list(self._waited))
            self._padded.clear()
            self._waited.clear()
            self._tokens = 0
        return counts

    def close(self) -> None:
        """End the threads, which otherwise keep the model in memory. Rows that wait are not run."""
        with self._changed:
            self._closed = True
            if self._shapes is not None:
                self._shapes.close()
            self._changed.notify_all()

    def _work(self, number: int) -> None:
        while (batch := self._next()) is not None:
            self._run(number, batch)
            del batch  # it holds the rows and vectors of requests

    def _run(self, number: int, batch: Batch) -> None:
        error: Exception | None = None
        try:
            self._infer(number, batch)
        except Exception as caught:  # noqa: BLE001  the border of a stream: it fails the jobs of its batch
            error = caught
        self._ended(batch, error)
        jobs = {id(place.job): place.job for place in batch.places}.values()
        if outcomes := [job.then(job) for job in jobs if job.then is not None and job.done.is_set()]:
            self.deliver(outcomes)

    def _next(self) -> Batch | None:
        """Wait for a batch; return None when the runner is closed."""
        with self._changed:
            while True:
                if self._closed:
                    return None
                if not self._exclusive and self._pool.rows:
                    if (seconds := self._worth_waiting()) > 0:
                        self._changed.wait(seconds)
                        continue
                    batch = self._pick()
                    if self._pool.rows and not batch.alone:
                        self._changed.notify()
                    return batch
                self._changed.wait()

    def _worth_waiting(self) -> float:
        """Return the seconds to wait for more rows, because more requests than these were here a moment ago.

        Clients whose answers have just gone out send their next requests within a millisecond or two. The
        server needs a core for that, and passes them on one after the other. A stream that takes the first of
        them at once runs batches of one, at twice the cost of batches of four.
        """
        pool = self._pool
        if pool.tokens * 2 > BATCH_TOKENS:
            return 0.0
        if pool.jobs + 0.5 >= self._expected():
            return 0.0
        remaining = min(self._newest + LINGER_SECONDS, pool.oldest + LONGEST_LINGER) - time.monotonic()
        if remaining <= 0:  # in vain, so that a client which is left alone waits a few times only
            self._present = (self._present + pool.jobs + self._running_jobs) / 2
        return remaining

    def _expected(self) -> float:
        """Return how many requests each idle stream gets, if those that were here a moment ago come again."""
        return (self._present - self._running_jobs) / self._idle()

    def _share(self) -> int:
        """Return the rows that a stream takes.

        If both streams are idle and half of the requests have come, it takes all of those. Two batches of
        half of them would cost more, and the other stream gets the rest."""
        pool = self._pool
        of_expected = round(self._expected() * pool.rows / pool.jobs)
        return max(-(-pool.rows // self._idle()), of_expected)

    def _idle(self) -> int:
        return max(1, len(self._streams.requests) - self._running)

    def _is_lone(self) -> bool:
        """Return whether one client sends one row after the other."""
        return not self._running and self._pool.rows == 1 and self._present < MAX_REQUESTS_ALONE

    def _short(self) -> FixedShape | None:
        """Return the model for the one row that waits, if one thread is best for it."""
        if self._shapes is None or not self._is_lone():
            return None
        return self._shapes.find(self._pool.tokens)

    def _pick(self) -> Batch:
        if self._alone is not None and self._is_lone():
            fixed = self._short()
            return self._begin(self._pool.take(), fixed=fixed, alone=True)
        return self._begin(self._pool.take(self._share()))

    def _begin(self, places: list[Place], *, fixed: FixedShape | None = None, alone: bool = False) -> Batch:
        self._running += 1
        self._running_jobs += len({id(place.job) for place in places})
        self._exclusive = alone
        return Batch(places, alone, fixed)

    def _results(self, number: int, batch: Batch, rows: Sequence[Row]) -> Output:
        types = [place.job.types[place.at] for place in batch.places if place.job.types]
        fixed = batch.fixed
        if fixed is not None and fixed.proven:
            return fixed.infer(rows[0], self._pad, types)
        model, request = (self._alone, 0) if batch.alone else (self._streams, number)
        assert model is not None, "only a runner that has it picks it"
        infer = partial(model.infer, request, rows, self._pad, types)
        if fixed is None:
            return infer()
        assert self._shapes is not None, "it has made it"
        return self._shapes.prove(fixed, partial(fixed.infer, rows[0], self._pad, types), infer)

    def _infer(self, number: int, batch: Batch) -> None:
        places = batch.places
        rows = [place.row for place in places]
        results = self._results(number, batch, rows)
        at = 0
        with self._changed:
            self._padded.append(batch.fixed.tokens if batch.fixed else len(rows) * max(map(len, rows)))
            self._tokens += sum(map(len, rows))
            for job, group in groupby(places, key=itemgetter(0)):
                indexes = [place.at for place in group]
                if job.left == len(job.rows):
                    self._waited.append(job.started - job.arrived)
                job.finish(indexes, results[at : at + len(indexes)])
                at += len(indexes)

    def _ended(self, batch: Batch, error: Exception | None) -> None:
        with self._changed:
            self._running -= 1
            self._running_jobs -= len({id(place.job) for place in batch.places})
            if batch.alone:
                self._exclusive = False
            if error is not None:
                for job in {id(place.job): place.job for place in batch.places}.values():
                    self._pool.remove(job)
                    job.fail(Internal(f"the inference failed: {error}"))
            if self._pool.rows:
                self._changed.notify()


__all__ = ["BATCH_TOKENS", "Runner"]
