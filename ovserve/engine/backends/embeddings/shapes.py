"""Compiled models of one shape each, on one thread, for clients that send one short text after the other.

For 16 tokens MiniLM takes 1.25 ms on two threads and 1.2 to 1.3 on one, if its shape is fixed (2026-11-23,
Intel Xeon with AMX, two cores). So the second thread buys little: it costs as much CPU time again, takes the
core that the server needs, and the two wait for each other whenever another process runs.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov

from ovserve.engine.backends.embeddings.model import Output, matrix_bytes
from ovserve.engine.backends.embeddings.tokens import Row

TOKENS = 16  # lengths are multiples of it, which cost as much as any length between
LONGEST = 32  # tokens; from 48 on two threads take a third less time
MEMORY = 96 << 20  # bytes of matrices as float32: each model has its own copy of them
# Looks for one size in a row. A model takes 0.2 s to compile. Among texts of other sizes it was a tenth
# slower than one over all cores: each has its own copy of the matrices, and the caches do not hold two.
OFTEN = 32
SAME = 1e-5  # of the largest value: an answer must not depend on the model that has made it
# Of two streams, the one that is called takes 1.5 to 1.8 ms after the process has slept.
STREAM = {"NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": 1}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class FixedShape:
    """A compiled model for a row of up to `tokens`, with its inputs in place. For one thread at a time."""

    def __init__(self, model: ov.Model, properties: Mapping[str, Any], tokens: int) -> None:
        """Raises RuntimeError for a model that cannot have this shape."""
        self.tokens = tokens
        self.proven = False
        fixed = model.clone()
        fixed.reshape({port: [1, tokens] for port in fixed.inputs})
        compiled = ov.Core().compile_model(fixed, "CPU", {**properties, **STREAM})
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
        made: Output = self._request.get_output_tensor(0).data.astype(np.float32)
        return made

    def prove(self, row: Row, pad: int, types: Sequence[int], known: Output) -> bool:
        """Return whether it answers like the model that has made `known`.

        The library may compute what it folds into constants otherwise: MPNet differed by 1e-4.
        """
        made = self.infer(row, pad, types)
        self.proven = bool(np.abs(made - known).max() <= SAME * np.abs(known).max())
        return self.proven


class Shapes:
    """The model of the shape that has come often of late. Not thread-safe: `runner.py` holds its lock."""

    def __init__(self, model: ov.Model, properties: Mapping[str, Any]) -> None:
        """`properties` are those of the device."""
        known = all(any(n in i.get_names() for n in INPUTS) for i in model.inputs)
        self._open = known and not model.get_sinks() and matrix_bytes(model) <= MEMORY
        self._model, self._properties = model, properties
        self._made: FixedShape | None = None
        self._making = False
        self._size = self._looks = 0  # tokens, and how often they were looked for in a row

    def find(self, tokens: int) -> FixedShape | None:
        """Return the model for a lone row of so many tokens; None if it should have none, or has none yet."""
        size = -(-tokens // TOKENS) * TOKENS
        if size != self._size:
            self._size, self._looks = size, 0
        self._looks += 1
        if not self._open or size > LONGEST or self._looks < OFTEN:
            return None
        if self._made is not None and self._made.tokens == size:
            return self._made
        if not self._making:
            self._making = True
            threading.Thread(target=self._make, args=(size,), name=f"shape {size}", daemon=True).start()
        return None

    def close(self) -> None:
        """Have no model from now on."""
        self._open = False
        self._made = None

    def _make(self, size: int) -> None:
        try:
            made = FixedShape(self._model, self._properties, size)
        except RuntimeError as error:
            print(f"no model for {size} tokens alone: {error}")  # noqa: T201  stdout is this process's log
            self.close()
            return
        if self._open:
            self._made = made
        self._making = False
