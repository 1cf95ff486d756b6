"""A request's JSON body as bytes, and a JSON answer made of bytes; shared by the handlers."""

from __future__ import annotations

import asyncio

from aiohttp import web

from ovserve.access.guard import CREDENTIALS
from ovserve.calculators.payload import HttpPayload
from ovserve.calculators.response_writer import ignored_header
from ovserve.errors import OvserveError, TooSlow, UnsupportedMediaType
from ovserve.openai.body import peek_model, refuse_duplicate_keys
from ovserve.rest.limits import LIMITS
from ovserve.serving.manager import Manager
from ovserve.serving.servable import Servable
from ovserve.serving.tokens import Told


async def read_body(request: web.Request) -> bytes:
    # curl -d without a header calls any body a form, and many clients send no type: only what cannot be JSON
    # is refused.
    if request.content_type.startswith("multipart/"):
        raise UnsupportedMediaType(f"content-type: expected application/json, got {request.content_type}")
    seconds = request.app[LIMITS].read_seconds
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except TimeoutError:
        raise TooSlow(f"the body did not arrive within {seconds:g} s") from None


def servable_of(manager: Manager, body: bytes) -> Servable:
    """The one that `model` names. A body that names two is a 400, whether or not the last one is served."""
    name = peek_model(body)
    try:
        return manager.get(name)
    except OvserveError:
        refuse_duplicate_keys(body)
        raise


def payload_of(request: web.Request, endpoint: str, body: bytes) -> HttpPayload:
    """Without the headers that hold keys: a calculator may be anybody's, and show what it gets."""
    headers = {name.lower(): value for name, value in request.headers.items()}
    return HttpPayload(endpoint, body, {n: v for n, v in headers.items() if n not in CREDENTIALS})


def json_response(told: Told) -> web.Response:
    headers = ignored_header(told.ignored)
    return web.Response(body=told.body, content_type="application/json", headers=headers)
