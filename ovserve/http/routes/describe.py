"""Descriptions of the server: GET /openapi.json, and GET capabilities per model."""

from __future__ import annotations

import asyncio
import re

from aiohttp import web

from ovserve.access import current_request
from ovserve.api.openai.common import encode
from ovserve.api.openai.describe import capabilities
from ovserve.http.openapi import OPERATIONS, Route, document
from ovserve.serving.manager import Manager
from ovserve.serving.servable import Servable


class Describe:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._document = b""

    async def openapi(self, request: web.Request) -> web.Response:
        if not self._document:
            self._document = encode(document(routes_of(request.app)))
        return web.Response(body=self._document, content_type="application/json")

    async def capabilities(self, request: web.Request) -> web.Response:
        """Describe every model, or the one that `?model=` names."""
        name = request.query.get("model")
        may = current_request().caller.may_use
        servables = [s for s in self._manager.servables if may(s.name)]
        if name is not None:
            servables = [self._manager.get(name)]
        described = []
        for servable in servables:
            described.append(_capabilities(servable))
            await asyncio.sleep(0)  # there may be hundreds
        body = capabilities.body(described)
        return web.Response(body=body, content_type="application/json")


def _capabilities(servable: Servable) -> capabilities.ModelCapabilities:
    return capabilities.of_model(
        OPERATIONS,
        servable.name,
        servable.state.value,
        servable.max_length,
        servable.contexts,
        [
            capabilities.EngineCapabilities(
                kind=servable.engines[packet].spec.kind, side_packet=packet, facts=dict(resource.facts())
            )
            for packet, resource in servable.resources.items()
        ],
        servable.endpoints,
        [
            capabilities.NodeCapabilities(
                name=plan.node.name,
                calculator=plan.node.calculator,
                load_seconds=round(state.seconds, 3),
                facts=dict(state.facts()),
            )
            for plan, state in servable.graph.loaded
        ],
    )


def routes_of(app: web.Application) -> list[Route]:
    """Method and path of every route, those of HEAD left out: they are GET's."""
    routes: list[Route] = []
    for route in app.router.routes():
        info = route.resource.get_info() if route.resource is not None else {}
        pattern = info.get("pattern") or re.compile(re.escape(info.get("path", "")))
        if route.method != "HEAD":
            routes.append((route.method, pattern))
    return routes
