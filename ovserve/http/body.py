"""A request's JSON body, read and admitted; and a JSON answer made of bytes. Shared by the handlers."""

from __future__ import annotations

import asyncio
import codecs
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from types import MappingProxyType
from typing import Any, NamedTuple

from aiohttp import web

from ovserve.access.keys import CREDENTIALS
from ovserve.api.openai.body import peek_model, peek_optional_model, unique_members, with_model
from ovserve.api.openai.common import encode, with_whole_characters
from ovserve.errors import InvalidArgument, OvserveError, PayloadTooLarge, TooSlow, UnsupportedMediaType
from ovserve.http.connections import LIMITS
from ovserve.kinds.payload import HttpPayload, UploadedFile, report_headers
from ovserve.sandbox.bodies import Bodies, Head
from ovserve.serving.manager import Manager
from ovserve.serving.servable import Servable
from ovserve.serving.tokens import TokenizeResult

BODIES = web.AppKey("BODIES", Bodies)
MARKS = {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16", codecs.BOM_UTF32_BE: "UTF-32"}
SEARCH_BYTES = 1 << 20  # of a body, in one turn of the event loop
UNPACK_CHUNK = 256 * 1024  # bytes of a body that are unpacked at once: about a millisecond
PACKED_CHUNK = 16 * 1024  # packed bytes of one step: at each end of a gzip member the rest of them is copied
STEP_COST = 1024  # bytes that could be unpacked in the time that a step takes besides
# The codings of bodies (RFC 9110, 8.4.1), with the number that zlib has for each.
_GZIP, _DEFLATE = zlib.MAX_WBITS + 16, zlib.MAX_WBITS
LEFT_OUT = frozenset((*CREDENTIALS, "content-encoding"))  # headers that no graph sees
CODINGS = {"gzip": _GZIP, "deflate": _DEFLATE, "x-gzip": _GZIP}


class Body(NamedTuple):
    """A body within the bounds, and its head."""

    data: bytes
    head: Head

    @property
    def model(self) -> str:
        """The model it names. Raises InvalidArgument."""
        return peek_model(self.data) if self.head.model is None else self.head.model

    @property
    def optional_model(self) -> str | None:
        """The model it names, if any. Raises InvalidArgument for one that is not a string."""
        if self.head.model is None and not self.head.large:
            return peek_optional_model(self.data)
        return self.head.model

    async def naming(self, model: str, bodies: Bodies) -> Body:
        """The body naming `model`, whatever it named before. Raises InvalidArgument."""
        if self.head.model == model:
            return self
        data = await bodies.run(self.head.large, with_model, self.data, model)
        return Body(data, self.head._replace(model=model))


async def read_body(request: web.Request) -> Body:
    """Raises InvalidArgument for a body past a bound."""
    data = without_mark(await read_bytes(request))
    bodies = request.app[BODIES]
    large = len(data) > UNPACK_CHUNK
    if await has_surrogates(data) if large else b"\\ud" in data or b"\\uD" in data:
        data = await bodies.run(large, with_whole_characters, data)
    return Body(data, await bodies.admit(data))


async def has_surrogates(data: bytes) -> bool:
    """Return whether a large body has escaped surrogates. Each MB takes milliseconds, so other requests have
    their turns in between."""
    for at in range(0, len(data), SEARCH_BYTES):
        end = at + SEARCH_BYTES + 2  # an escape may stand across the border
        if data.find(b"\\ud", at, end) >= 0 or data.find(b"\\uD", at, end) >= 0:
            return True
        await asyncio.sleep(0)
    return False


def without_mark(data: bytes) -> bytes:
    """Return JSON without the byte order mark that some editors and PowerShell put before it.

    Raises InvalidArgument for the mark of another encoding: JSON is exchanged in UTF-8.
    """
    for mark, encoding in MARKS.items():
        if data.startswith(mark):
            raise InvalidArgument(f"the body is not UTF-8: it begins with the byte order mark of {encoding}")
    return data.removeprefix(codecs.BOM_UTF8)


async def read_small_body(request: web.Request) -> bytes:
    """Read a body that is never large. Raises PayloadTooLarge."""
    body = await read_body(request)
    if body.head.large:
        raise PayloadTooLarge(f"{request.path} takes a few values, got {len(body.data)} bytes of JSON")
    return body.data


async def read_bytes(request: web.Request, *, any_type: bool = False) -> bytes:
    # curl -d without a header calls any body a form, and many clients send no type: only what cannot be JSON
    # is rejected.
    if request.content_type.startswith("multipart/") and not any_type:
        raise UnsupportedMediaType(f"content-type: expected application/json, got {request.content_type}")
    if (arrived := _arrived(request)) is not None:
        return arrived
    most = request.client_max_size
    async with body_time(request.app[LIMITS].read_seconds):
        return b"".join([piece async for piece in content_of(request, most)])


@asynccontextmanager
async def body_time(seconds: float) -> AsyncIterator[None]:
    """Raises TooSlow when the time is over, and InvalidArgument for a body that cannot be read."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TooSlow(f"the body did not arrive within {seconds:g} s") from None
    except web.RequestPayloadError as exc:
        raise InvalidArgument(f"the body cannot be read: {exc}") from exc


def _arrived(request: web.Request) -> bytes | None:
    """Return a small body that came with its head, which needs no timer; else None."""
    content = request.content
    if not content.is_eof() or content.exception() is not None or content.total_bytes > UNPACK_CHUNK:
        return None
    if content.total_bytes > request.client_max_size or "content-encoding" in request.headers:
        return None
    return content.read_nowait()


async def content_of(request: web.Request, most: int) -> AsyncGenerator[bytes]:
    """Yield the body in pieces, unpacked. Other requests have their turns in between.

    Raises UnsupportedMediaType, InvalidArgument for what is not of its coding, and
    HTTPRequestEntityTooLarge as soon as there are more than `most` bytes, packed or not."""
    unpacker = _unpacker(request)
    if (request.content_length or 0) > most:  # before it is sent
        raise web.HTTPRequestEntityTooLarge(most, request.content_length or 0)
    request.content.set_read_chunk_size(UNPACK_CHUNK)
    packed_size = size = since_turn = 0
    while data := await request.content.readany():
        packed_size += len(data)
        for piece in (data,) if unpacker is None else unpacker.pieces(data):
            size += len(piece)
            if max(packed_size, size) > most:
                raise web.HTTPRequestEntityTooLarge(most, max(packed_size, size))
            since_turn += len(piece) + STEP_COST
            if since_turn > UNPACK_CHUNK:
                since_turn = 0
                await asyncio.sleep(0)
            if piece:
                yield piece
    if unpacker is not None:
        unpacker.end()


def _unpacker(request: web.Request) -> Unpacker | None:
    """Raises UnsupportedMediaType for an unsupported coding, or for several."""
    coding = ", ".join(request.headers.getall("content-encoding", ())).strip().lower()
    if coding in ("", "identity"):
        return None
    if coding not in CODINGS:
        raise UnsupportedMediaType(
            f"content-encoding: expected one of {', '.join(CODINGS)}, got {coding[:40]!r}"
        )
    return Unpacker(coding)


class Unpacker:
    """Undoes a coding. What follows the data, or is missing of them, is an InvalidArgument."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._stream: Any = None  # of the member at hand; gzip has one or more
        self._ended = False  # a member

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield what a part of the body unpacks to, at most UNPACK_CHUNK bytes at once."""
        for at in range(0, len(data), PACKED_CHUNK):
            rest, full = data[at : at + PACKED_CHUNK], False
            while rest or full:
                if self._stream is None and not (rest := self._begin(rest)):
                    break
                try:
                    piece = self._stream.decompress(rest, UNPACK_CHUNK)
                except zlib.error as error:
                    raise self._fault(f"is not valid {self._coding}") from error
                rest, full = self._stream.unconsumed_tail, len(piece) == UNPACK_CHUNK
                if self._stream.eof:
                    rest, full, self._stream, self._ended = self._stream.unused_data, False, None, True
                yield piece

    def end(self) -> None:
        if self._stream is not None:
            raise self._fault(f"ends before its {self._coding} data do")

    def _begin(self, data: bytes) -> bytes:
        """Begin a member with these bytes; return them without zeros, with which files are padded."""
        number = CODINGS[self._coding]
        if self._ended and number == _DEFLATE:
            raise self._fault("goes on after its deflate data")
        if self._ended and not (data := data.lstrip(b"\0")):
            return data
        if number == _DEFLATE and data[0] & 15 != zlib.DEFLATED:
            number = -number  # some clients send it without zlib's header
        self._stream = zlib.decompressobj(number)
        return data

    def _fault(self, what: str) -> InvalidArgument:
        return InvalidArgument(f"the body cannot be read: it {what}")


def servable_of(manager: Manager, body: Body, *, only: bool = False) -> Servable:
    """The one that `model` names. A body that names two is a 400, whether or not the last one is served.
    With `only`, it may be left out when one graph is served."""
    name = body.optional_model if only else body.model
    try:
        return manager.only(name) if name is None or only else manager.get(name)
    except OvserveError:
        if not body.head.large:  # a large one is not walked in the event loop
            unique_members(body.data)
        raise


Files = Mapping[str, UploadedFile]
NO_FILES: Files = MappingProxyType({})


def payload_of(request: web.Request, endpoint: str, body: Body, files: Files = NO_FILES) -> HttpPayload:
    return HttpPayload(
        endpoint,
        body.data,
        headers_of(request),
        body.head,
        method=request.method,
        path=request.path,
        query=request.rel_url.raw_query_string,
        files=files,
    )


def headers_of(request: web.Request) -> dict[str, str]:
    """Return the headers without those that hold keys: a third party's calculator may show what it gets.
    And without the coding of the body, which has been undone."""
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        if (lower := name.lower()) not in LEFT_OUT:
            headers[lower] = value
    return headers


def json_response(
    body: bytes, headers: Mapping[str, str] | None = None, status: int = HTTPStatus.OK
) -> web.Response:
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def json_of(value: Any, headers: Mapping[str, str] | None = None) -> web.Response:
    return json_response(encode(value), headers)


def tokens_response(result: TokenizeResult) -> web.Response:
    return json_response(result.body, report_headers(result.ignored, result.adapted))
