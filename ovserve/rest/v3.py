"""OpenAI's paths under /v3 and /v1: inference on a graph, and the list of models."""

from __future__ import annotations

from aiohttp import web

from ovserve.calculators.payload import HttpPayload
from ovserve.errors import UnsupportedMediaType
from ovserve.openai import models
from ovserve.openai.body import peek_model
from ovserve.rest.stream import send_answer
from ovserve.serving.manager import Manager
from ovserve.serving.servable import Servable


class V3:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def infer(self, request: web.Request) -> web.StreamResponse:
        """POST: `model` names the graph, the rest of the body is the graph's business."""
        # curl -d without a header calls any body a form, and many clients send no type: only what cannot
        # be JSON is refused.
        if request.content_type.startswith("multipart/"):
            raise UnsupportedMediaType(f"content-type: expected application/json, got {request.content_type}")
        body = await request.read()
        servable = self._manager.get(peek_model(body))
        headers = {name.lower(): value for name, value in request.headers.items()}
        payload = HttpPayload(request.match_info["endpoint"], body, headers)
        async with servable.start(payload) as answer:
            return await send_answer(request, answer)

    async def list_models(self, request: web.Request) -> web.Response:
        listed = [_model(s) for s in self._manager.servables]
        return web.Response(body=models.model_list(listed), content_type="application/json")

    async def get_model(self, request: web.Request) -> web.Response:
        servable = self._manager.get(request.match_info["model"])
        return web.Response(body=models.model(_model(servable)), content_type="application/json")


def _model(servable: Servable) -> models.Model:
    return models.Model(id=servable.name, created=servable.created, max_model_len=servable.max_length)
