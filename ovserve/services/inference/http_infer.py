"""KServe's requests on a graph of HTTP payloads, which an LLM graph is: the body is a BYTES tensor of one
element, and so is each answer. Used by `inference.py`.

The input has the name of the graph's stream and holds what would be POSTed; `model` may be left out of it.
The parameter `endpoint` says where to: chat/completions by default, in graphs that have it. A whole answer is
one element; of a streamed one each event's data is, without the "[DONE]" at the end.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Container, Iterable, Iterator
from contextlib import AsyncExitStack

import msgspec

from ovserve.api.kserve import InferRequest, InferResponse, Parameter, Tensor
from ovserve.api.kserve.tensor import BYTES, display
from ovserve.api.openai.body import decode_fields
from ovserve.api.openai.common import encode
from ovserve.errors import InvalidArgument
from ovserve.kinds.payload import HttpPayload, HttpResponse
from ovserve.serving.interface import http_streams
from ovserve.serving.servable import GraphResponse, Servable
from ovserve.telemetry.metrics import Front

IGNORED = "x-ovserve-ignored-params"  # as the header of the HTTP paths
ENDPOINT, DEFAULT_ENDPOINT = "endpoint", "chat/completions"
EVENT_STREAM = "text/event-stream"
KEPT = "responses"  # needs the store, which REST alone has


def default_endpoint(servable: Servable) -> str:
    """Return chat/completions, or the first that the graph's nodes declare where that is not one of them."""
    declared = sorted(servable.endpoints)
    return DEFAULT_ENDPOINT if not declared or DEFAULT_ENDPOINT in declared else declared[0]


def names(servable: Servable) -> tuple[str, str]:
    """The tensors of an input or an output."""
    return http_streams(servable.graph.plan)


async def payload_of(servable: Servable, request: InferRequest) -> HttpPayload:
    """Raises InvalidArgument that names the field, or the bound that the body in the tensor is past."""
    source, target = names(servable)
    request.check_inputs()
    if tuple(request.inputs) != (source,):
        input_names = ", ".join([name[:64] for name in request.inputs][:8]) or "none"
        raise InvalidArgument(f"inputs: expected {source!r} alone, got {input_names}", param="inputs")
    for name in request.outputs:
        if name != target:
            raise InvalidArgument(f"outputs: expected {target!r}, got {display(name)}", param="outputs")
    tensor = request.inputs[source]
    if tensor.datatype != BYTES or math.prod(tensor.shape) != 1:
        raise InvalidArgument(
            f"inputs: {source!r} takes BYTES of one element, the body of a request; got {tensor.datatype} "
            f"of shape {list(tensor.shape)}",
            param="inputs",
        )
    endpoint = request.parameters.get(ENDPOINT, default_endpoint(servable))
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


async def answers(
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
    target = names(servable)[1]
    unused = [name for name in request.parameters if name != ENDPOINT and name not in used_names]
    unused += request.ignored
    async with AsyncExitStack() as held:
        held.enter_context(servable.lease())
        payload = await payload_of(servable, request)
        if whole and payload.head.stream:
            raise InvalidArgument(
                "stream: a call with one response cannot stream; call ModelStreamInfer", param="stream"
            )
        answer = await held.enter_async_context(servable.start(payload, front))
        first = await answer.first()
        parameters: dict[str, Parameter] = {**first.headers}
        if unused:
            parameters[IGNORED] = ",".join([*filter(None, [first.headers.get(IGNORED)]), *unused])
        if not first.more or first.size is not None:  # one of a known size is large, and not a stream
            body = await _whole_body(answer, first) if first.more else first.body
            yield InferResponse({target: Tensor.of_bytes(body)}, parameters=parameters)
            return
        split = _Events() if first.content_type == EVENT_STREAM else _Pieces()
        piece: bytes | None = first.body
        while piece is not None:
            for data in split.feed(piece):
                yield InferResponse({target: Tensor.of_bytes(data)}, parameters=parameters)
                parameters = {}
            piece = await answer.next()


async def _whole_body(answer: GraphResponse, first: HttpResponse) -> bytes:
    pieces = [first.body]
    while (piece := await answer.next()) is not None:
        pieces.append(piece)
    return b"".join(pieces)


class _Pieces:
    def feed(self, piece: bytes) -> Iterable[bytes]:
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
        raise InvalidArgument(
            f"model: the request is for {model!r}, its body for {display(body_model)}", param="model"
        )
    return body
