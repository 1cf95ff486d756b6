"""Malformed HTTP: answered in the API's shape, with an id, and logged as one line.

aiohttp answers such bytes itself, before any middleware: in plain text, and with a traceback in the log,
which anyone without a key can trigger. `build_runner` makes connections of `Protocol` instead.
"""

from __future__ import annotations

import logging
import uuid
from http import HTTPStatus
from typing import Any

from aiohttp import compression_utils, web
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError

from ovserve.errors import INTERNAL_MESSAGE, Internal, InvalidArgument, OvserveError, UnsupportedMediaType
from ovserve.http.errors import OPENAI_STYLE
from ovserve.http.transport.connections import Connection
from ovserve.log import request_id

LONGEST_REASON = 200  # characters

log = logging.getLogger(__name__)


def codings() -> tuple[str, ...]:
    """Return the supported content codings of bodies: two need a package."""
    optional = {"br": "HAS_BROTLI", "zstd": "HAS_ZSTD"}
    return (
        "gzip",
        "deflate",
        *(c for c, flag in optional.items() if getattr(compression_utils, flag, False)),
    )


def unknown_coding(coding: str) -> UnsupportedMediaType:
    return UnsupportedMediaType(
        f"content-encoding: expected one of {', '.join(codings())}, got {coding[:40]!r}"
    )


def check_coding(coding: str) -> None:
    """Raise UnsupportedMediaType for an unsupported coding, or for several."""
    if coding and coding.strip().lower() not in ("", "identity", *codings()):
        raise unknown_coding(coding)


class Protocol(web.RequestHandler):
    """aiohttp's protocol of one connection, with our answers to what it cannot parse."""

    __slots__ = ()

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log nothing: the client's error was reported to it, and is not a fault of the server."""
        if not isinstance(kw.get("exc_info"), web.RequestPayloadError | HttpProcessingError):
            super().log_exception(*args, **kw)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer. The rest of a compressed body is not unpacked only to be dropped, as aiohttp would.

        It does so for `lingering_time`, without a turn of the event loop as long as there is data.
        """
        if isinstance(resp, web.HTTPExpectationFailed):  # raised before any middleware
            expect = request.headers.get("expect", "")[:LONGEST_REASON]
            resp = self.handle_error(request, 400, message=f"expect: expected 100-continue, got {expect!r}")
        finished = await super().finish_response(request, resp, start_time)
        if not request.content.is_eof() and request.headers.get("content-encoding"):
            connection = self.transport.get_protocol() if self.transport is not None else None
            if isinstance(connection, Connection):
                await connection.drop_rest()
            self.force_close()
        return finished

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)  # it closes the connection
        id_ = uuid.uuid4().hex
        token = request_id.set(id_)
        try:
            error = _error(status, exc, message)
            if isinstance(error, Internal):
                log.error("a request failed outside of its handler", exc_info=exc)
            else:
                log.info("malformed request from %s: %s", request.remote, error)
            answer = OPENAI_STYLE.answer(error)
        finally:
            request_id.reset(token)
        headers = answer.headers | {"x-request-id": id_, "Server": "ovserve"}
        response = web.Response(
            status=answer.status, body=answer.body, content_type="application/json", headers=headers
        )
        response.force_close()
        return response


def _error(status: int, exc: BaseException | None, message: str | None) -> OvserveError:
    if isinstance(exc, ContentEncodingError):
        return unknown_coding(
            "zstd" if "zstd" in exc.message else "br"
        )  # the only codings that it knows and that may be missing
    if isinstance(exc, HttpProcessingError) or status < HTTPStatus.INTERNAL_SERVER_ERROR:
        reason = " ".join((message or str(exc)).split())[:LONGEST_REASON]
        return InvalidArgument(f"the request is not valid HTTP: {reason}")
    return Internal(INTERNAL_MESSAGE)


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return Protocol(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """An AppRunner that uses our connections."""

    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.__class__ = _Server  # aiohttp has no option for the class of its protocols
        return server
