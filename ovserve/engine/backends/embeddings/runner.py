"""The threads that run inferences: one per stream, each with an inference request of its own.

Two compiled models share the weights on disk. One has a stream per core and does most under load, because
its threads never wait for each other. The other has one stream over all cores; it runs alone, for one
client.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import openvino as ov

from ovserve.engine.backends.calls import Deliver
from ovserve.engine.backends.embeddings.model import OWN_STREAMS, Compiled, usable_cores, weight_bytes
from ovserve.engine.backends.embeddings.pool import BUDGET, Job, Place, Pool
from ovserve.engine.protocol.encoders import BatchCounts
from ovserve.errors import Internal

LARGE = 512 << 20  # bytes of weights; beyond, one compiled model over all cores: each has its own copy
LINGER = 0.0015  # seconds after the last request that has arrived
LONGEST_LINGER = 0.006  # seconds after the first
# Requests at a time from which on the model over all cores does not run. With two, the second would wait for
# the first, and threads that wait for each other spin: 170 texts a second where one client gets 190.
ALONE = 1.5
FALL = 0.97  # of the maximum, per request
REPORTED = 4096  # batches that are kept until a report takes them


class Runner:
    """Runs the rows of jobs. `run` returns when the rows of one job are done, from any thread."""

    def __init__(self, model: ov.Model, device: str, properties: Mapping[str, Any], pad: int) -> None:
        """Raises LoadError when the device does not take the model or its properties."""
        self.deliver: Deliver = lambda outcomes: None  # takes what the `then` of jobs returns
        self._pad = pad
        cores = usable_cores()
        self._alone: Compiled | None = None
        if device != "CPU" or any(name in properties for name in OWN_STREAMS):
            self._streams = Compiled(model, device, properties)
        elif weight_bytes(model) > LARGE:
            self._streams = Compiled(model, device, {"PERFORMANCE_HINT": "LATENCY", **properties}, 1)
        else:
            self._streams = Compiled(model, device, {"NUM_STREAMS": cores, **properties}, cores)
            if cores > 1:
                self._alone = Compiled(model, device, {"PERFORMANCE_HINT": "LATENCY", **properties}, 1)
        self._pool = Pool()
        self._changed = threading.Condition()
        self._closed = False
        self._running = 0
        self._running_jobs = 0  # requests in the batches that run
        self._newest = 0.0  # when the last request arrived
        self._present = 0.0  # requests that wait or run, as a slowly falling maximum
        self._exclusive = False  # the model over all cores runs
        self._padded: deque[int] = deque(maxlen=REPORTED)
        self._tokens = 0
        self._waited: deque[float] = deque(maxlen=REPORTED)
        for number in range(len(self._streams.requests)):
            threading.Thread(target=self._work, args=(number,), name=f"stream{number}", daemon=True).start()

    def submit(self, *jobs: Job) -> None:
        with self._changed:
            for job in jobs:
                if not job.rows:
                    job.done.set()
                    continue
                idle = not self._pool.jobs and not self._running_jobs
                self._pool.add(job)
                # One client whose long texts are run without a wait would else stay on one core for long.
                falling = (self._present + 1) / 2 if idle else self._present * FALL
                self._present = max(falling, self._pool.jobs + self._running_jobs)
            self._newest = time.monotonic()
            self._changed.notify()

    def withdraw(self, job: Job) -> None:
        """Drop the rows of a job that have not begun."""
        with self._changed:
            self._pool.remove(job)

    def counts(self) -> BatchCounts:
        """Return what has run since the last call."""
        with self._changed:
            made = BatchCounts(list(self._padded), self._tokens, list(self._waited))
            self._padded.clear()
            self._waited.clear()
            self._tokens = 0
        return made

    def close(self) -> None:
        """End the threads, which otherwise keep the model in memory. Rows that wait are not run."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self, number: int) -> None:
        while (taken := self._next()) is not None:
            batch, alone = taken
            error: Exception | None = None
            try:
                self._infer(number, batch, alone)
            except Exception as caught:  # noqa: BLE001  the border of a stream: it fails the jobs of its batch
                error = caught
            self._ended(batch, alone, error)
            jobs = {id(place.job): place.job for place in batch}.values()
            if outcomes := [job.then(job) for job in jobs if job.then is not None and job.done.is_set()]:
                self.deliver(outcomes)
            del batch, jobs, outcomes  # they hold the rows and vectors of requests

    def _next(self) -> tuple[list[Place], bool] | None:
        """Wait for a batch; return None when the runner is closed."""
        with self._changed:
            while True:
                if self._closed:
                    return None
                if not self._exclusive and self._pool.rows:
                    if (seconds := self._worth_waiting()) > 0:
                        self._changed.wait(seconds)
                        continue
                    idle = len(self._streams.requests) - self._running
                    batch, alone = self._pick(idle)
                    self._running += 1
                    self._running_jobs += len({id(place.job) for place in batch})
                    self._exclusive = alone
                    if self._pool.rows and not alone:
                        self._changed.notify()
                    return batch, alone
                self._changed.wait()

    def _worth_waiting(self) -> float:
        """Return the seconds to wait for more rows, because more requests than these were here a moment ago.

        Clients whose answers have just gone out send their next requests within a millisecond or two. The
        server needs a core for that, and passes them on one after the other. A stream that takes the first of
        them at once runs batches of one, at twice the cost of batches of four.
        """
        pool = self._pool
        if pool.tokens * 2 > BUDGET:
            return 0.0
        idle = len(self._streams.requests) - self._running
        expected = (self._present - self._running_jobs) / idle
        if pool.jobs + 0.5 >= expected:
            return 0.0
        left = min(self._newest + LINGER, pool.oldest + LONGEST_LINGER) - time.monotonic()
        if left <= 0:  # in vain, so that a client which is left alone waits a few times only
            self._present = (self._present + pool.jobs + self._running_jobs) / 2
        return left

    def _pick(self, idle: int) -> tuple[list[Place], bool]:
        """Return a batch, and whether it runs alone over all cores."""
        if self._running or self._alone is None:
            return self._pool.take(idle), False
        if self._pool.rows == 1 and self._present < ALONE:
            return self._pool.take(), True
        return self._pool.take(idle), False

    def _infer(self, number: int, batch: Sequence[Place], alone: bool) -> None:
        rows = [place.row for place in batch]
        types = [place.job.types[place.at] for place in batch if place.job.types]
        model, request = (self._alone, 0) if alone else (self._streams, number)
        assert model is not None, "only a runner that has it picks it"
        results = model.infer(request, rows, self._pad, types)
        at = 0
        with self._changed:
            self._padded.append(len(rows) * max(map(len, rows)))
            self._tokens += sum(map(len, rows))
            for job, places in groupby(batch, key=itemgetter(0)):
                indexes = [place.at for place in places]
                if job.left == len(job.rows):
                    self._waited.append(job.started - job.arrived)
                job.finish(indexes, results[at : at + len(indexes)])
                at += len(indexes)

    def _ended(self, batch: Sequence[Place], alone: bool, error: Exception | None) -> None:
        with self._changed:
            self._running -= 1
            self._running_jobs -= len({id(place.job) for place in batch})
            if alone:
                self._exclusive = False
            if error is not None:
                for job in {id(place.job): place.job for place in batch}.values():
                    self._pool.remove(job)
                    job.fail(Internal(f"the inference failed: {error}"))
            if self._pool.rows:
                self._changed.notify()


__all__ = ["BUDGET", "Runner"]
