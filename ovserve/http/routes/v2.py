"""KServe's health paths, and the plain ones that probes and benchmark tools ask for."""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from ovserve.api.kserve import Parameter
from ovserve.api.kserve.json_body import (
    HEADER_LENGTH,
    InferAnswer,
    InferBody,
    decode_infer,
    encode_infer,
    header_end,
    json_elements,
)
from ovserve.api.kserve.tensor import BYTES
from ovserve.api.openai.body import LOOP_NODES, decode_body, decode_fields
from ovserve.api.openai.operation import Operation
from ovserve.errors import InvalidArgument, NotFound, Unavailable
from ovserve.http.body import BODIES, json_of, json_response, read_bytes, read_small_body, without_mark
from ovserve.kinds.payload import ignored_header
from ovserve.services.inference.administration import NO_SHARED_MEMORY, NO_TRACES, Administration
from ovserve.services.inference.infer import Inference
from ovserve.serving.manager import RETRY_AFTER, Manager
from ovserve.telemetry.metrics import KSERVE_REST, MODEL_METADATA, MODEL_READY

# KServe's REST v2 on models: server and model metadata, readiness, infer in JSON and with binary data, and
# what Triton adds per model (configuration, statistics). The gRPC form of each is in `grpc_api/inference.py`.
#
# Of Triton's administration: the repository's index, load and unload, log settings; and, by name, what this
# server does not have (404 as for any path, but with the reason).


class _Index(msgspec.Struct, forbid_unknown_fields=True):
    ready: bool = False


class _Change(msgspec.Struct, forbid_unknown_fields=True):
    parameters: dict[str, Parameter] = {}


_index = msgspec.json.Decoder(_Index)
_change = msgspec.json.Decoder(_Change)


async def no_shared_memory(request: web.Request) -> web.Response:
    raise NotFound(NO_SHARED_MEMORY)


async def no_traces(request: web.Request) -> web.Response:
    raise NotFound(NO_TRACES)


def _parameter(name: str, raw: msgspec.Raw) -> Parameter:
    try:
        value: Parameter = msgspec.json.decode(raw, type=Parameter)
    except msgspec.ValidationError as exc:
        raise InvalidArgument(f"settings.{name}: {exc}", param=name) from None
    return value


TEXTS = BYTES.encode()  # the datatype in the JSON
SMALL_BYTES = 64 * 1024  # of binary tensors that are read in the event loop: elements of BYTES are walked


class V2Models:
    """An empty body of Triton's calls is the same as {}: curl -X POST sends none."""

    def __init__(self, administration: Administration, inference: Inference) -> None:
        self._administration, self._inference = administration, inference

    async def index(self, request: web.Request) -> web.Response:
        options, _ = decode_body(await read_small_body(request) or b"{}", _index)
        return json_of([row._asdict() for row in self._administration.index(ready=options.ready)])

    async def load(self, request: web.Request) -> web.Response:
        options, _ = decode_body(await read_small_body(request) or b"{}", _change)
        await self._administration.load(request.match_info["name"], options.parameters)
        return web.Response()

    async def unload(self, request: web.Request) -> web.Response:
        options, _ = decode_body(await read_small_body(request) or b"{}", _change)
        await self._administration.unload(request.match_info["name"], options.parameters)
        return web.Response()

    async def log_settings(self, request: web.Request) -> web.Response:
        return json_of(self._administration.log_settings({}))

    async def change_log_settings(self, request: web.Request) -> web.Response:
        fields = decode_fields(await read_small_body(request) or b"{}")
        return json_of(self._administration.log_settings({k: _parameter(k, v) for k, v in fields.items()}))

    async def server(self, request: web.Request) -> web.Response:
        return json_of(self._administration.server)

    async def model(self, request: web.Request) -> web.Response:
        name, version = _which(request)
        with self._administration.counted(name, KSERVE_REST, MODEL_METADATA):
            return json_of(self._administration.metadata(name, version))

    async def ready(self, request: web.Request) -> web.Response:
        """200, or 503 while it cannot answer."""
        name, version = _which(request)
        with self._administration.counted(name, KSERVE_REST, MODEL_READY):
            if not self._administration.model_ready(name, version):
                raise Unavailable(f"model {name!r} is not ready", retry_after=RETRY_AFTER)
        return json_of({"name": name, "ready": True})

    async def config(self, request: web.Request) -> web.Response:
        return json_of(self._administration.config(*_which(request)))

    async def statistics(self, request: web.Request) -> web.Response:
        return json_of(self._inference.model_statistics(*_which(request)))

    async def infer(self, request: web.Request) -> web.Response:
        name, version = _which(request)
        body, bodies = await read_bytes(request), request.app[BODIES]
        header = request.headers.get(HEADER_LENGTH)
        body = body if header else without_mark(body)
        end = header_end(header, len(body))
        large = await bodies.check(body if end == len(body) else body[:end])
        large = large or (len(body) - end > SMALL_BYTES and TEXTS in body[:end])
        if large:
            decoded = await bodies.run(large, decode_infer, name, version, body, header)
        else:  # numbers behind the JSON cost nothing, however many they are
            decoded = decode_infer(name, version, body, header, views=True)
        response = await self._inference.infer(decoded.request, KSERVE_REST)
        large = json_elements(response, decoded.requested) > LOOP_NODES
        if large:
            answer, json_length = await bodies.run(large, encode_infer, response, decoded.requested)
        else:
            answer, json_length = encode_infer(response, decoded.requested)
        headers = ignored_header(decoded.ignored)
        if json_length is None:
            return json_response(answer, headers)
        headers[HEADER_LENGTH] = str(json_length)
        return web.Response(body=answer, content_type="application/octet-stream", headers=headers)


def _which(request: web.Request) -> tuple[str, str]:
    return request.match_info.get("model", ""), request.match_info.get("version", "")


class Live(Struct):
    """OVMS and Triton answer with the status alone; KServe's Python client reads this."""

    live: bool = True


class Ready(Struct):
    ready: bool = True


class ModelReady(Struct):
    name: str
    ready: bool = True


class V2:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def live(self, request: web.Request) -> web.Response:
        return json_of(Live())

    async def ready(self, request: web.Request) -> web.Response:
        """200 once the first load is done and something can answer; 503 says why not."""
        if self._manager.ready:
            return json_of(Ready())
        statuses = self._manager.usable_statuses
        states = ", ".join(f"{s.name} {s.state.name} {s.reason}".rstrip() for s in statuses)
        raise Unavailable(f"not ready: {states or 'loading'}", retry_after=RETRY_AFTER)


_BODY = '{"messages": [{"role": "user", "content": "Say hello"}]}'
_OF_A_MODEL: tuple[tuple[str, str, Any], ...] = (
    ("", "Inputs and outputs of a graph.", dict[str, Any]),
    ("/ready", "200 while it can answer.", ModelReady),
    ("/config", "Triton's configuration of it.", dict[str, Any]),
    ("/stats", "Counts of infer requests.", dict[str, Any]),
)

OPERATIONS = (
    Operation("GET", "/v2/health/live", "200 while the server is up.", answer=Live),
    Operation(
        "GET",
        "/v2/health/ready",
        "200 while something can answer; 503 says what does not, and why.",
        answer=Ready,
    ),
    Operation("GET", "/v3/health", "As /v2/health/ready.", answer=Ready),
    Operation("GET", "/v2", "Name, version and extensions of this server.", answer=dict[str, Any]),
    Operation(
        "POST",
        "/v2/models/{model}/infer",
        "KServe's infer on a graph, whole; gRPC has the streamed form. See docs/kserve.md.",
        request=InferBody,
        answer=InferAnswer,
        example={"inputs": [{"name": "http", "datatype": "BYTES", "shape": [1], "data": [_BODY]}]},
    ),
    Operation("POST", "/v2/models/{model}/versions/{version}/infer", "The same; the version is 1."),
    *(
        Operation("GET", f"/v2/models/{{model}}{version}{path}", summary, answer=answer)
        for version in ("", "/versions/{version}")
        for path, summary, answer in _OF_A_MODEL
    ),
    Operation("GET", "/v2/models/stats", "Counts of infer requests, by model.", answer=dict[str, Any]),
    Operation(
        "POST",
        "/v2/repository/index",
        "Every model, its state and why. `ready` asks for some.",
        answer=list[dict[str, str]],
    ),
    Operation(
        "POST", "/v2/repository/models/{name}/load", "Load what the configuration says of a name, or again."
    ),
    Operation("POST", "/v2/repository/models/{name}/unload", "Take a model out of service."),
    Operation("GET", "/v2/logging", "Triton's log settings.", answer=dict[str, Any]),
    Operation("POST", "/v2/logging", "Change some of them.", answer=dict[str, Any]),
    *(
        Operation(method, path, "Not in this server; the 404 says why.")
        for path in ("/v2/systemsharedmemory/{path}", "/v2/cudasharedmemory/{path}", "/v2/trace/setting")
        for method in ("GET", "POST")
    ),
)
