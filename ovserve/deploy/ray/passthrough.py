"""The ASGI application of a replica: requests pass to the server process, and its answers back, unchanged.

A client that leaves cancels its request. If the server process ends, answers that have begun end with one
error, and the other requests go to another replica. The session of a request is the key by which it is sent
to the replica that has its prefix cached.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol
from urllib.parse import parse_qsl, quote

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from ovserve.errors import EngineDead, OvserveError, Unavailable
from ovserve.http.errors import ApiStyle, ErrorResponse, style_of

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

# Of one connection only (RFC 9110, 7.6.1); what the outer server adds itself; and what it has answered.
NOT_FORWARDED = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"transfer-encoding", b"upgrade")
)
ADDED_OUTSIDE = frozenset((b"date", b"server", b"x-request-id"))
STREAMED = (b"text/event-stream", b"application/x-ndjson")
ENDED = "the server process of this replica has ended"
SESSION_MESSAGES = 2  # messages: mostly the system's and the first of the user's, which no later turn changes
HEAD_BYTES = 4096  # of a body that was cut or is not an object
AUTOMATIC = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class Request(NamedTuple):
    """The head of a request. `target` is the encoded path with its query."""

    method: str
    target: str
    headers: Headers

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def fields(self) -> CIMultiDict[str]:
        return CIMultiDict((k.decode("latin-1"), v.decode("latin-1")) for k, v in self.headers)

    def error(self, error: OvserveError) -> ErrorResponse:
        """Return an error in the form of the API that the path belongs to."""
        return self._style.answer(error)

    def event(self, error: OvserveError) -> bytes:
        """Return the last event of a stream that fails."""
        return self._style.in_stream(error)

    @property
    def _style(self) -> ApiStyle:
        query = dict(parse_qsl(self.target.partition("?")[2]))
        return style_of(self.path, query, self.fields)


class Head(NamedTuple):
    status: int
    headers: Headers


Answer = AsyncIterator[Head | bytes]  # a head, then the body


class Upstream:
    """The server process, over its socket."""

    def __init__(self, socket: str) -> None:
        connector = aiohttp.UnixConnector(socket, limit=0, keepalive_timeout=5.0)
        timeout = aiohttp.ClientTimeout(total=None, connect=10.0)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)

    async def open(self, request: Request, body: Any) -> aiohttp.ClientResponse:
        """Send a request. Raises aiohttp.ClientError or OSError if the server process is not there."""
        headers = CIMultiDict(
            (k.decode("latin-1"), v.decode("latin-1"))
            for k, v in request.headers
            if k not in NOT_FORWARDED and k != b"expect"
        )
        url = URL(f"http://localhost{request.target}", encoded=True)
        return await self._session.request(
            request.method,
            url,
            headers=headers,
            data=body,
            skip_auto_headers=AUTOMATIC,
            allow_redirects=False,
        )

    async def fetch(self, method: str, target: str, headers: Headers | None = None) -> tuple[int, bytes]:
        """Return the status and the whole body. Raises as `open`."""
        response = await self.open(Request(method, target, headers or []), None)
        async with response:
            return response.status, await response.read()

    async def close(self) -> None:
        await self._session.close()


class Handled(NamedTuple):
    """An answer that does not come from the server process."""

    status: int
    headers: dict[str, str]
    body: bytes


class Desk(Protocol):
    """The replica, which answers some requests itself and knows the other replicas."""

    async def handle(self, request: Request) -> Handled | None:
        """Return an answer for paths that concern all replicas, None for others."""

    def elsewhere(self, request: Request, body: bytes) -> Answer:
        """Send a request to another replica. Raises Unavailable if there is none."""


class Body:
    """The body of a request; it is kept to the end of the answer: another replica may need it."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._chunks: list[bytes] = []
        self._complete = asyncio.Event()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        while not self._complete.is_set():
            if chunk := await self._next():
                yield chunk

    async def first(self) -> bytes | None:
        """Return the body if it is complete after one message; it mostly is."""
        chunk = await self._next()
        return chunk if self._complete.is_set() else None

    async def whole(self) -> bytes:
        async for _ in self.chunks():
            pass
        return b"".join(self._chunks)

    async def from_start(self) -> AsyncGenerator[bytes, None]:
        for chunk in list(self._chunks):
            yield chunk
        async for chunk in self.chunks():
            yield chunk

    async def disconnected(self) -> None:
        await self._complete.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _next(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        chunk: bytes = message.get("body", b"")
        self._chunks.append(chunk)
        if not message.get("more_body", False):
            self._complete.set()
        return chunk


class ClientLeft(Exception):
    """The client left before its request was complete."""


class Passthrough:
    def __init__(self, upstream: Upstream, desk: Desk) -> None:
        self._upstream, self._desk = upstream, desk
        self._running = self._begun = 0  # requests

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})
        else:
            self._running += 1
            self._begun += 1
            try:
                await self._until_gone(_request(scope), Body(receive), send)
            finally:
                self._running -= 1

    async def idle(self, seconds: float) -> None:
        """Wait until no request has come or run for some seconds."""
        previous = (-1, 0)
        while previous != (self._begun, 0):
            previous = (self._begun, self._running)
            await asyncio.sleep(seconds)

    async def _until_gone(self, request: Request, body: Body, send: Send) -> None:
        """Answer, unless the client leaves first."""
        work = asyncio.ensure_future(self._answer(request, body, send))
        gone = asyncio.ensure_future(body.disconnected())
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            if not work.done():
                work.cancel()
            with suppress(asyncio.CancelledError, ClientLeft):
                await work

    async def _answer(self, request: Request, body: Body, send: Send) -> None:
        if (handled := await self._desk.handle(request)) is not None:
            await body.whole()
            await _whole(send, handled)
            return
        first = await body.first()
        data = (first or None) if first is not None else body.from_start()
        try:
            response = await self._upstream.open(request, data)
        except (aiohttp.ClientError, OSError):
            await self._elsewhere(request, await body.whole(), send)
            return
        async with response:
            head = Head(response.status, _outward(response.raw_headers))
            await _send(request, head, response.content.iter_any(), send)

    async def _elsewhere(self, request: Request, body: bytes, send: Send) -> None:
        answer = self._desk.elsewhere(request, body)
        try:
            head = await anext(answer)
        except StopAsyncIteration:  # it has ended as well
            await _whole(send, Handled(*request.error(Unavailable(ENDED, retry_after=1.0))))
            return
        except OvserveError as error:
            await _whole(send, Handled(*request.error(error)))
            return
        assert isinstance(head, Head)
        await _send(request, head, answer, send)


async def _send(request: Request, head: Head, chunks: AsyncIterator[Any], send: Send) -> None:
    await send({"type": "http.response.start", "status": head.status, "headers": head.headers})
    try:
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except (aiohttp.ClientError, OSError, OvserveError):
        if not dict(head.headers).get(b"content-type", b"").startswith(STREAMED):
            raise  # the client sees a body that is shorter than announced
        last = request.event(EngineDead("the server process ended during this request"))
        await send({"type": "http.response.body", "body": last, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _whole(send: Send, answer: Handled) -> None:
    headers = {"Content-Type": "application/json", **answer.headers, "Content-Length": str(len(answer.body))}
    head = [(k.lower().encode("latin-1"), v.encode("latin-1")) for k, v in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": head})
    await send({"type": "http.response.body", "body": answer.body, "more_body": False})


async def relay(upstream: Upstream, request: Request, body: bytes) -> Answer:
    """Yield the answer of this replica's server to a request of another replica. Raises Unavailable."""
    try:
        response = await upstream.open(request, body or None)
    except (aiohttp.ClientError, OSError) as error:
        raise Unavailable(ENDED, retry_after=1.0) from error
    async with response:
        yield Head(response.status, _outward(response.raw_headers))
        async for chunk in response.content.iter_any():
            yield chunk


def _outward(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    lower = ((name.lower(), value) for name, value in headers)
    return [(n, v) for n, v in lower if n not in NOT_FORWARDED and n not in ADDED_OUTSIDE]


def _request(scope: Message) -> Request:
    path = scope.get("raw_path") or quote(scope["path"], safe="/%:@!$&'()*+,;=~-._").encode()
    prefix = quote(scope.get("root_path") or "").encode()
    path = path.partition(b"?")[0]
    if prefix and prefix != b"/" and path.startswith(prefix):
        path = path[len(prefix) :] or b"/"
    query = scope.get("query_string") or b""
    target = (path + (b"?" + query if query else b"")).decode("latin-1")
    return Request(scope["method"], target, [(bytes(k).lower(), bytes(v)) for k, v in scope["headers"]])


async def lifespan(receive: Receive, send: Send) -> None:
    """Answer the events of an ASGI application that has nothing to do at its start and its end."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


class _Body(msgspec.Struct):
    """The fields that a conversation begins with, in the APIs of OpenAI, Anthropic and Ollama. Values stay as
    they are written, so that a long body is only scanned."""

    model: msgspec.Raw = msgspec.Raw()
    system: msgspec.Raw = msgspec.Raw()
    instructions: msgspec.Raw = msgspec.Raw()
    messages: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    previous_response_id: msgspec.Raw = msgspec.Raw()


def session_of(body: bytes) -> str:
    """Return a key that all turns of a conversation have in common, "" for an empty body.

    Works for any bytes: the beginning of a body that is not a JSON object is its key.
    """
    if not body:
        return ""
    try:
        decoded = msgspec.json.decode(body, type=_Body)
        first = _first(decoded.messages) or _first(decoded.input)
    except msgspec.DecodeError:
        return _digest(body[:HEAD_BYTES])
    parts = (decoded.model, decoded.system, decoded.instructions, *first, bytes(decoded.prompt)[:HEAD_BYTES])
    return _digest(b"\0".join(map(bytes, parts)))


def _first(value: msgspec.Raw) -> tuple[bytes, ...]:
    raw = bytes(value)
    if not raw.startswith(b"["):
        return (raw[:HEAD_BYTES],) if raw else ()
    return tuple(bytes(item) for item in msgspec.json.decode(raw, type=list[msgspec.Raw])[:SESSION_MESSAGES])


def _digest(text: bytes) -> str:
    return hashlib.blake2b(text, digest_size=12).hexdigest()
