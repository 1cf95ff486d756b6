"""OpenAI's paths under /v3 and /v1: inference on a graph, and the list of models."""

from __future__ import annotations

from aiohttp import web
from msgspec import UNSET

from ovserve.access import current_call
from ovserve.openai import models
from ovserve.openai.body import peek_model
from ovserve.rest.body import payload_of, read_body
from ovserve.rest.stream import send_answer
from ovserve.serving.manager import Manager
from ovserve.serving.servable import Servable


class V3:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def infer(self, request: web.Request) -> web.StreamResponse:
        """POST: `model` names the graph, the rest of the body is the graph's business."""
        body = await read_body(request)
        servable = self._manager.get(peek_model(body))
        async with servable.start(payload_of(request, request.match_info["endpoint"], body)) as answer:
            return await send_answer(request, answer)

    async def list_models(self, request: web.Request) -> web.Response:
        return web.Response(body=models.model_list(self._models()), content_type="application/json")

    async def get_model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        known = next((m for m in self._models() if m.id == name), None) or _model(self._manager.get(name))
        return web.Response(body=models.model(known), content_type="application/json")

    def _models(self) -> list[models.Model]:
        loading = [models.Model(id=n, created=t, state="LOADING") for n, t in self._manager.loading.items()]
        known = [_model(s) for s in self._manager.servables] + loading
        caller = current_call().caller
        return [m for m in known if caller.may_use(m.id)]


def _model(servable: Servable) -> models.Model:
    return models.Model(
        id=servable.name,
        created=servable.created,
        max_model_len=servable.max_length,
        state=servable.state.value,
        reason=servable.reason or UNSET,
    )
