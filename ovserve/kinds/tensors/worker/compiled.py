"""One compilation of a plain model with its idle infer requests, and one inference on it."""

from __future__ import annotations

import queue
import time
from operator import itemgetter
from typing import Any

import openvino as ov

Given = list[tuple[int, ov.Tensor]]  # tensors, by the index of their input
Shapes = tuple[tuple[int, ...], ...]  # of the inputs, in their order


class Broken(RuntimeError):
    """An inference has failed on this compilation, so that a result of another may be wrong."""


class Compiled:
    """One compilation of a model, and its idle infer requests.

    It is used until an inference fails. On CPU, with OpenVINO 2026.4.1, a stream that was given shapes which
    do not go together computes the shapes that it had before wrongly: without AVX-512 a product of matrices
    is then other memory of the process, with no error. Other operators reject right shapes.
    """

    def __init__(self, compiled: Any, count: int = 0, *, fixed: bool = False) -> None:
        """`count` infer requests; 0: as many as the device recommends. `fixed`: for calls of one shape."""
        self.fixed = fixed
        try:
            self.count = count or int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        except RuntimeError:  # not every device has it
            self.count = 1
        try:
            self.streams = int(compiled.get_property("NUM_STREAMS"))
        except (RuntimeError, ValueError, TypeError):
            self.streams = 1
        try:
            self.precision = str(compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())
        except (RuntimeError, AttributeError):
            self.precision = "f32"
        self.failed = False  # an inference has
        self._requests = [compiled.create_infer_request() for _ in range(self.count)]
        self.idle: queue.SimpleQueue[ov.InferRequest] = queue.SimpleQueue()
        for request in self._requests:
            self.idle.put(request)

    def infer(self, request: ov.InferRequest, tensors: Given) -> float:
        """Run one inference; return the seconds. Raises RuntimeError, or Broken if it may not be to blame."""
        if self.failed:
            raise Broken
        for index, tensor in tensors:
            request.set_input_tensor(index, tensor)
        began = time.monotonic()
        request.start_async()  # `infer` would also copy every output into a dictionary
        try:
            request.wait()
        except RuntimeError as error:
            broken, self.failed = self.failed or self.fixed, True
            if broken:
                raise Broken from error
            raise
        seconds = time.monotonic() - began
        # A request that failed on the same stream before may not have been noticed by its thread.
        if self.failed or any(map(_has_failed, self._requests)):
            self.failed = True
            raise Broken
        return seconds


def shapes_of(tensors: Given) -> Shapes:
    return tuple(tensor.data.shape for _, tensor in sorted(tensors, key=itemgetter(0)))


def _has_failed(request: ov.InferRequest) -> bool:
    """Return whether its last inference ended in an error; False while one runs."""
    try:
        request.wait_for(0)
    except RuntimeError:
        return True
    return False
