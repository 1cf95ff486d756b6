"""OpenAI's Responses paths. Only translation: what happens is in `serving/responses.py`.

A stream here never ends in an error of ours: the service ends it with the dialect's own last event.
"""

from __future__ import annotations

import logging

from aiohttp import web

from ovserve.access import current_call
from ovserve.errors import InvalidArgument, OvserveError, public
from ovserve.log import request_id
from ovserve.rest.body import payload_of, read_body
from ovserve.rest.errors import openai_body
from ovserve.rest.middleware import REQUEST_ID
from ovserve.serving.responses import Reply, ResponsesService

EVENT_STREAM = "text/event-stream"
log = logging.getLogger(__name__)

FLAGS = {"true": True, "1": True, "false": False, "0": False}


class ResponsesRoutes:
    def __init__(self, service: ResponsesService) -> None:
        self._service = service

    async def create(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request)
        headers = payload_of(request, "responses", b"").headers
        async with self._service.create(owner_of(request), body, headers) as reply:
            return await _send(request, reply)

    async def get(self, request: web.Request) -> web.StreamResponse:
        owner, id_ = owner_of(request), request.match_info["id"]
        if _flag(request, "stream"):
            events = await self._service.stream(owner, id_, _number(request, "starting_after"))
            return await _send(request, Reply(events=events))
        return _json(await self._service.get(owner, id_))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        return _json(await self._service.delete(owner_of(request), request.match_info["id"]))

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        return _json(await self._service.cancel(owner_of(request), request.match_info["id"]))

    async def input_items(self, request: web.Request) -> web.StreamResponse:
        limit = _number(request, "limit")
        page = await self._service.input_items(
            owner_of(request),
            request.match_info["id"],
            limit=20 if limit is None else limit,
            order=request.query.get("order", "desc"),
            after=request.query.get("after"),
        )
        return _json(page)


def owner_of(request: web.Request) -> str:
    """The name behind the request's API key; everything belongs to "" as long as keys have no names."""
    return current_call().caller.name


def _flag(request: web.Request, name: str) -> bool:
    given = request.query.get(name, "false")
    if given.lower() not in FLAGS:
        raise InvalidArgument(f"{name}: expected true or false, got {given!r}", param=name)
    return FLAGS[given.lower()]


def _number(request: web.Request, name: str) -> int | None:
    given = request.query.get(name)
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 18:
        raise InvalidArgument(f"{name}: expected a whole number, got {given!r}", param=name)
    return int(given)


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


async def _send(request: web.Request, reply: Reply) -> web.StreamResponse:
    headers = {**reply.headers, REQUEST_ID: request_id.get()}
    if reply.events is None:
        return web.Response(body=reply.body, content_type=reply.content_type, headers=headers)
    response = web.StreamResponse(headers=headers)
    response.content_type = EVENT_STREAM
    response.headers["Cache-Control"] = "no-cache"
    response.headers["X-Accel-Buffering"] = "no"  # else nginx keeps events back
    await response.prepare(request)
    try:
        async for chunk in reply.events:
            if chunk:
                await response.write(chunk)
    except OvserveError as exc:  # only of a graph that writes its own responses
        log.warning("the stream ended: %s", exc)
        await response.write(b"data: " + openai_body(public(exc)) + b"\n\n")
    await response.write_eof()
    return response
