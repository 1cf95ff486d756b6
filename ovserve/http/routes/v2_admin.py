"""Triton's REST administration under /v2: the repository's index, load and unload, log settings; and, by
name, what this server does not have (404 as for any path, but with the reason). The gRPC form of each is in
`grpc_api/inference.py`.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from ovserve.api.kserve import Parameter
from ovserve.api.openai.body import decode_body, decode_fields
from ovserve.api.openai.common import encode
from ovserve.errors import InvalidArgument, NotFound
from ovserve.http.body import read_small_body
from ovserve.services.inference.administration import NO_SHARED_MEMORY, NO_TRACES, Administration


class _Index(msgspec.Struct, forbid_unknown_fields=True):
    ready: bool = False


class _Change(msgspec.Struct, forbid_unknown_fields=True):
    parameters: dict[str, Parameter] = {}


_index = msgspec.json.Decoder(_Index)
_change = msgspec.json.Decoder(_Change)


class V2Admin:
    """An empty body is the same as {}: curl -X POST sends none."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    async def index(self, request: web.Request) -> web.Response:
        options, _ = decode_body(await read_small_body(request) or b"{}", _index)
        return _json([row._asdict() for row in self._administration.index(ready=options.ready)])

    async def load(self, request: web.Request) -> web.Response:
        options, _ = decode_body(await read_small_body(request) or b"{}", _change)
        await self._administration.load(request.match_info["name"], options.parameters)
        return web.Response()

    async def unload(self, request: web.Request) -> web.Response:
        options, _ = decode_body(await read_small_body(request) or b"{}", _change)
        await self._administration.unload(request.match_info["name"], options.parameters)
        return web.Response()

    async def log_settings(self, request: web.Request) -> web.Response:
        return _json(self._administration.log_settings({}))

    async def change_log_settings(self, request: web.Request) -> web.Response:
        fields = decode_fields(await read_small_body(request) or b"{}")
        return _json(self._administration.log_settings({k: _parameter(k, v) for k, v in fields.items()}))


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


def _json(value: Any) -> web.Response:
    return web.Response(body=encode(value), content_type="application/json")
