"""OpenAI's Responses paths. Only translation: what happens is in `services/responses/service.py`.

A stream here never ends in an error of ours: the service ends it with the dialect's own last event.
"""

from __future__ import annotations

import logging

from aiohttp import web

from ovserve.access import current_request
from ovserve.errors import InvalidArgument, OvserveError, public
from ovserve.http.body import headers_of, json_response, read_body
from ovserve.http.errors import openai_body
from ovserve.http.middleware import REQUEST_ID
from ovserve.http.sse import EventStream, as_event
from ovserve.log import request_id
from ovserve.services.responses.run import ResponseReply
from ovserve.services.responses.service import ResponsesService

log = logging.getLogger(__name__)

FLAGS = {"true": True, "1": True, "false": False, "0": False}


class ResponsesRoutes:
    def __init__(self, service: ResponsesService) -> None:
        self._service = service

    async def create(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request)
        headers = headers_of(request)
        async with EventStream(request, _ids(), pings=body.head.stream) as stream:
            try:
                async with self._service.create(owner_of(request), body.data, headers, body.head) as reply:
                    return await _send(stream, reply)
            except OvserveError as exc:
                if not stream.begun:
                    raise
                return await _end_with(stream, exc)

    async def count(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request)
        return json_response(await self._service.count(owner_of(request), body.data, body.head))

    async def get(self, request: web.Request) -> web.StreamResponse:
        owner, id_ = owner_of(request), request.match_info["id"]
        after = number_of(request, "starting_after")
        if _flag(request, "stream"):
            events = await self._service.stream(owner, id_, after)
            async with EventStream(request, _ids(), pings=True) as stream:
                return await _send(stream, ResponseReply(events=events))
        if after is not None:
            raise InvalidArgument(f"starting_after: {after} needs stream=true", param="starting_after")
        return _json(await self._service.get(owner, id_))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        return _json(await self._service.delete(owner_of(request), request.match_info["id"]))

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        return _json(await self._service.cancel(owner_of(request), request.match_info["id"]))

    async def input_items(self, request: web.Request) -> web.StreamResponse:
        limit = number_of(request, "limit")
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
    return current_request().caller.name


def _flag(request: web.Request, name: str) -> bool:
    text = request.query.get(name, "false")
    if text.lower() not in FLAGS:
        raise InvalidArgument(f"{name}: expected true or false, got {text!r}", param=name)
    return FLAGS[text.lower()]


def number_of(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidArgument(f"{name}: expected a whole number, got {text!r}", param=name)
    return int(text)


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")


def _ids() -> dict[str, str]:
    return {REQUEST_ID: request_id.get()}


async def _send(stream: EventStream, reply: ResponseReply) -> web.StreamResponse:
    headers = {**reply.headers, **_ids()}
    if reply.events is None and not stream.begun:
        return web.Response(body=reply.body, content_type=reply.content_type, headers=headers)
    await stream.begin(headers)
    if reply.events is None:
        await stream.write(as_event(reply.body))
        return await stream.end()
    try:
        async for chunk in reply.events:
            if chunk:
                await stream.write(chunk)
    except OvserveError as exc:  # only of a graph that writes its own responses
        return await _end_with(stream, exc)
    return await stream.end()


async def _end_with(stream: EventStream, error: OvserveError) -> web.StreamResponse:
    current_request().failure = error
    log.warning("the stream ended: %s", error)
    await stream.begin(_ids())
    await stream.write(as_event(openai_body(public(error))))
    return await stream.end()
