"""The connections of the HTTP server: their number, and the time a client may take to send a request.

aiohttp does not limit connections and waits an hour for the first line, so a few thousand connections that
send one byte a minute would block all other clients. Each connection is wrapped: its data goes on to aiohttp,
and a timer runs from the start until `middleware.py` reports that a request has begun. Another timer runs
while a client reads nothing of its answer. Without it a vanished client would hold its request forever, or
its connection after a complete but unread answer.

An idle connection blocks no one: at the limit, the connection that has been idle longest is closed for the
newcomer, as in nginx. Its client opens another one for its next request.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ovserve.errors import INTERNAL_MESSAGE, Internal, InvalidArgument, OvserveError
from ovserve.http.errors import OPENAI_STYLE
from ovserve.http.sockets import LISTEN_BACKLOG, Certificate, Sockets
from ovserve.log import request_id

log = logging.getLogger(__name__)

# Malformed HTTP: answered in the API's shape, with an id, and logged as one line.
#
# aiohttp answers such bytes itself, before any middleware: in plain text, and with a traceback in the log,
# which anyone without a key can trigger. `build_runner` makes connections of `Protocol` instead.


LONGEST_REASON = 200  # characters


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
        if isinstance(resp, web.HTTPExpectationFailed):  # raised before any middleware
            expect = request.headers.get("expect", "")[:LONGEST_REASON]
            resp = self.handle_error(request, 400, message=f"expect: expected 100-continue, got {expect!r}")
        return await super().finish_response(request, resp, start_time)

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
    if isinstance(exc, HttpProcessingError) or status < HTTPStatus.INTERNAL_SERVER_ERROR:
        reason = " ".join((message or str(exc)).split())[:LONGEST_REASON]
        return InvalidArgument(f"the request is not valid HTTP: {reason}")
    return Internal(INTERNAL_MESSAGE)


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return Protocol(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    async def _make_server(self) -> web.Server:
        server = await super()._make_server()
        server.__class__ = _Server  # aiohttp has no option for the class of its protocols
        return server


KEEP_ALIVE_SECONDS = 75.0  # of an idle connection; aiohttp's default of an hour is for servers behind a proxy
LINGER_SECONDS = 1.0  # for a client that still sends a rejected body, to read the error


class RestLimits(msgspec.Struct, frozen=True):
    """Limits. Sizes apply to the data sent, and for a body also to its decompressed form."""

    body_bytes: int
    shutdown_seconds: float  # time for handlers to return during shutdown
    head_bytes: int = 16384  # limit of the request line, and of each header
    read_seconds: float = 60.0  # time for the head of a request, and again for its body
    write_seconds: float = 60.0  # time for a client to read some of its pending data
    connections: int = 1000
    ping_seconds: float = 15.0  # silence before a stream sends a ping; 0: never


LIMITS = web.AppKey("LIMITS", RestLimits)


# after a rejection: what the client still sends is read and dropped
RESTED_SECONDS = 1.0  # after a request, until its answer is certainly sent

_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
)


@dataclass
class Connections:
    """All connections, `most` at the same time.

    Each has `header_seconds` for the head of a request, and `write_seconds` to read a part of its pending
    data.
    """

    most: int
    header_seconds: float
    write_seconds: float = 60.0
    open: int = 0
    refused: int = 0
    unread: int = 0  # closed because their client did not read its answer
    resting: dict[Connection, float] = field(default_factory=dict)  # idle since this time

    def protocol(self, make: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        if self.open >= self.most and not self._make_room():
            if not self.refused:
                log.warning("%d connections are open: rejecting more (--max_connections)", self.open)
            self.refused += 1
            return _Refused()
        return Connection(self, make())

    def _make_room(self) -> bool:
        """Close the connection that has been idle longest."""
        rested = time.monotonic() - RESTED_SECONDS
        for connection, since in self.resting.items():
            if since > rested:
                return False
            if connection.retire():
                return True
        return False


class Connection(asyncio.Protocol):
    def __init__(self, all_: Connections, inner: asyncio.Protocol) -> None:
        self._all = all_
        self._inner = inner
        self._transport: asyncio.Transport | None = None
        self._due: float | None = None  # when the head of a request must be there; None: no matter
        self._clock: asyncio.TimerHandle | None = None  # kept, because requests come faster than it ends
        self._requests = 0  # requests being answered
        self._reading: asyncio.TimerHandle | None = None  # deadline of the client to read
        self._paused = False  # too much data waits for it
        self._counted = False  # counted among the open ones
        self._refused = False  # it came too late: nothing more is read from it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._all.open += 1
        self._counted = True
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass of it
        self._inner.connection_made(transport)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._due = None
        if self._clock is not None:
            self._clock.cancel()
        self._stop_reading()
        self._inner.connection_lost(exc)

    def retire(self) -> bool:
        """Close it, unless something still waits to be sent."""
        if self._transport is None or self._waits():
            return False
        self._leave()
        self._transport.close()
        return True

    def _leave(self) -> None:
        self._all.resting.pop(self, None)
        self._all.open -= self._counted
        self._counted = False

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._all.resting.pop(self, None)
        if not self._requests and self._due is None:
            self._start_clock()  # for the next request on a kept connection
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._paused = True
        self._inner.pause_writing()
        self._stop_reading()
        self._must_read()

    def resume_writing(self) -> None:
        self._paused = False
        self._stop_reading()
        if not self._requests:
            self._must_read()  # for the rest of the data
        self._inner.resume_writing()

    def request_begins(self) -> None:
        """Record that the head of a request has been read."""
        self._requests += 1
        self._all.resting.pop(self, None)
        self._due = None

    def request_ended(self) -> None:
        self._requests -= 1
        if not self._requests and self._due is None and self._counted:
            self._all.resting[self] = time.monotonic()
        if self._reading is None:
            self._must_read()

    def _start_clock(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + self._all.header_seconds
        if self._clock is None:
            self._clock = loop.call_at(self._due, self._look_at_clock)

    def _look_at_clock(self) -> None:
        self._clock = None
        if self._due is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._due:  # of a later request than the timer was made for
            self._clock = loop.call_at(self._due, self._look_at_clock)
        else:
            self._too_late()

    def _must_read(self) -> None:
        loop, waits = asyncio.get_running_loop(), self._waits()
        self._reading = loop.call_later(self._all.write_seconds, self._has_read, waits)

    def _has_read(self, before: int) -> None:
        self._reading = None
        waits = self._waits()
        if not waits or (self._requests and not self._paused):
            return  # nothing to read, or data is still written
        if waits != before:
            self._must_read()
        elif self._transport is not None:
            self._all.unread += 1
            log.warning(
                "a client took nothing of %d bytes in %g s (--write_timeout): its connection is closed",
                waits,
                self._all.write_seconds,
            )
            self._transport.abort()

    def _waits(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _too_late(self) -> None:
        self._due = None
        if self._transport is not None and not self._requests:
            log.info("a connection sent no complete head in %g s", self._all.header_seconds)
            self._refused = True
            self._transport.write(_LATE)
            if not self._transport.can_write_eof():
                self._transport.close()
                return
            # Closed while the client still sends, it would be reset, and the client would not see the 408.
            self._transport.write_eof()
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._transport.close)


class _Refused(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast(asyncio.Transport, transport)
        stream.write(_FULL)
        stream.close()


class Listener:
    """Accepts connections at the server's sockets, with or without TLS.

    It replaces aiohttp's sites, which only accept aiohttp's own protocols; ours are wrapped.
    """

    def __init__(
        self, runner: web.AppRunner, limits: RestLimits, certificate: Certificate | None = None
    ) -> None:
        """`runner` must be set up already."""
        self.connections = Connections(limits.connections, limits.read_seconds, limits.write_seconds)
        self._runner = runner
        self._certificate = certificate
        self._servers: list[asyncio.Server] = []

    async def open(self, sockets: Sockets) -> None:
        """Open them. TLS is for TCP only: the file permissions of a Unix socket control its access."""
        loop = asyncio.get_running_loop()
        context = self._certificate.context if self._certificate else None
        for one in sockets.tcp:
            server = await loop.create_server(self._protocol, sock=one, ssl=context, backlog=LISTEN_BACKLOG)
            self._servers.append(server)
        for one in sockets.unix:
            self._servers.append(
                await loop.create_unix_server(self._protocol, sock=one, backlog=LISTEN_BACKLOG)
            )

    def close(self) -> None:
        """Accept no more connections; open ones stay."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _protocol(self) -> asyncio.Protocol:
        if self._certificate is not None:
            self._certificate.refresh()
        server = self._runner.server
        if server is None:  # it is shutting down
            raise ConnectionAbortedError("the server is stopping")
        return self.connections.protocol(server)
