"""KServe's infer with one request and one response, for HTTP and gRPC.

`infer_stream.py` has the form with many requests and responses.

One response is the fold of what the same request would stream.

Counts of infer requests by model, as in Triton's ModelStatistics.

Only requests of KServe's protocol count; /metrics counts those of every API.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Container, Iterable
from contextlib import aclosing
from dataclasses import dataclass, replace

from ovserve.access import current_request
from ovserve.api.kserve import InferRequest, InferResponse, Tensor
from ovserve.errors import Internal, InvalidArgument, Overloaded, OvserveError
from ovserve.kinds.tensors.resource import PlainModel
from ovserve.services.inference import http_infer
from ovserve.services.inference.tensor_run import TensorRun
from ovserve.serving.interface import Interface
from ovserve.serving.manager import Manager
from ovserve.serving.servable import Servable
from ovserve.telemetry.counters import Front


@dataclass
class Statistics:
    """Durations are nanoseconds from the request's arrival to its last response."""

    success: int = 0
    success_ns: int = 0
    fail: int = 0
    fail_ns: int = 0
    cancel: int = 0
    cancel_ns: int = 0
    last: int = 0  # Unix time of the last request in milliseconds

    def request(self) -> _Request:
        """Return a context that counts a request from its beginning to its end."""
        return _Request(self)


class _Request:
    """A class, because a generator's context costs twice as much (1.2 us)."""

    __slots__ = ("_began", "_counts")

    def __init__(self, counts: Statistics) -> None:
        self._counts = counts

    def __enter__(self) -> None:
        self._counts.last = int(time.time() * 1000)
        self._began = time.monotonic_ns()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        counts, duration = self._counts, time.monotonic_ns() - self._began
        if kind is None:
            counts.success += 1
            counts.success_ns += duration
        elif issubclass(kind, OvserveError):
            counts.fail += 1
            counts.fail_ns += duration
        else:  # the client disconnected
            counts.cancel += 1
            counts.cancel_ns += duration


class Inference:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self.bodies = manager.bodies
        self.statistics: defaultdict[str, Statistics] = defaultdict(Statistics)

    async def infer(self, request: InferRequest, front: Front) -> InferResponse:
        """Run one request. Raises ModelNotFound, Unavailable, InvalidArgument, and what the graph raises."""
        servable = self.servable(request.model, request.version)
        if servable.model is not None:
            with self.statistics[servable.name].request():
                return await plain_infer(servable, servable.model, request, front)
        outputs: dict[str, Tensor] = {}
        whole = InferResponse(outputs)
        with self.statistics[servable.name].request():
            async with aclosing(self._one(servable, request, front)) as responses:
                async for response in responses:
                    if twice := outputs.keys() & response.outputs.keys():
                        raise InvalidArgument(
                            f"the graph sent more than one packet to {min(twice)!r}: call ModelStreamInfer"
                        )
                    outputs.update(response.outputs)
                    whole = replace(whole, parameters={**response.parameters, **whole.parameters})
            if missing := [name for name in request.outputs if name not in outputs]:
                raise Internal(f"the graph sent nothing to output {', '.join(missing)}")
            if not outputs:
                raise Internal("the graph ended without an answer")
        return addressed(whole, request, servable)

    def servable(self, name: str, version: str = "") -> Servable:
        """Return the servable. Raises ModelNotFound or Unavailable."""
        return self._manager.get(name, version)

    def counts(self, name: str = "", version: str = "") -> list[tuple[str, str, Statistics]]:
        """Return name, version and counts of one model, or of all that are served.

        Raises ModelNotFound or Unavailable.
        """
        if name:
            servables = [self.servable(name, version)]
        else:
            may = current_request().caller.may_use
            servables = [s for s in self._manager.servables if may(s.name)]
        return [(s.name, s.version, self.statistics[s.name]) for s in servables]

    def _one(
        self, servable: Servable, request: InferRequest, front: Front
    ) -> AsyncGenerator[InferResponse, None]:
        if servable.interface is not Interface.HTTP:
            return self._tensors(servable, request, front)
        return http_infer.answers(servable, request, front, whole=True)

    async def _tensors(
        self, servable: Servable, request: InferRequest, front: Front
    ) -> AsyncGenerator[InferResponse, None]:
        async with TensorRun(servable, request, front) as run:
            await run.send(request, partial=False)
            run.close()
            while (response := await run.next()) is not None:
                if isinstance(response, InferResponse):
                    yield noting(response, run.unused)


async def plain_infer(
    servable: Servable,
    model: PlainModel,
    request: InferRequest,
    front: Front,
    used_names: Container[str] = (),
) -> InferResponse:
    """Run a plain model without the graph around it, which costs more than a small model.

    `used_names` are parameters that mean something to the caller; others are reported as without effect.
    """
    request.check_inputs()
    call = front.api, front.interface, front.unary
    with current_request().answering(), servable.lease(), model.metrics.request(*call):
        try:
            inferred = await model.infer(request.inputs, request.outputs)
        except Overloaded as error:
            servable.metrics.refused[error.cause] += 1
            raise
    response = InferResponse(inferred.outputs, request.model, servable.version, request.id)
    ignored = [name for name in request.parameters if name not in used_names]
    return noting(response, [*ignored, *request.ignored])


def addressed(response: InferResponse, request: InferRequest, servable: Servable) -> InferResponse:
    """Return the response with the names and the id of the request."""
    outputs = response.outputs
    if request.outputs:
        outputs = {name: tensor for name, tensor in outputs.items() if name in request.outputs}
    return replace(response, outputs=outputs, model=request.model, version=servable.version, id=request.id)


def noting(response: InferResponse, ignored: Iterable[str]) -> InferResponse:
    """Return the response with the parameters that had no effect."""
    if not (names := ",".join(ignored)):
        return response
    return replace(response, parameters={**response.parameters, http_infer.IGNORED: names})
