"""Azure's paths: chat/completions, embeddings and info at the root and below /models, and Azure OpenAI's
deployments.

What counts as Azure's is in `api/azure.py`; other requests to the same paths are OpenAI's: `v3.py`.

The graph is, in this order: the one the header azureml-model-deployment names, the only one there is (`model`
is ignored then, as Azure documents), the one that `model` names.

Embeddings are OpenAI's endpoint behind the rule for fields that Azure's own API does not have.
"""

from __future__ import annotations

import msgspec
from aiohttp import web

from ovserve.api.azure import DEPLOYMENT, VALUE, ExtraParameter, endpoint_for, info_body, is_azure, mode_of
from ovserve.api.openai.body import decode_fields, shown_value, unique_members
from ovserve.api.openai.common import encode
from ovserve.errors import InvalidArgument
from ovserve.http.body import BODIES, Body, payload_of, read_body
from ovserve.http.errors import API_STYLE, AZURE_STYLE
from ovserve.http.middleware import Handler
from ovserve.http.sse import send_answer
from ovserve.sandbox.bodies import Head
from ovserve.serving.manager import Manager
from ovserve.serving.servable import Servable

# Azure's own, from its API reference; everything else is extra.
FIELDS = frozenset({"model", "input", "dimensions", "encoding_format", "input_type", "user"})


def embeddings_for(body: bytes, model: str, mode: str) -> bytes:
    """Return the body naming `model`, with extra fields handled by `mode` (`api/azure.py`).

    Raises InvalidArgument for one in the mode `error`, and for a body that is not a JSON object.
    """
    unique_members(body)  # the new body shows none that occurs twice
    fields = decode_fields(body)
    extras = sorted(fields.keys() - FIELDS)
    if mode == "error" and extras:
        raise ExtraParameter(
            f"{extras[0]}: not a parameter of this API, and extra-parameters is error", param=extras[0]
        )
    supported = {name: value for name, value in fields.items() if mode != "ignore" or name in FIELDS}
    return encode(supported | {"model": msgspec.Raw(encode(model))})


class Azure:
    """`openai` answers what is not Azure's."""

    def __init__(self, manager: Manager, openai: Handler) -> None:
        self._manager = manager
        self._openai = openai

    async def chat(self, request: web.Request) -> web.StreamResponse:
        if request[API_STYLE] is not AZURE_STYLE:
            return await self._openai(request)
        body, bodies = await read_body(request), request.app[BODIES]
        large = body.head.large
        try:
            servable = self._servable(request, body)
            with servable.lease():
                named_body = await body.naming(servable.name, bodies)
                payload = payload_of(request, endpoint_for(request.headers), named_body)
                async with servable.start(payload) as answer:
                    return await send_answer(request, answer)
        except InvalidArgument as exc:
            if exc.param is not None and exc.details is None:
                exc.details = {VALUE: await bodies.run(large, shown_value, body.data, exc.param)}
            raise

    async def embed(self, request: web.Request) -> web.StreamResponse:
        if not is_azure(request.path, request.query, request.headers):
            return await self._openai(request)
        body, bodies = await read_body(request), request.app[BODIES]
        servable = self._servable(request, body)
        mode = mode_of(request.headers)
        with servable.lease():
            data = await bodies.run(body.head.large, embeddings_for, body.data, servable.name, mode)
            named_body = Body(data, body.head._replace(model=servable.name))
            async with servable.start(payload_of(request, "embeddings", named_body)) as answer:
                return await send_answer(request, answer)

    async def info(self, request: web.Request) -> web.Response:
        servable = self._servable(request, Body(b"{}", Head()))
        return web.Response(
            body=info_body(servable.name, chat=servable.chats, embeds="embeddings" in servable.endpoints),
            content_type="application/json",
        )

    def info_or(self, other: Handler) -> Handler:
        """`other` answers what is not Azure's."""

        async def handler(request: web.Request) -> web.StreamResponse:
            return await (self.info if request[API_STYLE] is AZURE_STYLE else other)(request)

        return handler

    async def deployed(self, request: web.Request) -> web.StreamResponse:
        """The path names the graph; `model` has no effect, as at Azure."""
        body, bodies = await read_body(request), request.app[BODIES]
        servable = self._manager.get(request.match_info["deployment"])
        with servable.lease():
            named_body = await body.naming(servable.name, bodies)
            payload = payload_of(request, request.match_info["endpoint"], named_body)
            async with servable.start(payload) as answer:
                return await send_answer(request, answer)

    def _servable(self, request: web.Request, body: Body) -> Servable:
        deployment = request.headers.get(DEPLOYMENT)
        if deployment is not None:
            return self._manager.get(deployment)
        model = body.optional_model  # a string, also where it is ignored
        return self._manager.only(None if self._manager.single else model)
