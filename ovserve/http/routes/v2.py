"""KServe's health paths, and the plain ones that probes and benchmark tools ask for."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from msgspec import Struct

from ovserve.access import current_request
from ovserve.api.kserve.json_body import InferAnswer, InferBody
from ovserve.api.openai.common import encode
from ovserve.api.openai.operation import Operation
from ovserve.errors import Unavailable
from ovserve.serving.manager import RETRY_AFTER, Manager


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
        return web.Response(body=encode(Live()), content_type="application/json")

    async def ready(self, request: web.Request) -> web.Response:
        """200 once the first load is done and something can answer; 503 says why not."""
        if self._manager.ready:
            return web.Response(body=encode(Ready()), content_type="application/json")
        may = current_request().caller.may_use
        visible = [s for s in self._manager.statuses() if may(s.name)]
        states = ", ".join(f"{s.name} {s.state.name} {s.reason}".rstrip() for s in visible)
        raise Unavailable(f"not ready: {states or 'loading'}", retry_after=RETRY_AFTER)


_BODY = '{"messages": [{"role": "user", "content": "Say hello"}]}'
_OF_A_MODEL: tuple[tuple[str, str, Any], ...] = (
    ("", "Inputs and outputs of a graph.", dict[str, Any]),
    ("/ready", "200 while it can answer.", ModelReady),
    ("/config", "Triton's configuration of it.", dict[str, Any]),
    ("/stats", "Counts of infer requests.", dict[str, Any]),
)

OPERATIONS = (
    Operation("GET", "/", "200 while the server is up.", answer=Live),
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
