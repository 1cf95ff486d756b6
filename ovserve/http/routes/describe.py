"""Descriptions of the server: GET /openapi.json; per model its capabilities, voices, and tokenizer.

tokenize, detokenize and tokenizer_info, stand under every prefix and where lm-eval looks for them.
They run no graph: a servable answers them itself. `model` may be left out when one is served.
"""

from __future__ import annotations

import asyncio
import re

from aiohttp import hdrs, web

from ovserve.api.openai import describe
from ovserve.api.openai.common import encode
from ovserve.http.body import json_of, json_response, read_body, servable_of, tokens_response
from ovserve.http.openapi import OPERATIONS, Route, document
from ovserve.kinds.voice.api import Voice, VoiceList
from ovserve.kinds.voice.node import SpeechResource
from ovserve.serving.manager import Manager
from ovserve.serving.servable import Servable
from ovserve.serving.tokens import tokens_of

# lm-eval takes "/v1/completions" off its base address, and nothing off one that ends in "/v3/completions".
PARENT = "/{parent:(?:(?:chat/)?completions/)?}"


class TokenRoutes:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await read_body(request)
        servable = servable_of(self._manager, body, only=True)
        return tokens_response(await tokens_of(servable).tokenize(body.data, body.head.large))

    async def detokenize(self, request: web.Request) -> web.Response:
        body = await read_body(request)
        servable = servable_of(self._manager, body, only=True)
        return tokens_response(await tokens_of(servable).detokenize(body.data, body.head.large))

    async def count(self, request: web.Request) -> web.Response:
        """POST messages/count_tokens."""
        body = await read_body(request)
        servable = servable_of(self._manager, body)
        return tokens_response(await tokens_of(servable).count(body.data, body.head.large))

    async def info(self, request: web.Request) -> web.Response:
        """GET; `?model=` names one of several."""
        servable = self._manager.only(request.query.get("model"))
        return tokens_response(tokens_of(servable).info())


def _chosen(manager: Manager, request: web.Request) -> list[Servable]:
    """Return the servable that `?model=` names, or all that the caller may use."""
    name = request.query.get("model")
    return manager.usable if name is None else [manager.get(name)]


def _voices(servable: Servable) -> list[Voice]:
    return [
        Voice(
            name, name, servable.name, speaker.voices.language_of(name), name == speaker.voices.default_name
        )
        for speaker in servable.resources.values()
        if isinstance(speaker, SpeechResource)
        for name in speaker.model.voices
    ]


class Describe:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._document = b""

    async def openapi(self, request: web.Request) -> web.Response:
        if not self._document:
            self._document = encode(document(routes_of(request.app)))
        return json_response(self._document)

    async def voices(self, request: web.Request) -> web.Response:
        """List the voices of all graphs, or of the one that `?model=` names."""
        servables = _chosen(self._manager, request)
        return json_of(VoiceList([voice for servable in servables for voice in _voices(servable)]))

    async def capabilities(self, request: web.Request) -> web.Response:
        """Describe every model, or the one that `?model=` names."""
        servables = _chosen(self._manager, request)
        described = []
        for servable in servables:
            described.append(_capabilities(servable))
            await asyncio.sleep(0)  # there may be hundreds
        return json_response(describe.body(described))


def _capabilities(servable: Servable) -> describe.ModelCapabilities:
    return describe.of_model(
        OPERATIONS,
        servable.name,
        servable.state.value,
        servable.max_length,
        servable.contexts,
        [
            describe.EngineCapabilities(
                kind=servable.engines[packet].spec.kind, side_packet=packet, facts=dict(resource.facts())
            )
            for packet, resource in servable.resources.items()
        ],
        servable.endpoints,
        [
            describe.NodeCapabilities(
                name=plan.node.name,
                calculator=plan.node.calculator,
                load_seconds=round(state.seconds, 3),
                facts=dict(state.facts()),
            )
            for plan, state in servable.graph.loaded
        ],
    )


def routes_of(app: web.Application) -> list[Route]:
    """Method and path of every route, but not of HEAD, which are GET's, nor of what answers 405."""
    routes: list[Route] = []
    for route in app.router.routes():
        info = route.resource.get_info() if route.resource is not None else {}
        pattern = info.get("pattern") or re.compile(re.escape(info.get("path", "")))
        if route.method not in (hdrs.METH_HEAD, hdrs.METH_ANY):
            routes.append((route.method, pattern))
    return routes
