"""A second compilation of a model with dynamic inputs, for the shapes that most of its calls have.

OpenVINO's CPU device takes 0.83 to 0.98 of the CPU time for a model that is compiled for one shape: it plans
memory once, and infers no shapes (`python -m benchmarks.fixed_shapes`). The compilation runs on a thread of
its own, and takes over when it has answered a call like the model itself.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import openvino as ov

from ovserve.engine.backends.tensors.compiled import Compiled, Given, infer
from ovserve.engine.backends.tensors.model import Model
from ovserve.engine.backends.tensors.ports import Port
from ovserve.errors import LoadError

Shapes = tuple[tuple[int, ...], ...]  # of the inputs, in their order

# Calls of the same shapes, less those of others. The models of graphs/ocr are compiled in 0.2 to 0.3 s.
OFTEN = 64
REPLACED = 4  # times as many calls, each time that other shapes take over
# Matrices and inputs in bytes, because the second compilation has its own copies: 31 MB for the classifier of
# graphs/ocr, 47 MB for its detector. A batch of 8 pictures for the detector would take 232 MB.
CONSTANTS, INPUTS = 64 << 20, 4 << 20
# Of the largest value of an output: what is folded into constants may be rounded otherwise.
SAME = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}


class FixedShapes:
    """Finds the compilation for a call. Thread-safe."""

    def __init__(self, model: Model, count: int) -> None:
        """`count`: infer requests of each compilation."""
        self._model, self._count = model, count
        self._lock = threading.Lock()
        self._open = model.device == "CPU" and not model.stateful and _dynamic(model)
        self._open = self._open and model.constant_bytes() <= CONSTANTS
        self._shapes: Shapes = ()  # which may become the compiled ones
        self._lead = 0  # their calls, less those of others
        self._often = OFTEN
        self._made: tuple[Shapes, Compiled] | None = None
        self._proven = self._making = False

    def find(self, tensors: Given, own: Compiled) -> Compiled | None:
        """Return the compilation for inputs of these shapes; None if there is none, or none yet.

        `own` is that of the model itself. The first call runs on both, which proves the other one.
        """
        if not self._open:
            return None
        shapes = tuple(tensor.data.shape for _, tensor in sorted(tensors, key=itemgetter(0)))
        made = self._made
        if made is None or made[0] != shapes:
            self._count_call(tensors, shapes)
            return None
        if not self._proven:
            return self._prove(made, tensors, own)
        return made[1]

    def drop(self) -> None:
        """Have no such compilation from now on; also called when the model is closed."""
        with self._lock:
            self._open, self._made = False, None

    def _count_call(self, tensors: Given, shapes: Shapes) -> None:
        with self._lock:
            if shapes != self._shapes:
                self._lead -= 1
                if self._lead > 0:
                    return
                self._shapes, self._lead = shapes, 0
            self._lead += 1
            if self._lead < self._often or self._making or not self._open:
                return
            self._lead = 0
            if sum(tensor.get_byte_size() for _, tensor in tensors) > INPUTS:
                return
            self._making = True
            self._often *= REPLACED
        threading.Thread(target=self._make, args=(shapes,), name=f"fixed {shapes}", daemon=True).start()

    def _make(self, shapes: Shapes) -> None:
        try:
            made = Compiled(self._model.compile(shapes), self._count)
        except (LoadError, RuntimeError) as error:
            print(f"not compiled for {_shown(shapes)}: {error}")  # noqa: T201  stdout is this process's log
            self.drop()
            return
        with self._lock:
            self._proven, self._making = False, False
            self._made = (shapes, made) if self._open else None

    def _prove(self, made: tuple[Shapes, Compiled], tensors: Given, own: Compiled) -> Compiled | None:
        """Run both once, and return the new one if it answers like the other; else it is dropped."""
        mine, other = own.idle.get(), made[1].idle.get()
        precision = own.precision
        try:
            try:
                infer(mine, tensors)
            except RuntimeError:
                return None  # the call's fault; the caller reports it
            try:
                infer(other, tensors)
                same = all(
                    alike(port, mine.get_output_tensor(i), other.get_output_tensor(i), precision)
                    for i, port in enumerate(self._model.outputs)
                )
            except RuntimeError:
                same = False
        finally:
            own.idle.put(mine)
            made[1].idle.put(other)
        if not same:
            print(f"compiled for {_shown(made[0])}, the model answers otherwise: not used")  # noqa: T201
            self.drop()
            return None
        with self._lock:
            self._proven = self._made is made
        return made[1]


def alike(port: Port, one: ov.Tensor, other: ov.Tensor, precision: str) -> bool:
    """Return whether two outputs have one shape, and the same values but for rounding."""
    if list(one.shape) != list(other.shape):
        return False
    if not port.element_type.is_real():
        return bool(np.array_equal(one.data, other.data))
    if not one.get_size():
        return True
    left, right = one.data.astype(np.float64), other.data.astype(np.float64)
    finite = np.isfinite(left)
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
        return False
    if not finite.any():
        return True
    most = np.abs(left[finite]).max()
    return bool(np.abs(left[finite] - right[finite]).max() <= SAME.get(precision, SAME["f32"]) * most)


def _dynamic(model: Model) -> bool:
    """Return whether there is a dimension to fix, of inputs that are numbers of a known rank."""
    infos = [port.info for port in model.inputs]
    texts = any(info.datatype in ("BYTES", "BF16") for info in (*infos, *(p.info for p in model.outputs)))
    if texts or any(info.dims is None for info in infos):
        return False
    return any(low != high for info in infos for low, high in info.dims or ())


def _shown(shapes: Sequence[Sequence[int]]) -> str:
    return ", ".join(f"[{','.join(map(str, shape))}]" for shape in shapes)
