"""More compilations of a model with dynamic inputs, for the shapes that most of its calls have.

OpenVINO's CPU device takes 0.83 to 0.98 of the CPU time for a model that is compiled for one shape: it plans
memory once, and infers no shapes (`python -m benchmarks.fixed_shapes`). Each is compiled on a thread of its
own, and takes over when it has answered a call like the model itself.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import openvino as ov

from ovserve.errors import LoadError
from ovserve.kinds.tensors.worker.compiled import Compiled, Given, Shapes, shapes_of
from ovserve.kinds.tensors.worker.model import Model
from ovserve.kinds.tensors.worker.ports import Port

FREQUENT_CALLS = 64  # calls with the same shapes. The models of graphs/ocr are compiled in 0.2 to 0.3 s
REPLACEMENT_FACTOR = 4  # times as many calls, each time that one takes the place of another or cannot be made
MAX_COUNTED_SHAPES = 32  # shapes
# Matrices and inputs in bytes, because each compilation has its own copies: 18 MB for the classifier of
# graphs/ocr, 39 MB for its detector. A batch of 8 pictures for the detector would take 132 MB.
CONSTANTS, INPUTS = 64 << 20, 4 << 20
# Of the largest value of an output: what is folded into constants may be rounded otherwise.
SAME = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}


class _Made:
    """A compilation, if it has been proven, and how often it was used since the last decision."""

    __slots__ = ("compiled", "proven", "uses")

    def __init__(self, compiled: Compiled) -> None:
        self.compiled, self.proven, self.uses = compiled, False, 0


class FixedShapes:
    """Finds the compilation for a call, and makes up to `most` of them. Thread-safe."""

    def __init__(self, model: Model, count: int, most: int = 1) -> None:
        """`count`: infer requests of each compilation."""
        self._model, self._count, self._most = model, count, most
        self._lock = threading.Lock()
        self.open = model.device == "CPU" and not model.stateful and _dynamic(model)
        self.open = self.open and model.constant_bytes() <= CONSTANTS
        self._calls: dict[Shapes, int] = {}  # that found none
        self._often = FREQUENT_CALLS
        self._made: dict[Shapes, _Made] = {}
        self._making = False

    def find(self, tensors: Given, own: Compiled) -> Compiled | None:
        """Return the compilation for inputs of these shapes; None if there is none, or none yet.

        `own` is that of the model itself. The first call runs on both, which proves the other one.
        """
        if not self.open:
            return None
        shapes = shapes_of(tensors)
        variant = self._made.get(shapes)
        if variant is None:
            self._count_call(tensors, shapes)
            return None
        variant.uses += 1
        if not variant.proven and not self._prove(variant, shapes, tensors, own):
            return None
        return variant.compiled

    def drop(self) -> None:
        """Have no such compilations from now on; also called when the model is closed."""
        with self._lock:
            self.open, self._made = False, {}

    def _count_call(self, tensors: Given, shapes: Shapes) -> None:
        with self._lock:
            calls = self._calls
            calls[shapes] = calls.get(shapes, 0) + 1
            if len(calls) > MAX_COUNTED_SHAPES:  # all lose one, so that shapes that come no more make room
                calls = self._calls = {key: n - 1 for key, n in calls.items() if n > 1}
            if calls.get(shapes, 0) < self._often or self._making or not self.open:
                return
            count = calls.pop(shapes)
            size = sum(tensor.get_byte_size() for _, tensor in tensors)
            if size > INPUTS or not all(map(all, shapes)):  # nor for tensors without elements
                return
            instead = None
            if len(self._made) >= self._most:
                uses = {key: variant.uses for key, variant in self._made.items()}
                instead = min(uses, key=uses.__getitem__)
                for variant in self._made.values():
                    variant.uses = 0
                if uses[instead] >= count:
                    return
                self._often *= REPLACEMENT_FACTOR
            self._making = True
        name = f"fixed {_shapes_text(shapes)}"
        threading.Thread(target=self._make, args=(shapes, instead), name=name, daemon=True).start()

    def _make(self, shapes: Shapes, instead: Shapes | None) -> None:
        try:
            variant = _Made(Compiled(self._model.compile(shapes), self._count, fixed=True))
        except (LoadError, RuntimeError) as error:
            print(f"not compiled for {_shapes_text(shapes)}: {error}")  # noqa: T201  stdout is this process's log
            with self._lock:  # one client's odd shapes are not the others' fault
                self._making, self._often = False, self._often * REPLACEMENT_FACTOR
            return
        with self._lock:
            self._making = False
            if not self.open:
                return
            others = {key: other for key, other in self._made.items() if key != instead}
            self._made = {**others, shapes: variant}

    def _prove(self, variant: _Made, shapes: Shapes, tensors: Given, own: Compiled) -> bool:
        """Run both once, and return whether the new one answers like the other; else drop it."""
        mine, other = own.idle.get(), variant.compiled.idle.get()
        try:
            try:
                own.infer(mine, tensors)
            except RuntimeError:
                return False  # the call's fault; the caller reports it
            try:
                variant.compiled.infer(other, tensors)
                variant.proven = all(
                    alike(port, mine.get_output_tensor(i), other.get_output_tensor(i), own.precision)
                    for i, port in enumerate(self._model.outputs)
                )
            except RuntimeError:
                variant.proven = False
        finally:
            own.idle.put(mine)
            variant.compiled.idle.put(other)
        if not variant.proven:
            print(f"compiled for {_shapes_text(shapes)}, the model answers otherwise: not used")  # noqa: T201
            self.drop()
        return variant.proven


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


def _shapes_text(shapes: Sequence[Sequence[int]]) -> str:
    return ", ".join(f"[{','.join(map(str, shape))}]" for shape in shapes)
