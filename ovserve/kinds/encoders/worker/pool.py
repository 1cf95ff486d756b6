"""The pool of rows that wait for an inference, of all requests, and which of them make the next batch.

On a CPU the time of a batch follows its padded tokens, so what is batched matters more than how much. One by
one is 1.0, 32 in order of arrival 0.49, sorted by length with about 512 padded tokens 1.41 (texts of 76
tokens in the median). A batch begins with the longest row of the request whose turn it is, and takes rows
that are nearly as long from any request. Turns go round, so a request of 10,000 texts delays one of a single
text by a batch or two.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ovserve.engine.protocol.call_backend import Invocation, Outcome
from ovserve.kinds.encoders.worker.model import Row

BATCH_TOKENS = 512  # padded tokens of a batch
MIN_LENGTH_RATIO = 0.85  # the shortest row of a batch, as a part of the longest
SLACK_TOKENS = 12  # or so many tokens shorter, where an inference costs more than the padding


Then = Callable[["Job"], tuple[Invocation, Outcome]]


class Job:
    """The rows of one request. `done` is set when `results` has all of them, or `error` says why not.

    `types`: where the second text of each row begins, for pairs. `then`: called by the runner when it has
    ended, with others that ended in the same batch. `arrived`: by `time.monotonic()`; None: now.
    """

    def __init__(
        self,
        rows: Sequence[Row],
        types: Sequence[int] = (),
        then: Then | None = None,
        arrived: float | None = None,
    ) -> None:
        self.rows, self.types, self.then = rows, types, then
        self.waiting = sorted((len(row), i) for i, row in enumerate(rows))
        self.left = len(rows)
        self.results: NDArray[np.float32] | None = None  # [rows, width]
        self.error: Exception | None = None
        self.done = threading.Event()
        self.arrived = time.monotonic() if arrived is None else arrived
        self.started = 0.0

    def finish(self, indexes: Sequence[int], values: NDArray[np.float32]) -> None:
        if self.results is None:
            self.results = np.empty((len(self.rows), values.shape[1]), np.float32)
        self.results[indexes] = values
        self.left -= len(indexes)
        if not self.left:
            self.done.set()

    def fail(self, error: Exception) -> None:
        self.waiting = []
        self.error = self.error or error
        self.done.set()


class Place(NamedTuple):
    """One row of a batch."""

    job: Job
    at: int  # its number in the job

    @property
    def row(self) -> Row:
        return self.job.rows[self.at]


class Pool:
    """The rows that wait. Not thread-safe: `runner.py` holds its lock."""

    def __init__(self, budget: int = BATCH_TOKENS) -> None:
        self._budget = budget
        self._jobs: deque[Job] = deque()  # those with rows that wait, in the order of their turns
        self.rows = 0
        self.tokens = 0  # of the rows

    @property
    def jobs(self) -> int:
        """Return the number of jobs that have waiting rows."""
        return len(self._jobs)

    @property
    def oldest(self) -> float:
        """Return when the first of them arrived."""
        return min(job.arrived for job in self._jobs)

    def add(self, job: Job) -> None:
        self._jobs.append(job)
        self._count(job.waiting, 1)

    def _count(self, waiting: Sequence[tuple[int, int]], sign: int) -> None:
        self.rows += sign * len(waiting)
        self.tokens += sign * sum(length for length, _ in waiting)

    def remove(self, job: Job) -> None:
        """Remove the rows of a job that still wait."""
        if job in self._jobs:
            self._jobs.remove(job)
            self._count(job.waiting, -1)
        job.waiting = []

    def take(self, most: int = BATCH_TOKENS) -> list[Place]:
        """Return the rows of the next batch, up to `most`; empty if none wait."""
        if not self._jobs:
            return []
        first = self._jobs[0]
        longest = first.waiting[-1][0]
        room = max(1, min(self._budget // max(1, longest), most))
        shortest = min(int(longest * MIN_LENGTH_RATIO), longest - SLACK_TOKENS)
        places: list[Place] = []
        for job in tuple(self._jobs):
            places += _take(job, shortest, longest, room - len(places))
            if len(places) == room:
                break
        self.rows -= len(places)
        self.tokens -= sum(len(place.row) for place in places)
        self._jobs.rotate(-1)
        self._jobs = deque(job for job in self._jobs if job.waiting)
        now = time.monotonic()
        for place in places:
            place.job.started = place.job.started or now
        return places


def _take(job: Job, shortest: int, longest: int, room: int) -> list[Place]:
    """Take up to `room` rows of these lengths out of a job, the longest first."""
    end = bisect_right(job.waiting, (longest, len(job.rows)))
    begin = max(bisect_right(job.waiting, (shortest - 1, len(job.rows))), end - room)
    slice_of_job = job.waiting[begin:end]
    del job.waiting[begin:end]
    return [Place(job, index) for _, index in slice_of_job]
