"""OpenAI's and Anthropic's paths under /v3 and /v1: inference on a graph, the list of models, and
count_tokens, which needs no graph.

Anthropic's client lists models on the same path and is known by its header. Errors are `errors.py`'s by path.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from msgspec import UNSET
from msgspec.structs import replace

from ovserve.api.anthropic.body import model_info, model_page
from ovserve.api.azure import DEPLOYMENT, VALUE, embeddings_for, endpoint_for, info_body, is_azure, mode_of
from ovserve.api.openai.body import shown_value
from ovserve.api.openai.common import Model, ModelList, encode
from ovserve.errors import InvalidArgument, ModelNotFound
from ovserve.http.body import (
    BODIES,
    NO_FILES,
    Body,
    Files,
    json_response,
    payload_of,
    read_body,
    read_bytes,
    servable_of,
)
from ovserve.http.errors import ANTHROPIC_STYLE, API_STYLE, AZURE_STYLE
from ovserve.http.form import FORM, read_form
from ovserve.http.middleware import Handler, is_unserved, wrong_method
from ovserve.http.routes.config import version_status
from ovserve.http.sse import send_answer
from ovserve.kinds.text.resource import ENDPOINTS
from ovserve.sandbox.bodies import UNREAD, Bodies, Head
from ovserve.serving.interface import matches
from ovserve.serving.manager import Manager
from ovserve.serving.servable import Servable
from ovserve.serving.status import ServableStatus, VersionState

# Azure's paths: chat/completions, embeddings and info at the root and below /models, and Azure OpenAI's
# deployments.
#
# What counts as Azure's is in `api/azure.py`; other requests to the same paths are OpenAI's (above).
#
# The graph is, in this order: the one the header azureml-model-deployment names, the only one there is
# (`model` is ignored then, as Azure documents), the one that `model` names.
#
# Embeddings are OpenAI's endpoint behind the rule for fields that Azure's own API does not have.


@asynccontextmanager
async def _shown_values(body: Body, bodies: Bodies) -> AsyncIterator[None]:
    """Add to an error the value of the field that it names."""
    try:
        yield
    except InvalidArgument as exc:
        if exc.param is not None and exc.details is None:
            exc.details = {VALUE: await bodies.run(body.head.large, shown_value, body.data, exc.param)}
        raise


class Azure:
    """`openai` answers what is not Azure's."""

    def __init__(self, manager: Manager, openai: Handler) -> None:
        self._manager = manager
        self._openai = openai

    async def chat(self, request: web.Request) -> web.StreamResponse:
        if request[API_STYLE] is not AZURE_STYLE:
            return await self._openai(request)
        body = await read_body(request)
        async with _shown_values(body, request.app[BODIES]):
            servable = self._servable(request, body)
            return await _answer(request, servable, endpoint_for(request.headers), body)

    async def embed(self, request: web.Request) -> web.StreamResponse:
        if not is_azure(request.path, request.query, request.headers):
            return await self._openai(request)
        body, bodies = await read_body(request), request.app[BODIES]
        async with _shown_values(body, bodies):
            servable = self._servable(request, body)
            mode = mode_of(request.headers)
            with servable.lease():
                data = await bodies.run(body.head.large, embeddings_for, body.data, servable.name, mode)
                named_body = Body(data, body.head._replace(model=servable.name))
                async with servable.start(payload_of(request, "embeddings", named_body)) as answer:
                    return await send_answer(request, answer)

    async def info(self, request: web.Request) -> web.Response:
        servable = self._servable(request, Body(b"{}", Head()))
        embeds = "embeddings" in servable.endpoints
        return json_response(info_body(servable.name, chat=servable.chats, embeds=embeds))

    def info_or(self, other: Handler) -> Handler:
        """`other` answers what is not Azure's."""

        async def handler(request: web.Request) -> web.StreamResponse:
            return await (self.info if request[API_STYLE] is AZURE_STYLE else other)(request)

        return handler

    async def deployed(self, request: web.Request) -> web.StreamResponse:
        """The path names the graph; `model` has no effect, as at Azure."""
        endpoint = request.match_info["endpoint"]
        return await _with_body(self._by_path, request, endpoint, form=_has_form(request, endpoint))

    async def _by_path(
        self, request: web.Request, endpoint: str, body: Body, files: Files = NO_FILES
    ) -> web.StreamResponse:
        servable = self._manager.get(request.match_info["deployment"])
        return await _answer(request, servable, endpoint, body, files)

    def _servable(self, request: web.Request, body: Body) -> Servable:
        deployment = request.headers.get(DEPLOYMENT)
        if deployment is not None:
            return self._manager.get(deployment)
        model = body.optional_model  # a string, also where it is ignored
        return self._manager.only(None if self._manager.single else model)


async def _answer(
    request: web.Request, servable: Servable, endpoint: str, body: Body, files: Files = NO_FILES
) -> web.StreamResponse:
    with servable.lease():
        named_body = await body.naming(servable.name, request.app[BODIES])
        async with servable.start(payload_of(request, endpoint, named_body, files)) as answer:
            return await send_answer(request, answer)


FORMS = ("audio/transcriptions", "audio/translations")  # endpoints whose body is a form
WITH_FILES = ("images/edits",)  # those whose body may be one


def _has_form(request: web.Request, endpoint: str) -> bool:
    return endpoint in FORMS or (endpoint in WITH_FILES and request.content_type == FORM)


async def _with_body(
    answer: Callable[..., Awaitable[web.StreamResponse]], request: web.Request, endpoint: str, *, form: bool
) -> web.StreamResponse:
    """Call `answer` with the request, its endpoint, its body, and its files if it is a form. Raises like
    `read_body` and `read_form`."""
    if not form:
        return await answer(request, endpoint, await read_body(request))
    async with read_form(request) as form_content:
        return await answer(request, endpoint, *form_content)


AVAILABLE = VersionState.AVAILABLE
GONE = (VersionState.UNLOADING, VersionState.END)


class V3:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def infer(self, request: web.Request) -> web.StreamResponse:
        """POST: `model` names the graph, the rest of the body or form is the graph's business."""
        endpoint = request.match_info["endpoint"]
        if not _has_form(request, endpoint):
            return await self._infer(request, endpoint, await read_body(request))
        return await _with_body(self._infer, request, endpoint, form=True)

    def declared_endpoints(self, versions: Sequence[str]) -> Middleware:
        """Serve a request on a path that no route has and that a graph declares. Only the servables of the
        moment know these paths, so they cannot be routes."""

        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            if is_unserved(request.match_info):
                for version in versions:
                    endpoint = request.path.removeprefix(f"{version}/")
                    if endpoint == request.path:
                        continue
                    owners = [s.name for s in self._manager.usable if matches(endpoint, s.open_endpoints)]
                    if owners:
                        return await self._open(request, endpoint, owners)
                    own = endpoint in ENDPOINTS  # has its route, elsewhere than here
                    if request.method == "POST" and not own and self._manager.declares(endpoint):
                        is_form = request.content_type == FORM
                        return await _with_body(self._infer, request, endpoint, form=is_form)
            return await handler(request)

        return middleware

    async def _infer(
        self, request: web.Request, endpoint: str, body: Body, files: Files = NO_FILES
    ) -> web.StreamResponse:
        servable = servable_of(self._manager, body)
        async with servable.start(payload_of(request, endpoint, body, files)) as answer:
            return await send_answer(request, answer)

    async def _open(self, request: web.Request, endpoint: str, owners: list[str]) -> web.StreamResponse:
        """Hand on any request. Several servables with one path are chosen from by `?model=NAME`."""
        name = request.query.get("model", owners[0])
        if name not in owners or (len(owners) > 1 and "model" not in request.query):
            raise InvalidArgument.at(
                "model", f"{request.path} is served by {', '.join(owners)}: choose one by ?model=NAME"
            )
        data = await read_bytes(request, any_type=True)
        async with self._manager.get(name).start(payload_of(request, endpoint, Body(data, UNREAD))) as answer:
            return await send_answer(request, answer)

    async def list_models(self, request: web.Request) -> web.Response:
        listed = self._models()
        if request[API_STYLE] is ANTHROPIC_STYLE:
            return json_response(model_page(listed, request.query))
        return json_response(encode(ModelList(data=listed)))

    async def get_model(self, request: web.Request) -> web.Response:
        path = request.match_info
        name = path.get("model") or path.get("endpoint", "info")  # two names have routes of their own
        cards = {card.id: card for card in self._models()}
        names = {status.name for status in self._manager.statuses()}
        if (target := self._manager.aliases.target(name, lambda: names)) not in cards:
            if "endpoint" in path:
                raise wrong_method(request, {"POST"})
            raise ModelNotFound(f"model {name!r} is not served", param="model")
        card = replace(cards[target], id=name)
        if versions := [s for s in self._manager.statuses(name) if s.plain]:
            states = [msgspec.to_builtins(version_status(s)) for s in versions]
            card = replace(card, model_version_status=states)
        anthropic = request[API_STYLE] is ANTHROPIC_STYLE
        return json_response(model_info(card) if anthropic else encode(card))

    def _models(self) -> list[Model]:
        """List models that can answer first, because some clients take the first one."""
        lengths = {s.name: s.max_length for s in self._manager.servables}
        visible = [s for s in self._manager.usable_statuses if s.state not in GONE]
        # Of several versions the one that answers is shown.
        newest = {s.name: s for s in sorted(visible, key=lambda s: s.state is AVAILABLE)}
        cards = [_model(s, lengths.get(s.name)) for s in newest.values()]
        by_name = {model.id: model for model in cards}
        cards += [replace(by_name[name], id=alias) for alias, name in self._manager.aliases.listed(by_name)]
        parents = {s.name: s.parent for s in self._manager.servables if s.parent}
        cards = [replace(m, parent=parents[m.id]) if m.id in parents else m for m in cards]
        hidden = set()
        for servable in self._manager.servables:
            if servable.name in by_name:
                cards += [
                    replace(by_name[servable.name], id=variant, parent=servable.name)
                    for variant in servable.variants
                    if variant not in by_name
                ]
                if not servable.base_name:
                    hidden.add(servable.name)
        cards = [model for model in cards if model.id not in hidden]
        return sorted(cards, key=lambda model: model.state != "AVAILABLE")


def _model(status: ServableStatus, max_length: int | None) -> Model:
    state = "FAILED" if status.failed else "AVAILABLE" if status.state is AVAILABLE else "LOADING"
    return Model(
        id=status.name,
        created=status.since,
        max_model_len=max_length,
        state=state,
        state_detail=status.state_detail or UNSET,
        reason=status.reason or UNSET,
    )
