"""Compiled models of one shape each, for clients that send one short text after the other.

Whether a second core pays depends on the processor. With AMX it hardly makes 16 tokens of MiniLM faster,
costs as much CPU time again, and takes the core that the server needs. Without AMX it halves the time. So the
first model of a shape is for one core, and is measured against all cores. Where it is slower, a model for all
cores replaces it. `python -m benchmarks.encoder_forms` measures both, docs/performance.md has its numbers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov

from ovserve.kinds.encoders.worker.model import Output, matrix_bytes
from ovserve.kinds.encoders.worker.tokens import Row

LENGTH_MULTIPLE = 16  # lengths are multiples of it, which cost as much as any length between
MAX_SINGLE_CORE_TOKENS = 32  # tokens; with more, all cores were faster even with AMX
MEMORY = 96 << 20  # bytes of matrices as float32: each model has its own copy of them
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
        self._open = has_inputs and not model.get_sinks() and matrix_bytes(model) <= MEMORY
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
