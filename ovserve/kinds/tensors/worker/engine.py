"""The engine of a plain model: a pool of infer requests, one for each call that runs.

A failed inference breaks its compilation (`Compiled`). So the model is compiled anew after it, and calls that
ran meanwhile run again. Once that was so, shapes that have not been seen are tried on the model first, which
costs no compilation. Callbacks of asynchronous requests do not learn of failures, so each call waits on its
thread.

A model with dynamic inputs is also compiled for the shapes that most of its calls have. OpenVINO's CPU device
takes 0.83 to 0.98 of the CPU time for a model that is compiled for one shape: it plans memory once, and
infers no shapes (`python -m benchmarks.fixed_shapes`). Each is compiled on a thread of its own, and takes
over when it has answered a call like the model itself.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from operator import itemgetter
from typing import Any

import numpy as np
import openvino as ov

from ovserve.engine.protocol.call_backend import Invocation, Result
from ovserve.errors import Internal, InvalidArgument, LoadError, NotFound
from ovserve.kinds.tensors.spec import INFER, InferArguments, InferResult, TensorFacts, TensorSpec
from ovserve.kinds.tensors.worker.batching import FIELD as DYNAMIC_BATCHING
from ovserve.kinds.tensors.worker.batching import Batcher, check_ports
from ovserve.kinds.tensors.worker.model import Model, Port, input_tensor, result, shape_of, short

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
    return tuple(shape_of(tensor) for _, tensor in sorted(tensors, key=itemgetter(0)))


def _has_failed(request: ov.InferRequest) -> bool:
    """Return whether its last inference ended in an error; False while one runs."""
    try:
        request.wait_for(0)
    except RuntimeError:
        return True
    return False


FREQUENT_CALLS = 64  # calls with the same shapes. The models of graphs/ocr are compiled in 0.2 to 0.3 s
REPLACEMENT_FACTOR = 4  # times as many calls, each time that one takes the place of another or cannot be made
MAX_COUNTED_SHAPES = 32  # shapes
# Matrices and inputs in bytes, because each compilation has its own copies: 18 MB for the classifier of
# graphs/ocr, 39 MB for its detector. A batch of 8 pictures for the detector would take 132 MB.
CONSTANTS, INPUTS = 64 << 20, 4 << 20
# Of the largest value of an output: what is folded into constants may be rounded otherwise.
SAME = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}


@dataclass(eq=False, slots=True)
class _Variant:
    """A compilation, if it has been proven, and how often it was used since the last decision."""

    compiled: Compiled
    proven: bool = False
    uses: int = 0


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
        self._variants: dict[Shapes, _Variant] = {}
        self._making = False

    def find(self, tensors: Given, own: Compiled) -> Compiled | None:
        """Return the compilation for inputs of these shapes; None if there is none, or none yet.

        `own` is that of the model itself. The first call runs on both, which proves the other one.
        """
        if not self.open:
            return None
        shapes = shapes_of(tensors)
        variant = self._variants.get(shapes)
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
            self.open, self._variants = False, {}

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
            if len(self._variants) >= self._most:
                uses = {key: variant.uses for key, variant in self._variants.items()}
                instead = min(uses, key=uses.__getitem__)
                for variant in self._variants.values():
                    variant.uses = 0
                if uses[instead] >= count:
                    return
                self._often *= REPLACEMENT_FACTOR
            self._making = True
        name = f"fixed {_shapes_text(shapes)}"
        threading.Thread(target=self._make, args=(shapes, instead), name=name, daemon=True).start()

    def _make(self, shapes: Shapes, instead: Shapes | None) -> None:
        try:
            variant = _Variant(Compiled(self._model.compile(shapes), self._count, fixed=True))
        except (LoadError, RuntimeError) as error:
            print(f"not compiled for {_shapes_text(shapes)}: {error}")  # noqa: T201  stdout is this process's log
            with self._lock:  # one client's odd shapes are not the others' fault
                self._making, self._often = False, self._often * REPLACEMENT_FACTOR
            return
        with self._lock:
            self._making = False
            if not self.open:
                return
            others = {key: other for key, other in self._variants.items() if key != instead}
            self._variants = {**others, shapes: variant}

    def _prove(self, variant: _Variant, shapes: Shapes, tensors: Given, own: Compiled) -> bool:
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
    numbers, others = one.data.astype(np.float64), other.data.astype(np.float64)
    largest = np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0)
    limit = SAME.get(precision, SAME["f32"]) * largest
    return bool(np.allclose(others, numbers, rtol=0.0, atol=limit, equal_nan=True))


def _dynamic(model: Model) -> bool:
    """Return whether there is a dimension to fix, of inputs that are numbers of a known rank."""
    infos = [port.info for port in model.inputs]
    texts = any(info.datatype in ("BYTES", "BF16") for info in (*infos, *(p.info for p in model.outputs)))
    if texts or any(info.dims is None for info in infos):
        return False
    return any(low != high for info in infos for low, high in info.dims or ())


def _shapes_text(shapes: Sequence[Sequence[int]]) -> str:
    return ", ".join(f"[{','.join(map(str, shape))}]" for shape in shapes)


MOST_BATCH_SIZES = 4  # that have a compilation of their own
MOST_KNOWN_SHAPES = 1000
MOST_REPEATS = 3  # of a call whose compilation others broke; the last one runs alone


class TensorEngine:
    """A `CallBackend` with the method `infer`. Raises LoadError."""

    in_place = True

    def __init__(self, spec: TensorSpec) -> None:
        began = time.monotonic()
        self._model = model = Model(spec)
        if spec.max_batch_size:
            check_ports(model.inputs, model.outputs)
            if model.stateful:
                raise LoadError("a model with state cannot be batched", field=DYNAMIC_BATCHING)
        self._compiled = Compiled(model.compile(), spec.nireq)
        self._compiling = threading.Lock()
        self._distrustful = False  # an inference has failed
        self._known_shapes: set[Shapes] = set()  # that the model can have
        sizes = min(spec.max_batch_size.bit_length(), MOST_BATCH_SIZES) or 1
        self._fixed = FixedShapes(model, self._compiled.count, sizes) if spec.fixed_shapes else None
        self._batcher: Batcher | None = None
        if spec.max_batch_size:
            self._batcher = Batcher(
                model.inputs,
                self._run,
                self.call,
                workers=self._compiled.count,
                most=spec.max_batch_size,
                delay=spec.max_queue_delay,
                few_sizes=lambda: self._fixed is not None and self._fixed.open,
            )
            self.begin, self.began = self._batcher.begin, self._batcher.began
        self.facts = TensorFacts(
            engine=f"openvino {version('openvino')}",
            load_seconds=round(time.monotonic() - began, 3),
            max_calls=self._compiled.count * max(1, spec.max_batch_size),
            inputs=tuple(port.info for port in model.inputs),
            outputs=tuple(port.info for port in model.outputs),
            streams=self._compiled.streams,
            stateful=model.stateful,
            rt_info=dict(model.rt_info),
            framework=model.framework,
        )

    def call(self, invocation: Invocation) -> Iterator[Result]:
        if invocation.method != INFER:
            raise NotFound(f"a plain model has no method {invocation.method!r}")
        arguments = invocation.arguments(InferArguments)
        tensors = [
            (one.input, input_tensor(self._model.inputs[one.input], one, blob))
            for one, blob in zip(arguments.inputs, invocation.blobs, strict=True)
        ]
        wait = time.monotonic()
        compiled, request, seconds = self._infer(tensors)
        try:
            outputs = [request.get_output_tensor(i) for i in arguments.outputs]
            shapes = tuple(map(shape_of, outputs))
            waited = (wait - invocation.arrived) * 1e6
            yield Result(InferResult(shapes, seconds * 1e6, waited), tuple(map(result, outputs)), last=True)
        finally:
            if self._model.stateful:
                request.reset_state()  # else the next client would go on with this one's state
            compiled.idle.put(request)

    def close(self) -> None:
        if self._fixed is not None:
            self._fixed.drop()
        if self._batcher is not None:
            self._batcher.close()

    def _run(self, tensors: Given, then: Callable[[ov.InferRequest, float], None]) -> None:
        """Run one inference; `then` gets its request and the seconds, before the request is idle again."""
        compiled = self._fitting(tensors)
        request = compiled.idle.get()
        try:
            then(request, compiled.infer(request, tensors))
        except Broken:
            self._leave(compiled)
            raise
        finally:
            compiled.idle.put(request)

    def _infer(self, tensors: Given) -> tuple[Compiled, ov.InferRequest, float]:
        """Run one inference; return its request, which is the caller's to put back, and the seconds."""
        if self._distrustful:
            self._check_shapes(tensors)
        suspect = False  # it has failed itself, with shapes that go together
        for repeat in range(MOST_REPEATS + 1):
            alone = suspect or repeat == MOST_REPEATS
            compiled = self._compile(1) if alone else self._fitting(tensors)
            request = compiled.idle.get()
            try:
                seconds = compiled.infer(request, tensors)
                if not all(tensor.get_size() for _, tensor in tensors):
                    self._check_outputs(request, shapes_of(tensors))
                return compiled, request, seconds
            except Broken:
                compiled.idle.put(request)
                self._leave(compiled)
            except RuntimeError as error:
                compiled.idle.put(request)
                self._distrustful = True
                if alone:
                    raise _refused(error) from error
                # Right ones may fail behind the wrong ones of another call, which is noticed later.
                self._check_shapes(tensors)
                suspect = True
        raise AssertionError("a compilation of its own is not broken by others")

    def _check_shapes(self, tensors: Given) -> None:
        """Raises InvalidArgument for shapes that do not go together."""
        shapes = shapes_of(tensors)
        if shapes in self._known_shapes:
            return
        try:
            self._model.reshaped(shapes)
        except RuntimeError as error:
            raise _refused(error) from error
        if len(self._known_shapes) >= MOST_KNOWN_SHAPES:
            self._known_shapes.clear()
        self._known_shapes.add(shapes)

    def _check_outputs(self, request: ov.InferRequest, shapes: Shapes) -> None:
        """Raises RuntimeError for outputs in shapes that the model cannot have for these inputs.

        Without elements, the CPU plugin's tokenizers fail at the first inference of a stream. Later ones
        return a row for no text.
        """
        for at, port in enumerate(self._model.reshaped(shapes).outputs):
            shape = request.get_output_tensor(at).shape
            if not port.partial_shape.compatible(ov.PartialShape(shape)):
                raise RuntimeError(f"output {at} has the shape {shape} instead of {port.partial_shape}")

    def _fitting(self, tensors: Given) -> Compiled:
        """Return the compilation for tensors of these shapes."""
        with self._compiling:
            if self._compiled.failed:
                self._compiled = self._compile(self._compiled.count)
            own = self._compiled
        return (self._fixed.find(tensors, own) if self._fixed is not None else None) or own

    def _leave(self, compiled: Compiled) -> None:
        """Give one of fixed shapes up, which breaks where values decide about shapes within the model."""
        if compiled.fixed and self._fixed is not None:
            self._fixed.drop()

    def _compile(self, count: int) -> Compiled:
        try:
            return Compiled(self._model.compile(), count)
        except LoadError as error:
            raise Internal(f"the model cannot be compiled again: {error}") from error


def _refused(error: RuntimeError) -> InvalidArgument:
    """Return the error of a request whose tensors fit one by one, and not together."""
    return InvalidArgument.at("inputs", f"the model rejects them: {short(error)}")
