"""Anthropic's paths: messages on a graph, and count_tokens without one. Errors are `errors.py`'s by path."""

from __future__ import annotations

from aiohttp import web

from ovserve.http.body import json_response, payload_of, read_body, servable_of
from ovserve.http.sse import send_answer
from ovserve.serving.manager import Manager
from ovserve.serving.tokens import tokens_of


class Anthropic:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def messages(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request)
        servable = servable_of(self._manager, body)
        async with servable.start(payload_of(request, "messages", body)) as answer:
            return await send_answer(request, answer)

    async def count_tokens(self, request: web.Request) -> web.Response:
        body = await read_body(request)
        servable = servable_of(self._manager, body)
        return json_response(await tokens_of(servable).count(body.data, body.head.large))
