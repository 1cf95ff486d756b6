"""The backend of a small model, over the real runtime; `write` makes the model."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15 as op

from benchmarks.small_kind.spec import AddOneSpec
from ovserve.engine.protocol.call_backend import Invocation, Result
from ovserve.engine.protocol.specs import Facts
from ovserve.errors import InvalidArgument

SHAPE = [1, 10]


@functools.cache
def core() -> ov.Core:
    """Return the one of this process: another would cost a quarter of a megabyte for each model."""
    return ov.Core()


class AddOne:
    def __init__(self, spec: AddOneSpec) -> None:
        model = core().compile_model(spec.model_path, spec.device, json.loads(spec.properties))
        self._request = model.create_infer_request()
        self.facts = Facts(engine=f"openvino {ov.__version__}")

    def call(self, invocation: Invocation) -> Iterator[Any]:
        values = np.frombuffer(invocation.blobs[0], np.float32)
        if values.size != np.prod(SHAPE):
            raise InvalidArgument(f"values: expected {np.prod(SHAPE)}, got {values.size}", param="values")
        [found] = self._request.infer([values.reshape(SHAPE)]).values()
        yield Result(None, (found.tobytes(),))


def write(path: Path, plus: float = 1.0) -> None:
    """Write the model."""
    x = op.parameter(SHAPE, np.float32, name="x")
    ov.save_model(ov.Model([op.add(x, op.constant(np.float32(plus)))], [x], "add"), path)
