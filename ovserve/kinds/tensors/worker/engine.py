"""The engine of a plain model: a pool of infer requests, one for each call that runs.

A failed inference breaks its compilation (`Compiled`). So the model is compiled anew after it, and calls that
ran meanwhile run again. Once that was so, shapes that have not been seen are tried on the model first, which
costs no compilation. Callbacks of asynchronous requests do not learn of failures, so each call waits on its
thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version

import openvino as ov

from ovserve.engine.protocol.call_backend import Invocation, Result
from ovserve.errors import Internal, InvalidArgument, LoadError, NotFound
from ovserve.kinds.tensors.spec import INFER, InferArguments, InferResult, TensorFacts, TensorSpec
from ovserve.kinds.tensors.worker.batching import FIELD as DYNAMIC_BATCHING
from ovserve.kinds.tensors.worker.batching import Batcher, check_ports
from ovserve.kinds.tensors.worker.compiled import Broken, Compiled, Given, Shapes, shapes_of
from ovserve.kinds.tensors.worker.fixed_shapes import FixedShapes
from ovserve.kinds.tensors.worker.model import Model
from ovserve.kinds.tensors.worker.values import input_tensor, result, shape_of

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
                return compiled, request, compiled.infer(request, tensors)
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
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = " ".join(line for line in lines if not line.startswith(("Exception from", "Check '")))
    return InvalidArgument(f"inputs: the model rejects them: {reason[:600]}", param="inputs")
