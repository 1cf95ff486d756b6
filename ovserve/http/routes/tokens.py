"""tokenize, detokenize and tokenizer_info, under every prefix and where lm-eval looks for them.

They run no graph: a servable answers them itself. `model` may be left out when one is served.
"""

from __future__ import annotations

from aiohttp import web

from ovserve.http.body import json_response, only_servable_of, read_body
from ovserve.serving.manager import Manager
from ovserve.serving.tokens import tokens_of

# lm-eval takes "/v1/completions" off its base address, and nothing off one that ends in "/v3/completions".
PARENT = "/{parent:(?:(?:chat/)?completions/)?}"


class TokenRoutes:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def tokenize(self, request: web.Request) -> web.Response:
        body = await read_body(request)
        servable = only_servable_of(self._manager, body)
        return json_response(await tokens_of(servable).tokenize(body.data, body.head.large))

    async def detokenize(self, request: web.Request) -> web.Response:
        body = await read_body(request)
        servable = only_servable_of(self._manager, body)
        return json_response(await tokens_of(servable).detokenize(body.data, body.head.large))

    async def info(self, request: web.Request) -> web.Response:
        """GET; `?model=` names one of several."""
        servable = self._manager.only(request.query.get("model"))
        return json_response(tokens_of(servable).info())
