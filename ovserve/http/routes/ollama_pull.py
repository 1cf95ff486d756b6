"""POST /api/pull: fetch a model and serve it, for callers with admin rights.

`ovserve pull` does the work in a process of its own; its lines of progress become the answer's. A client that
leaves ends it, and the next request resumes where it stopped. Only packaged models and ids on the hub can be
named: not paths of this machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from ovserve.access import current_request
from ovserve.api.ollama.body import OfModel, plain_name
from ovserve.api.ollama.writer import LINES
from ovserve.api.openai.body import decode_body
from ovserve.api.openai.common import encode
from ovserve.errors import InvalidArgument, LoadError, OvserveError, public
from ovserve.http.body import read_small_body
from ovserve.http.errors import OLLAMA_STYLE
from ovserve.pull.packaged import MODELS
from ovserve.pull.source import HUB_ID
from ovserve.serving.manager import Manager

END_SECONDS = 5.0
_decoder = msgspec.json.Decoder(OfModel)


class OllamaPull:
    """`repository` is where models go. One is fetched at a time; others wait."""

    def __init__(self, manager: Manager, repository: Path) -> None:
        self._manager, self._repository = manager, repository
        self._one_at_a_time = asyncio.Lock()

    async def pull(self, request: web.Request) -> web.StreamResponse:
        current_request().caller.require_admin()
        options, _ = decode_body(await read_small_body(request), _decoder)
        name = _checked(options.model or options.name)
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
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, start_new_session=True)
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


def _checked(model: str | None) -> str:
    if not model:
        raise InvalidArgument("model: required, but missing", param="model")
    name = plain_name(model)
    if name not in MODELS and (not HUB_ID.fullmatch(name) or Path(name).exists()):
        raise InvalidArgument(
            f"model: expected one of {', '.join(MODELS)} or an id on the hub, got {model!r}", param="model"
        )
    return name
