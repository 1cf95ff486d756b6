"""KServe's infer, for HTTP and gRPC: one request with one response, which is the fold of what the same
request would stream; and ModelStreamInfer, many requests with many responses on one stream.

On a stream, requests to a graph of HTTP payloads are independent and run concurrently; the id distinguishes
their responses. Requests to a graph of tensors all go into one run: it keeps its state from one to the next,
and ends when the client has sent the last.

Requests are counted by model, as in Triton's ModelStatistics: only those of KServe's protocol. /metrics
counts those of every API.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Container, Iterable, Iterator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ovserve.access import Answering, RequestContext, calling, current_request
from ovserve.api.kserve import InferFailure, InferRequest, InferResponse, Parameter, Tensor
from ovserve.api.kserve.tensor import BYTES, display
from ovserve.api.openai.body import decode_fields
from ovserve.api.openai.common import encode
from ovserve.errors import Internal, InvalidArgument, Overloaded, OvserveError
from ovserve.kinds.payload import HttpPayload
from ovserve.kinds.tensors.node import PlainModel
from ovserve.services.inference.tensor_run import TIMESTAMP, TensorRun
from ovserve.serving.interface import Interface, http_streams
from ovserve.serving.manager import Manager
from ovserve.serving.servable import Servable
from ovserve.telemetry.metrics import GRPC_STREAM, Front


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
            http = servable.interface is Interface.HTTP
            answers = payload_answers(servable, request, front, whole=True) if http else None
            async with aclosing(answers or self._tensors(servable, request, front)) as responses:
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

    def model_statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Return Triton's document with the counts of one model, or of all that are served.

        Raises ModelNotFound or Unavailable.
        """
        servables = [self.servable(name, version)] if name else self._manager.usable
        rows = [
            {
                "name": servable.name,
                "version": servable.version,
                "last_inference": counted.last,
                "inference_count": counted.success,
                "execution_count": counted.success,
                "inference_stats": {
                    "success": {"count": counted.success, "ns": counted.success_ns},
                    "fail": {"count": counted.fail, "ns": counted.fail_ns},
                },
            }
            for servable in servables
            for counted in [self.statistics[servable.name]]
        ]
        return {"model_stats": rows}

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
    with Answering(current_request()), servable.lease(), model.metrics.request(*call):
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
    return replace(response, parameters={**response.parameters, IGNORED: names})


EMPTY_FINAL, FINAL = "triton_enable_empty_final_response", "triton_final_response"
SIDE_BY_SIDE = 64  # requests of one stream that run at once; the next is read when one of them ends
MAX_REQUEST_IDS = 1024  # request ids in one run, remembered for their responses

# a failure: the message could not be parsed as a request
Requests = AsyncIterator[InferRequest | InferFailure]
Send = Callable[[InferResponse | InferFailure], Awaitable[None]]


async def infer_stream(inference: Inference, requests: Requests, send: Send) -> None:
    """Answer until there are no more requests and all are answered. `send` is never called concurrently.

    An error of the first request that is known before it runs is raised. A later error is sent, and the
    stream goes on. Only a failed run of tensors ends its stream.
    """
    first = await anext(requests, None)
    if first is None:
        return
    if isinstance(first, InferFailure):
        raise first.error
    servable = inference.servable(first.model, first.version)
    if _in_one_run(servable):
        with inference.statistics[servable.name].request():
            await _one_run(servable, first, requests, send)
        return
    if servable.model is None:
        await payload_of(servable, first)
    await _SideBySide(inference, send).run(first, requests)


def _in_one_run(servable: Servable) -> bool:
    return servable.model is None and servable.interface is not Interface.HTTP


class _SideBySide:
    def __init__(self, inference: Inference, send: Send) -> None:
        self._inference = inference
        self._to_client = send
        self._sending = asyncio.Lock()

    async def run(self, first: InferRequest, requests: Requests) -> None:
        places = asyncio.Semaphore(SIDE_BY_SIDE)
        async with asyncio.TaskGroup() as group:
            request: InferRequest | InferFailure | None = first
            while request is not None:
                await places.acquire()
                task = group.create_task(self._answer(request))
                task.add_done_callback(lambda _: places.release())
                request = await anext(requests, None)

    async def _answer(self, request: InferRequest | InferFailure) -> None:
        if isinstance(request, InferFailure):
            return await self._send(request)
        try:
            # It counts as a request of its own, as if it had arrived separately.
            with calling(RequestContext(current_request().caller)):
                async with aclosing(self._responses(request)) as responses:
                    async for response in responses:
                        await self._send(response)
        except OvserveError as exc:
            await self._send(InferFailure(request.id, exc))

    async def _responses(self, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        """Yield the responses to one request; the last one is empty and says so, if requested."""
        servable = self._inference.servable(request.model, request.version)
        if _in_one_run(servable):
            raise InvalidArgument.at(
                "model_name", f"{request.model!r} takes {servable.interface.value}, in a stream of its own"
            )
        marks_end = request.parameters.get(EMPTY_FINAL) is True
        with self._inference.statistics[servable.name].request():
            async with aclosing(_answers(servable, request)) as answers:
                async for response in answers:
                    response = addressed(response, request, servable)
                    yield _marked(response, last=False) if marks_end else response
        if marks_end:
            yield _marked(addressed(InferResponse({}), request, servable), last=True)

    async def _send(self, item: InferResponse | InferFailure) -> None:
        async with self._sending:
            await self._to_client(item)


async def _answers(servable: Servable, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
    if servable.model is not None:
        yield await plain_infer(servable, servable.model, request, GRPC_STREAM, (EMPTY_FINAL,))
        return
    async with aclosing(payload_answers(servable, request, GRPC_STREAM, (EMPTY_FINAL,))) as answers:
        async for response in answers:
            yield response


async def _one_run(servable: Servable, first: InferRequest, requests: Requests, send: Send) -> None:
    async with TensorRun(servable, first, GRPC_STREAM) as run:
        ids = {await run.send(first, partial=True): first.id}
        feeding = asyncio.create_task(_feed(run, first, requests, ids))
        try:
            while (item := await run.next()) is not None:
                if isinstance(item, InferFailure):
                    await send(item)
                    continue
                response = addressed(noting(item, run.unused), first, servable)
                if response.outputs:
                    await send(replace(response, id=ids.get(int(item.parameters[TIMESTAMP]), "")))
            await feeding
        finally:
            feeding.cancel()
            await asyncio.wait({feeding})


async def _feed(run: TensorRun, first: InferRequest, requests: Requests, ids: dict[int, str]) -> None:
    try:
        async for request in requests:
            if isinstance(request, InferFailure):
                await run.report(request)
                continue
            try:
                _check_same(request, first)
                current_request().caller.ask()
                ids[await run.send(request, partial=True)] = request.id
            except OvserveError as exc:
                await run.report(InferFailure(request.id, exc))
            if len(ids) > MAX_REQUEST_IDS:
                del ids[next(iter(ids))]
    finally:
        run.close()


def _check_same(request: InferRequest, first: InferRequest) -> None:
    for field, value, expected in (
        ("model_name", request.model, first.model),
        ("model_version", request.version, first.version),
    ):
        if value != expected:
            raise InvalidArgument.at(field, f"this stream is {expected!r}'s, got {display(value)}")


def _marked(response: InferResponse, *, last: bool) -> InferResponse:
    return replace(response, parameters={**response.parameters, FINAL: last})


# KServe's requests on a graph of HTTP payloads, which an LLM graph is: the body is a BYTES tensor of one
# element, and so is each answer.
#
# The input has the name of the graph's stream and holds what would be POSTed; `model` may be left out of it.
# The parameter `endpoint` says where to: chat/completions by default, in graphs that have it. A whole answer
# is one element; of a streamed one each event's data is, without the "[DONE]" at the end.


IGNORED = "x-ovserve-ignored-params"  # as the header of the HTTP paths
ENDPOINT, DEFAULT_ENDPOINT = "endpoint", "chat/completions"
EVENT_STREAM = "text/event-stream"
KEPT = "responses"  # needs the store, which REST alone has


async def payload_of(servable: Servable, request: InferRequest) -> HttpPayload:
    """Raises InvalidArgument that names the field, or the bound that the body in the tensor is past."""
    source, target = http_streams(servable.graph.plan)
    request.check_inputs()
    if tuple(request.inputs) != (source,):
        input_names = ", ".join([name[:64] for name in request.inputs][:8]) or "none"
        raise InvalidArgument.at("inputs", f"expected {source!r} alone, got {input_names}")
    for name in request.outputs:
        if name != target:
            raise InvalidArgument.expected("outputs", f"{target!r}", name)
    tensor = request.inputs[source]
    if tensor.datatype != BYTES or math.prod(tensor.shape) != 1:
        raise InvalidArgument.at(
            "inputs",
            f"{source!r} takes BYTES of one element, the body of a request; got {tensor.datatype} "
            f"of shape {list(tensor.shape)}",
        )
    declared = sorted(servable.endpoints)
    default = DEFAULT_ENDPOINT if not declared or DEFAULT_ENDPOINT in declared else declared[0]
    endpoint = request.parameters.get(ENDPOINT, default)
    if not isinstance(endpoint, str):
        raise InvalidArgument(
            f"parameters.{ENDPOINT}: expected text, got {display(endpoint)}", param=ENDPOINT
        )
    if endpoint == KEPT:
        raise InvalidArgument(
            f"parameters.{ENDPOINT}: responses are kept by the HTTP server; POST /v3/responses there",
            param=ENDPOINT,
        )
    (body,) = tensor.elements
    head = await servable.bodies.admit(body)
    if head.model != servable.name and endpoint not in servable.open_endpoints:
        body = await servable.bodies.run(head.large, _with_model, body, servable.name)
        head = head._replace(model=servable.name)
    return HttpPayload(endpoint, body, head=head)


async def payload_answers(
    servable: Servable,
    request: InferRequest,
    front: Front,
    used_names: Container[str] = (),
    *,
    whole: bool = False,
) -> AsyncGenerator[InferResponse, None]:
    """Raises what went wrong, also after some answers. Close it to end the request. `used_names` are
    parameters that mean something to the caller; others without a meaning are reported. With `whole`, a body
    that asks for a stream is rejected.
    """
    target = http_streams(servable.graph.plan)[1]
    unused = [name for name in request.parameters if name != ENDPOINT and name not in used_names]
    unused += request.ignored
    async with AsyncExitStack() as held:
        held.enter_context(servable.lease())
        payload = await payload_of(servable, request)
        if whole and payload.head.stream:
            raise InvalidArgument.at(
                "stream", "a call with one response cannot stream; call ModelStreamInfer"
            )
        answer = await held.enter_async_context(servable.start(payload, front))
        first = await answer.first()
        parameters: dict[str, Parameter] = {**first.headers}
        if unused:
            parameters[IGNORED] = ",".join([*filter(None, [first.headers.get(IGNORED)]), *unused])
        if not first.more or first.size is not None:  # one of a known size is large, and not a stream
            body = await answer.whole(first)
            yield InferResponse({target: Tensor.of_bytes(body)}, parameters=parameters)
            return
        split = _Events().feed if first.content_type == EVENT_STREAM else _piece
        piece: bytes | None = first.body
        while piece is not None:
            for data in split(piece):
                yield InferResponse({target: Tensor.of_bytes(data)}, parameters=parameters)
                parameters = {}
            piece = await answer.next()


def _piece(piece: bytes) -> Iterable[bytes]:
    return [piece] if piece else []


class _Events:
    """Server-sent events to their data. A piece may end inside an event."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        *events, self._rest = (self._rest + piece).split(b"\n\n")
        for event in events:
            lines = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
            if lines and lines != [b"[DONE]"]:
                yield b"\n".join(lines)


def _with_model(body: bytes, model: str) -> bytes:
    """Add the model's name. A body that is not a JSON object is for the graph to accept or reject."""
    try:
        fields = decode_fields(body)
    except InvalidArgument:
        return body
    if "model" not in fields:
        return encode({"model": model, **fields})
    body_model = msgspec.json.decode(fields["model"])
    if body_model != model:
        raise InvalidArgument.at("model", f"the request is for {model!r}, its body for {display(body_model)}")
    return body
