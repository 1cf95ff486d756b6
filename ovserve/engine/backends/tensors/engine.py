"""The engine of a plain model: a pool of infer requests, one for each call that runs.

A failed inference may leave the library's state broken: on CPU, with OpenVINO 2026.4.1, a dynamic model that
was given shapes which do not go together rejects right ones afterwards, on every infer request of its
stream. So a call that fails on a model on which another has failed before is tried again on one that was
compiled anew. Callbacks of asynchronous requests do not learn of failures, so each call waits on its thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version

import openvino as ov

from ovserve.engine.backends.calls import Invocation, Result
from ovserve.engine.backends.tensors.batching import FIELD as DYNAMIC_BATCHING
from ovserve.engine.backends.tensors.batching import Batcher, check_ports
from ovserve.engine.backends.tensors.compiled import Compiled, Given, infer
from ovserve.engine.backends.tensors.fixed_shapes import FixedShapes
from ovserve.engine.backends.tensors.model import Model
from ovserve.engine.backends.tensors.values import given, result, shape_of
from ovserve.engine.protocol.tensors import INFER, InferArguments, InferResult, TensorFacts, TensorSpec
from ovserve.errors import InvalidArgument, LoadError, NotFound

MOST_BATCH_SIZES = 4  # that have a compilation of their own


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
        asked = invocation.arguments(InferArguments)
        tensors = [
            (one.input, given(self._model.inputs[one.input], one, blob))
            for one, blob in zip(asked.inputs, invocation.blobs, strict=True)
        ]
        wait = time.monotonic()
        compiled = self._fitting(tensors)
        request = compiled.idle.get()
        try:
            try:
                seconds = infer(request, tensors)
            except RuntimeError as error:
                if not self._may_be_broken(compiled):
                    raise _refused(error) from error
                compiled.idle.put(request)
                compiled = self._fresh(compiled)
                request = compiled.idle.get()
                seconds = _again(compiled, request, tensors)
            outputs = [request.get_output_tensor(i) for i in asked.outputs]
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
            then(request, infer(request, tensors))
        except RuntimeError:
            self._may_be_broken(compiled)
            raise
        finally:
            compiled.idle.put(request)

    def _fitting(self, tensors: Given) -> Compiled:
        """Return the compilation for tensors of these shapes."""
        own = self._compiled
        return (self._fixed.find(tensors, own) if self._fixed is not None else None) or own

    def _may_be_broken(self, compiled: Compiled) -> bool:
        """Note that an inference has failed; return whether the compilation may be to blame.

        One of fixed shapes may break too, where values decide about shapes within the model. It is given up.
        """
        failed_before, compiled.failed = compiled.failed, True
        if compiled.fixed and self._fixed is not None:
            self._fixed.drop()
        return failed_before or compiled.fixed

    def _fresh(self, after: Compiled) -> Compiled:
        """Return a compilation that is not `after`, and on which no inference has failed."""
        with self._compiling:
            if self._compiled is after or self._compiled.failed:
                try:
                    self._compiled = Compiled(self._model.compile(), after.count)
                except LoadError as error:
                    raise RuntimeError(f"the model cannot be compiled again: {error}") from error
            return self._compiled


def _again(compiled: Compiled, request: ov.InferRequest, tensors: Given) -> float:
    try:
        return infer(request, tensors)
    except RuntimeError as error:
        compiled.failed = True
        raise _refused(error) from error


def _refused(error: RuntimeError) -> InvalidArgument:
    """Return the error of a request whose tensors fit one by one, and not together."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(line for line in lines if not line.startswith("Exception from"))
    return InvalidArgument(f"inputs: the model rejects them: {said[:600]}", param="inputs")
