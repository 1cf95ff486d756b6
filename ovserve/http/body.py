"""A request's JSON body, read and admitted; and a JSON answer made of bytes. Shared by the handlers."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from aiohttp import web

from ovserve.access.guard import CREDENTIALS
from ovserve.api.openai.body import peek_model, peek_stream, refuse_duplicate_keys
from ovserve.calculators.payload import HttpPayload
from ovserve.calculators.response_writer import ignored_header
from ovserve.errors import InvalidArgument, OvserveError, PayloadTooLarge, TooSlow, UnsupportedMediaType
from ovserve.http.transport.limits import LIMITS
from ovserve.http.transport.malformed import check_coding
from ovserve.sandbox.bodies import HERE, Bodies, Head
from ovserve.serving.manager import Manager
from ovserve.serving.servable import Servable
from ovserve.serving.tokens import TokenizeResult

BODIES = web.AppKey("BODIES", Bodies)


class Body(NamedTuple):
    """A body within the bounds, and what is known of it."""

    data: bytes
    head: Head = HERE

    @property
    def model(self) -> str:
        """The model it names. Raises InvalidArgument."""
        return self.head.model or peek_model(self.data)

    @property
    def streams(self) -> bool:
        """Whether it asks for a stream."""
        return self.head.stream if self.head.large else peek_stream(self.data)


async def read_body(request: web.Request) -> Body:
    """Raises InvalidArgument for a body past a bound."""
    data = await read_bytes(request)
    return Body(data, await request.app[BODIES].admit(data))


async def read_small_body(request: web.Request) -> bytes:
    """A body of which there is no use for a large one. Raises PayloadTooLarge."""
    body = await read_body(request)
    if body.head.large:
        raise PayloadTooLarge(f"{request.path} takes a few values, got {len(body.data)} bytes of JSON")
    return body.data


async def read_bytes(request: web.Request) -> bytes:
    # curl -d without a header calls any body a form, and many clients send no type: only what cannot be JSON
    # is refused.
    if request.content_type.startswith("multipart/"):
        raise UnsupportedMediaType(f"content-type: expected application/json, got {request.content_type}")
    check_coding(coding := request.headers.get("content-encoding", ""))
    seconds = request.app[LIMITS].read_seconds
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except TimeoutError:
        raise TooSlow(f"the body did not arrive within {seconds:g} s") from None
    except web.RequestPayloadError as exc:
        what = f"it is not valid {coding}" if coding else str(exc)
        raise InvalidArgument(f"the body cannot be read: {what}") from exc


def servable_of(manager: Manager, body: Body) -> Servable:
    """The one that `model` names. A body that names two is a 400, whether or not the last one is served."""
    name = body.model
    try:
        return manager.get(name)
    except OvserveError:
        if not body.head.large:
            refuse_duplicate_keys(body.data)
        raise


def payload_of(request: web.Request, endpoint: str, body: Body) -> HttpPayload:
    """Without the headers that hold keys: a calculator may be anybody's, and show what it gets."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    kept = {n: v for n, v in headers.items() if n not in CREDENTIALS}
    return HttpPayload(endpoint, body.data, kept, body.head)


def json_response(told: TokenizeResult) -> web.Response:
    headers = ignored_header(told.ignored)
    return web.Response(body=told.body, content_type="application/json", headers=headers)
