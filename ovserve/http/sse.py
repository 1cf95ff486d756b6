"""Send a response: one JSON body, or a stream of server-sent events, with comments while it is silent.

Headers wait for the first packet, so that a rejected request gets its proper status. Once a response has
begun, an error is an event: `data: {"error": ...}` or the API style's own, and the stream ends without
[DONE]. In an answer of bytes, such as audio, an error can only end the connection before the body is
complete.

Proxies, load balancers and clients take a connection that says nothing for dead. So after `ping_seconds` of
silence, and only then, a comment goes out, which every reader of server-sent events skips. That begins the
answer, also before its first piece (a request that waits for room, a long prompt): from then on the status
is 200. The cost is one timer per stream that looks at the clock every `ping_seconds`, none per piece.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from aiohttp import ClientConnectionResetError, web
from aiohttp.http import StreamWriter

from ovserve.access import current_request
from ovserve.errors import OvserveError, for_log, public
from ovserve.http.connections import LIMITS
from ovserve.http.errors import API_STYLE
from ovserve.kinds.payload import HttpResponse
from ovserve.log import request_id
from ovserve.serving.servable import GraphResponse

log = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"
PING = b": ping\n\n"
MOST_UNSENT = 1 << 16  # bytes of one answer that wait for its client; the event loop's own limit too
# Bytes that a piece counts for besides its own, so that small ones do not fill a turn with work.
PIECE_COST_BYTES = 512
# In the request: the status of a stream that is written to its end.
ANSWERED = web.RequestKey("ANSWERED", int)


def as_event(body: bytes) -> bytes:
    """A whole answer, for a stream that a ping has begun."""
    return b"data: " + body + b"\n\n"


class _Response(web.StreamResponse):
    """Its head waits for the first piece, which `EventStream` has at hand: one system call for both."""

    _send_headers_immediately = False  # as aiohttp's own Response has it

    def room(self) -> int:
        """Return how many bytes more may be written without waiting; 0 if the connection is closed."""
        assert self._payload_writer is not None, "prepare() comes first"
        transport = self._payload_writer.transport
        if transport is None or transport.is_closing():
            return 0
        return MOST_UNSENT - transport.get_write_buffer_size()

    def write_now(self, piece: bytes) -> None:
        """Write without waiting for the client. Raises ConnectionError if the connection is closed."""
        assert isinstance(self._payload_writer, StreamWriter), "aiohttp's own, over a socket"
        with suppress(StopIteration):  # a coroutine that does not wait returns at once
            self._payload_writer.write(piece, drain=False).send(None)

    async def drain(self) -> None:
        """Wait until the client has read enough. Raises ConnectionError if the connection is closed."""
        assert self._payload_writer is not None, "prepare() comes first"
        transport = self._payload_writer.transport
        if transport is None or transport.is_closing():
            raise ClientConnectionResetError("the client has closed the connection")
        await self._payload_writer.drain()


class EventStream:
    """`async with EventStream(request, headers, pings=...) as stream`, then `begin`, `put` or `write`, and
    `end`."""

    def __init__(
        self, request: web.Request, headers: Mapping[str, str], *, pings: bool, early: bool = True
    ) -> None:
        """`early`: a ping may begin the answer, because it will be events, or an event."""
        self._request = request
        self._early = headers  # what is known before the answer is
        self._later = request.app[LIMITS].ping_seconds if pings else 0.0
        self._seconds = self._later if early else 0.0
        self._loop = asyncio.get_running_loop()
        self._response: _Response | None = None
        self._pieces: list[bytes] = []  # to be written at the end of this turn of the event loop
        self._room = 0
        self._last = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EventStream:
        self._look_again(self._seconds)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._flush()  # also after an error: what has begun must not be followed by another answer
        self._stop_pings()
        if self._ping is not None:
            await asyncio.wait({self._ping})

    @property
    def begun(self) -> bool:
        """The status has gone out, or is about to."""
        return self._response is not None

    @property
    def takes_events(self) -> bool:
        """Return whether text may be added to what has begun: it is not audio or another form of bytes."""
        return self._response is None or not self._response.content_type.startswith("audio/")

    async def begin(
        self, headers: Mapping[str, str], content_type: str = EVENT_STREAM, status: int = 200
    ) -> None:
        """Send the status and the headers, unless a ping has."""
        if self._ping is not None:
            await asyncio.wait({self._ping})
        if self._response is None:
            await self._prepare(headers, content_type, status)

    async def write(self, piece: bytes) -> None:
        assert self._response is not None, "begin() comes first"
        await self._response.write(self._take_pieces() + piece)
        self._last = self._loop.time()

    def put(self, piece: bytes) -> bool:
        """Write a piece soon; return False if `drain` has to be called before the next.

        All that one turn of the event loop puts is written after it. So a step of many streams wakes a client
        of theirs once, and the streams' own code runs without a system call in between.
        """
        if not self._pieces:
            assert self._response is not None, "begin() comes first"
            self._room = self._response.room()
            self._loop.call_soon(self._flush)
        self._pieces.append(piece)
        self._room -= len(piece) + PIECE_COST_BYTES
        return self._room > 0

    async def drain(self) -> None:
        """Write what was put, and wait until the client has read enough of it. Raises ConnectionError."""
        assert self._response is not None, "begin() comes first"
        self._flush()
        await self._response.drain()

    async def end(self) -> web.StreamResponse:
        assert self._response is not None, "begin() comes first"
        self._stop_pings()  # one that came while this waits for the client would follow the end of the body
        self._request[ANSWERED] = self._response.status
        await self._response.write_eof(self._take_pieces())
        return self._response

    def abort(self) -> web.StreamResponse:
        """End the connection in the middle of the body, so that the client knows that a part is missing."""
        assert self._response is not None, "begin() comes first"
        self._pieces.clear()
        if self._request.transport is not None:
            self._request.transport.abort()
        return self._response

    async def _prepare(self, headers: Mapping[str, str], content_type: str, status: int = 200) -> None:
        self._response = response = _Response(
            headers={**headers, "Content-Type": content_type}, status=status
        )
        if content_type == EVENT_STREAM:
            response.headers["Cache-Control"] = "no-cache"
            response.headers["X-Accel-Buffering"] = "no"  # else nginx keeps events back
            if not self._seconds:
                self._seconds = self._later
                self._look_again(self._seconds)
        else:
            self._seconds = 0.0  # a comment would be a piece of something else
        await response.prepare(self._request)

    def _flush(self) -> None:
        if not self._pieces:
            return  # they went with something else
        assert self._response is not None, "begin() comes first"
        with suppress(ConnectionError):  # the handler is cancelled, or learns it from `drain`
            self._response.write_now(self._take_pieces())
        self._last = self._loop.time()

    def _take_pieces(self) -> bytes:
        pieces = self._pieces
        if not pieces:
            return b""
        joined = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        return joined

    def _look_again(self, seconds: float) -> None:
        if self._seconds:
            self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        remaining = self._last + self._seconds - self._loop.time()
        if remaining > 0:
            self._look_again(remaining)
        elif self._response is not None and self._response.room() < MOST_UNSENT:
            self._look_again(self._seconds)  # the client is silent; a ping would look as if it had read
        else:
            self._ping = self._loop.create_task(self._send_ping())

    def _stop_pings(self) -> None:
        self._seconds = 0.0
        if self._timer is not None:
            self._timer.cancel()
        if self._ping is not None:
            self._ping.cancel()

    async def _send_ping(self) -> None:
        try:
            if self._response is None:
                await self._prepare(self._early, EVENT_STREAM)
            await self.write(PING)
        except ConnectionError:
            return  # the handler notices by itself
        self._look_again(self._seconds)


async def send_answer(request: web.Request, answer: GraphResponse) -> web.StreamResponse:
    style = request[API_STYLE]
    ids = dict.fromkeys(style.id_headers, request_id.get())
    first = None
    if not answer.streams and not (first := await answer.first()).more:
        return _whole(first, ids)  # nothing could begin it earlier
    async with EventStream(request, ids, pings=style.pings, early=answer.streams) as stream:
        try:
            first = first or await answer.first()
            if not first.more and not stream.begun:
                return _whole(first, ids)
            size = {} if first.size is None else {"Content-Length": str(first.size)}
            await stream.begin({**first.headers, **ids, **size}, first.content_type, first.status)
            stream.put(first.body if first.more else as_event(first.body))
            while first.more and await answer.pour(stream.put):
                await stream.drain()
        except OvserveError as exc:
            if not stream.begun:
                raise
            current_request().failure = exc
            ours = exc.kind == "internal"
            log.log(
                logging.ERROR if ours else logging.WARNING,
                "the stream ended: %s",
                exc,
                exc_info=for_log(exc) if ours else None,
            )
            if stream.begun and not stream.takes_events:
                return stream.abort()
            await stream.begin(ids, EVENT_STREAM)
            await stream.write(style.in_stream(public(exc)))
        return await stream.end()


def _whole(answer: HttpResponse, ids: Mapping[str, str]) -> web.Response:
    headers = {**answer.headers, **ids, "Content-Type": answer.content_type}
    return web.Response(body=answer.body, status=answer.status, headers=headers)
