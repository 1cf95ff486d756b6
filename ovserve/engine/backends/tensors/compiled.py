"""One compilation of a plain model with its idle infer requests, and one inference on it."""

from __future__ import annotations

import queue
import time
from typing import Any

import openvino as ov

Given = list[tuple[int, ov.Tensor]]  # tensors, by the index of their input


class Compiled:
    """One compilation of a model, and its idle infer requests."""

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
        self.idle: queue.SimpleQueue[ov.InferRequest] = queue.SimpleQueue()
        for _ in range(self.count):
            self.idle.put(compiled.create_infer_request())


def infer(request: ov.InferRequest, tensors: Given) -> float:
    """Run one inference; return the seconds. Raises RuntimeError."""
    for index, tensor in tensors:
        request.set_input_tensor(index, tensor)
    began = time.monotonic()
    request.start_async()  # `infer` would also copy every output into a dictionary
    request.wait()
    return time.monotonic() - began
