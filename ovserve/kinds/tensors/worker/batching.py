"""Dynamic batching: calls that wait are joined along their first axis and run as one inference.

A batch is what waits when an infer request becomes free, so an idle model adds no delay. `delay` seconds make
the first of a batch wait for others. Calls are joined if their tensors differ in the first dimension only. A
batch that fails is run again call by call, so that a wrong request fails alone.

A model whose shapes change from one inference to the next is slow. For the classifier of graphs/ocr, batches
of 1 to 7 rows in turns took 1.12 ms of CPU time per row, batches of 4 alone 0.82 (2026-11-24, Intel Xeon). So
where `engine.py` can compile the model for some sizes, batches have 1, 2, 4, 8, ... rows.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
from numpy.typing import NDArray

from ovserve.engine.protocol.call_backend import Deliver, Invocation, Outcome, Result
from ovserve.errors import Internal, LoadError, OvserveError, Unavailable
from ovserve.kinds.tensors.spec import INFER, UNBOUNDED_SIZE, InferArguments, InferResult
from ovserve.kinds.tensors.worker.model import BF16, STRING, Port, numbers, result, shape_of

FIELD = "dynamic_batching"

# Runs one inference on an idle request, and passes the request to the function before it is idle again.
Run = Callable[[list[tuple[int, ov.Tensor]], Callable[[ov.InferRequest, float], None]], None]


class _Waiting(NamedTuple):
    invocation: Invocation
    arguments: InferArguments
    arrays: tuple[NDArray[Any], ...]
    rows: int
    alike: tuple[Any, ...]  # equal for calls that can be joined
    arrived: float


def check_ports(inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
    """Raises LoadError for a model whose tensors cannot be joined along the first axis."""
    for port in (*inputs, *outputs):
        info = port.info
        if port.element_type in (STRING, BF16):
            raise LoadError(f"{info.name!r} has elements of {info.datatype}", field=FIELD)
        if not info.dims or info.dims[0][1] != UNBOUNDED_SIZE:
            raise LoadError(f"{info.name!r} has no dynamic first dimension: {info.bounds}", field=FIELD)


class Batcher:
    """Joins calls of one model on `workers` threads. `alone` runs one call without others."""

    def __init__(
        self,
        inputs: Sequence[Port],
        run: Run,
        alone: Callable[[Invocation], Iterator[Result]],
        *,
        workers: int,
        most: int,
        delay: float,
        few_sizes: Callable[[], bool] = lambda: False,
    ) -> None:
        """`few_sizes`: whether batches should have a power of two of rows, or `most`."""
        self._inputs, self._run, self._alone = inputs, run, alone
        self._most, self._delay, self._few_sizes = most, delay, few_sizes
        self._waiting: deque[_Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._deliver: Deliver = lambda outcomes: None
        for number in range(workers):
            threading.Thread(target=self._work, name=f"batch{number}", daemon=True).start()

    def begin(self, invocation: Invocation, deliver: Deliver) -> bool:
        """Let the call wait for a batch; return False for one that has to run alone."""
        if invocation.method != INFER:
            return False
        arguments = invocation.arguments(InferArguments)
        rows = {tensor.shape[0] for tensor in arguments.inputs if tensor.shape}
        if len(rows) != 1 or any(tensor.form != "raw" for tensor in arguments.inputs):
            return False
        (count,) = rows
        if not 0 < count < self._most:
            return False
        arrays = tuple(
            numbers(self._inputs[tensor.input], tensor, blob)
            for tensor, blob in zip(arguments.inputs, invocation.blobs, strict=True)
        )
        alike = (arguments.outputs, *((tensor.input, tensor.shape[1:]) for tensor in arguments.inputs))
        self._deliver = deliver
        with self._changed:
            self._waiting.append(_Waiting(invocation, arguments, arrays, count, alike, time.monotonic()))
        return True

    def began(self) -> None:
        with self._changed:
            self._changed.notify()

    def close(self) -> None:
        """End the threads, which otherwise keep the model in memory."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        while batch := self._take():
            cancelled = [w for w in batch if w.invocation.cancelled]
            if cancelled:
                self._deliver([(w.invocation, Unavailable("the call was cancelled")) for w in cancelled])
                batch = [w for w in batch if not w.invocation.cancelled]
            if batch:
                self._infer(batch)
            del batch, cancelled  # they hold the tensors of requests

    def _take(self) -> list[_Waiting]:
        """Wait for a batch; return an empty one when the batcher is closed."""
        with self._changed:
            while not self._closed:
                if not self._waiting:
                    self._changed.wait()
                    continue
                batch = self._next()
                remaining = batch[0].arrived + self._delay - time.monotonic()
                rows = sum(w.rows for w in batch)
                if remaining <= 0 or rows == self._most:
                    if rows < self._most and self._few_sizes():
                        batch = _power_of_two(batch, rows)
                    batched = {id(w) for w in batch}
                    self._waiting = deque(w for w in self._waiting if id(w) not in batched)
                    if self._waiting:
                        self._changed.notify()
                    return batch
                self._changed.wait(remaining)
        return []

    def _next(self) -> list[_Waiting]:
        """Return the oldest call and those that fit to it, in their order."""
        batch, rows = [], 0
        for waiting in self._waiting:
            if waiting.alike == self._waiting[0].alike and rows + waiting.rows <= self._most:
                batch.append(waiting)
                rows += waiting.rows
        return batch

    def _infer(self, batch: list[_Waiting]) -> None:
        now = time.monotonic()

        def answer(request: ov.InferRequest, seconds: float) -> None:
            self._deliver(list(_split(batch, request, seconds, now)))

        try:
            joined = [np.concatenate(arrays) for arrays in zip(*(w.arrays for w in batch), strict=True)]
            tensors = zip(batch[0].arguments.inputs, joined, strict=True)
            self._run([(t.input, ov.Tensor(array, shared_memory=True)) for t, array in tensors], answer)
        except Exception:  # noqa: BLE001  whichever call it is, each gets its own result or error
            for waiting in batch:
                self._one(waiting.invocation)

    def _one(self, invocation: Invocation) -> None:
        items = self._alone(invocation)
        try:
            self._deliver([(invocation, next(items))])
        except OvserveError as error:
            self._deliver([(invocation, error)])
        except Exception as error:  # noqa: BLE001  the border of a thread
            self._deliver([(invocation, Internal(f"the inference failed: {error}"))])
        finally:
            items.close()  # type: ignore[attr-defined]  # a generator, which holds an infer request


def _power_of_two(batch: list[_Waiting], rows: int) -> list[_Waiting]:
    """Return the first calls with the largest power of two of rows; all calls if none sum up to one."""
    most, length, count = 1 << (rows.bit_length() - 1), 0, 0
    for number, waiting in enumerate(batch, 1):
        count += waiting.rows
        if count <= most and count.bit_count() == 1:
            length = number
    return batch[:length] or batch


def _split(
    batch: list[_Waiting], request: ov.InferRequest, seconds: float, began: float
) -> Iterator[tuple[Invocation, Outcome]]:
    """Yield the part of each call. Raises Internal for outputs that do not have a row for each one."""
    total = sum(w.rows for w in batch)
    outputs = [request.get_output_tensor(index) for index in batch[0].arguments.outputs]
    shaped = [shape_of(tensor) for tensor in outputs]
    for shape in shaped:
        if shape[0] != total:
            raise Internal(f"an output has {shape[0]} rows for {total}")
    blobs = [memoryview(result(tensor)) for tensor in outputs]
    ends = [0]
    for waiting in batch:
        ends.append(ends[-1] + waiting.rows)
    for waiting, (low, high) in zip(batch, pairwise(ends), strict=True):
        shapes = tuple((waiting.rows, *shape[1:]) for shape in shaped)
        parts = tuple(blob[blob.nbytes * low // total : blob.nbytes * high // total] for blob in blobs)
        waited = (began - waiting.arrived) * 1e6
        yield waiting.invocation, Result(InferResult(shapes, seconds * 1e6, waited), parts, last=True)
