"""Ollama's paths: chat and generate on a graph, embeddings translated, and what is served as models.

A model may be named with the tag :latest. Without a prompt, a request only asks whether the model is there.

POST /api/pull fetches a model and serves it, for callers with admin rights. `ovserve pull` does the work in a
process of its own; its lines of progress become the answer's. A client that leaves ends it, and the next
request resumes where it stopped. Only packaged models and ids on the hub can be named: not paths of this
machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from ovserve import __version__
from ovserve.access import current_request
from ovserve.api import LATEST
from ovserve.api.ollama.body import (
    API_VERSION,
    RUNNING,
    Described,
    OfModel,
    Version,
    embeddings_answer,
    embeddings_request,
    processes,
    show_body,
    tags,
)
from ovserve.api.ollama.endpoints import LINES, Chat, Generate, loaded
from ovserve.api.openai.body import decode_body
from ovserve.api.openai.common import encode
from ovserve.children import bound_command
from ovserve.errors import (
    InvalidArgument,
    LoadError,
    ModelNotFound,
    OvserveError,
    UnsupportedParameter,
    public,
)
from ovserve.http.body import (
    BODIES,
    Body,
    headers_of,
    json_of,
    json_response,
    payload_of,
    read_body,
    read_small_body,
)
from ovserve.http.errors import OLLAMA_STYLE
from ovserve.http.sse import send_answer
from ovserve.kinds.payload import HttpPayload, ignored_header
from ovserve.pull.packaged import MODELS
from ovserve.pull.source import HUB_ID
from ovserve.serving.manager import Manager
from ovserve.serving.model_card import EMBEDDINGS, describe
from ovserve.serving.servable import Servable, State

END_SECONDS = 5.0


async def _answer(
    request: web.Request, lines: AsyncIterator[dict[str, Any]], *, stream: bool
) -> web.StreamResponse:
    if not stream:
        return web.json_response([line async for line in lines][-1])
    response = web.StreamResponse(headers={"Content-Type": LINES})
    await response.prepare(request)
    try:
        async for line in lines:
            await response.write(encode(line) + b"\n")
    except OvserveError as error:
        current_request().failure = error
        await response.write(OLLAMA_STYLE.in_stream(public(error)))
    await response.write_eof()
    return response


async def _fetch(name: str, repository: Path) -> AsyncGenerator[dict[str, Any], None]:
    command = [sys.executable, "-m", "ovserve", "pull", name, "--json"]
    command += ["--model_repository_path", str(repository)]
    process = await asyncio.create_subprocess_exec(
        *bound_command(command), stdout=PIPE, stderr=PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.create_task(process.stderr.read())
    digest = "sha256:" + hashlib.sha256(name.encode()).hexdigest()  # shows clients which bar a line moves
    try:
        async for line in process.stdout:
            progress: dict[str, Any] = msgspec.json.decode(line)
            yield progress | ({"digest": digest} if "total" in progress else {})
        if await process.wait():
            text = (await errors).decode("utf-8", "replace").strip()
            raise LoadError(text.removeprefix("ovserve: ") or f"pulling {name} failed")
    finally:
        await _end(process)
        errors.cancel()


async def _end(process: Process) -> None:
    """End it, if a client left; what it has fetched stays."""
    if process.returncode is not None:
        return
    process.terminate()
    with suppress(TimeoutError):
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
            return
    process.kill()


def _checked_name(model: str) -> str:
    name = model.removesuffix(LATEST)
    if name not in MODELS and (not HUB_ID.fullmatch(name) or Path(name).exists()):
        raise InvalidArgument.expected("model", f"one of {', '.join(MODELS)} or an id on the hub", model)
    return name


NO_EMBEDDINGS = b'{"data":[]}'
LARGE_ANSWER = 1 << 20  # bytes of embeddings that are translated in another process
UNLOAD = (0, "0", "0s", "0m")


class _Glance(msgspec.Struct):
    """Fields that are read before decoding. They are Any because the decoder explains wrong types."""

    stream: Any = None
    messages: Any = None
    prompt: Any = None
    images: Any = None
    suffix: Any = None
    keep_alive: Any = None


_glance = msgspec.json.Decoder(_Glance)
_of_model = msgspec.json.Decoder(OfModel)


class Ollama:
    """`repository` is where pulled models go. One is fetched at a time; others wait."""

    def __init__(self, manager: Manager, repository: Path) -> None:
        self._manager, self._repository = manager, repository
        self._one_at_a_time = asyncio.Lock()

    async def pull(self, request: web.Request) -> web.StreamResponse:
        current_request().caller.require_admin()
        options, model = requested_model(await read_small_body(request))
        name = _checked_name(model)
        async with aclosing(self._lines(name)) as lines:  # a client that leaves ends the command
            return await _answer(request, lines, stream=options.stream is not False)

    async def _lines(self, name: str) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the answer's lines. Raises LoadError with what the command said."""
        if not any(s.name == name for s in self._manager.servables):
            async with self._one_at_a_time:
                async with aclosing(_fetch(name, self._repository)) as lines:
                    async for line in lines:
                        yield line
                yield {"status": f"loading {name}"}
                await self._manager.load(name, self._repository / name)
        yield {"status": "success"}

    async def infer(self, request: web.Request) -> web.StreamResponse:
        endpoint, body = f"api/{request.match_info['endpoint']}", await read_body(request)
        servable = self._servable(body.model)
        glance = _read_glance(body)
        if not (glance.messages or glance.prompt or glance.images or glance.suffix):
            if glance.keep_alive in UNLOAD:
                raise UnsupportedParameter.at(
                    "keep_alive",
                    "0 would unload the model for all clients; an operator unloads one "
                    f"with /v2/repository/models/{servable.name}/unload",
                )
            ignored = await request.app[BODIES].run(body.head.large, _checked, body.data, endpoint)
            return json_response(loaded(body.model, chats=endpoint == "api/chat"), ignored_header(ignored))
        body = body._replace(head=body.head._replace(stream=glance.stream is not False))
        async with servable.start(payload_of(request, endpoint, body)) as answer:
            return await send_answer(request, answer)

    async def embed(self, request: web.Request) -> web.Response:
        began, older = time.monotonic_ns(), request.match_info["endpoint"] == "embeddings"
        bodies = request.app[BODIES]
        body = await read_body(request)
        servable = self._servable(body.model)
        if servable.endpoints and EMBEDDINGS not in servable.endpoints:
            raise InvalidArgument(f"model {servable.name!r} makes no embeddings", param="model")
        embed_body, model, ignored = await bodies.run(
            body.head.large, embeddings_request, body.data, servable.name, older
        )
        if not embed_body:
            empty = embeddings_answer(NO_EMBEDDINGS, model, 0, older)
            return json_response(empty, ignored_header(ignored))
        head = await bodies.admit(embed_body)
        payload = HttpPayload(EMBEDDINGS, embed_body, headers_of(request), head)
        async with servable.start(payload) as answer:
            first = await answer.first()
        duration = time.monotonic_ns() - began
        converted = await bodies.run(
            len(first.body) > LARGE_ANSWER, embeddings_answer, first.body, model, duration, older
        )
        return json_response(converted, {**first.headers, **ignored_header(ignored)})

    async def tags(self, request: web.Request) -> web.Response:
        return json_response(tags(await self._described()))

    async def ps(self, request: web.Request) -> web.Response:
        return json_response(processes(await self._described(loaded=True)))

    async def show(self, request: web.Request) -> web.Response:
        _, model = requested_model(await read_small_body(request))
        return json_response(show_body(await describe(self._servable(model))))

    async def root(self, request: web.Request) -> web.Response:
        return web.Response(text=RUNNING)

    async def version(self, request: web.Request) -> web.Response:
        return json_of(Version(API_VERSION, __version__))

    async def _described(self, *, loaded: bool = False) -> list[Described]:
        """Describe what answers; with `loaded`, without what the next request loads."""
        served = [s for s in self._manager.usable if s.state is State.AVAILABLE]
        served = [s for s in served if not loaded or s.residence != "unloaded"]
        return list(await asyncio.gather(*map(describe, served)))

    def _servable(self, model: str) -> Servable:
        """Raises ModelNotFound in Ollama's words."""
        try:
            return self._manager.get(model)
        except ModelNotFound as error:
            # Its clients look for "not found" to offer to pull the model.
            raise ModelNotFound(f"model '{model}' not found: {error}", param="model") from error


def requested_model(body: bytes) -> tuple[OfModel, str]:
    """Return a body of show or pull, and the model that it names. Raises InvalidArgument."""
    fields, _ = decode_body(body, _of_model)
    if not (name := fields.model or fields.name):
        raise InvalidArgument.at("model", "required, but missing")
    return fields, name


def _read_glance(body: Body) -> _Glance:
    try:
        return _glance.decode(body.data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Glance(prompt=True)  # the decoder says what is wrong


def _checked(body: bytes, endpoint: str) -> tuple[str, ...]:
    """Return what has no effect. Raises what the endpoint raises for the same body with a prompt."""
    return (Chat() if endpoint == Chat.name else Generate()).decode(body).ignored
