"""The common part of all calls under /console/api/: who may make them, the JSON body, the JSON or streamed
answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from ovserve.access import Caller, current_request
from ovserve.access.origin import check_host, check_site
from ovserve.errors import InvalidArgument, UnsupportedMediaType

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
T = TypeVar("T")

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
PING_SECONDS = 15.0  # of silence in a stream


@dataclass(frozen=True)
class Access:
    """The clients that the calls answer. `names` are host names the server listens on."""

    keys_required: Callable[[], bool]
    names: tuple[str, ...] = ()

    def protect(self, handler: Handler, *, admin: bool = False) -> Handler:
        """Return the handler for requests of this server's own pages; with `admin`, for callers with that
        right."""

        async def protected(request: web.Request) -> web.StreamResponse:
            check_site(request.headers)
            if not self.keys_required():
                check_host(request.headers, self.names)
            if admin:
                current_request().caller.require_admin()
            if request.method in ("POST", "PUT") and request.content_type != "application/json":
                raise UnsupportedMediaType(
                    f"content-type: expected application/json, got {request.content_type}"
                )
            return await handler(request)

        return protected


def caller() -> Caller:
    return current_request().caller


async def read(request: web.Request, type_: type[T]) -> T:
    """Return the body as `type_`. Raises InvalidArgument naming the field."""
    try:
        return msgspec.json.decode(await request.read(), type=type_)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise InvalidArgument(f"the body: {exc}") from None


def answer(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json", headers=HEADERS
    )


async def stream(request: web.Request, events: AsyncGenerator[Any]) -> web.StreamResponse:
    """Send each value as a server-sent event until the client leaves. None is sent as a comment."""
    response = web.StreamResponse(headers={**HEADERS, "X-Accel-Buffering": "no"})
    response.content_type = "text/event-stream"
    await response.prepare(request)
    async with aclosing(events):  # what it holds is given back as soon as the client leaves
        async for event in events:
            line = b": ping" if event is None else b"data: " + msgspec.json.encode(event)
            await response.write(line + b"\n\n")
    await response.write_eof()
    return response


async def heard(waiting: Coroutine[Any, Any, None]) -> bool:
    """Wait for it, 15 seconds at most; return whether it came."""
    try:
        async with asyncio.timeout(PING_SECONDS):
            await waiting
    except TimeoutError:
        return False
    return True


def integer(text: str | None, name: str, default: int) -> int:
    """Return a number of the query. Raises InvalidArgument."""
    try:
        return default if text is None else int(json.loads(text))
    except (ValueError, TypeError):
        raise InvalidArgument(f"{name}: expected a number, got {text!r}", param=name) from None
