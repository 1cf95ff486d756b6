"""GET realtime: a WebSocket between a client and a run of a graph; and short-lived keys for web pages.

The handler checks what a client cannot read an error of after the upgrade, and bounds what it sends. Events
are the graph's business (`calculators/realtime.py`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from ovserve.access import Guard, current_request, presented_key
from ovserve.access.caller import check_site
from ovserve.api.openai.body import decode_struct
from ovserve.api.openai.operation import Operation, doc
from ovserve.errors import InvalidArgument, ModelNotFound, OvserveError, Unauthenticated, for_log, public
from ovserve.http.body import headers_of, json_response, read_small_body
from ovserve.http.middleware import Cors
from ovserve.http.sse import ANSWERED
from ovserve.kinds.payload import HttpPayload
from ovserve.serving.manager import Manager
from ovserve.serving.servable import GraphResponse, Servable

ENDPOINT, PROTOCOL = "realtime", "realtime"
MAX_MESSAGE = 16 << 20  # bytes: base64 of 12 MiB
SESSION_SECONDS = 3600.0
IDLE_SECONDS = 600.0  # without a message of the client
HEARTBEAT_SECONDS = 20.0  # between pings; a client that does not answer within half of it has gone
SEND_SECONDS = 20.0  # until a client that reads nothing is closed
CHECK_SECONDS = 1.0
CLOSE_SECONDS = 2.0

log = logging.getLogger(__name__)


class ExpiresAfter(msgspec.Struct, frozen=True):
    anchor: Annotated[Literal["created_at"], doc("Where the time begins: when the key is made.")] = (
        "created_at"
    )
    seconds: Annotated[int, msgspec.Meta(ge=10, le=7200), doc("How long the key is valid.")] = 600


class SecretRequest(msgspec.Struct, frozen=True):
    expires_after: Annotated[ExpiresAfter | None, doc("When the key expires: after 600 s by default.")] = None
    session: Annotated[
        dict[str, Any] | None, doc("The configuration of its sessions; `model` names the graph.")
    ] = None


_secret = msgspec.json.Decoder(SecretRequest)


class Secret(msgspec.Struct, frozen=True):
    value: str
    expires_at: int  # Unix seconds
    session: dict[str, Any]


OPERATIONS = (
    Operation(
        "GET",
        "/v3/realtime",
        "Talk to a realtime graph over a WebSocket.",
        also={101: "the connection is a WebSocket now"},
        query={"model": "the graph; optional while one is served", "deployment": "Azure's name of it"},
        of_models=False,
    ),
    Operation(
        "POST",
        "/v3/realtime/client_secrets",
        "Make a short-lived key with which a web page opens realtime sessions.",
        answer=Secret,
        request=SecretRequest,
        example={"session": {"type": "realtime", "model": "assistant"}},
        of_models=False,
    ),
)


class _Close(Exception):
    """Ends a session from the server's side."""

    def __init__(self, code: int, reason: str, error: str = "") -> None:
        super().__init__(reason)
        self.code, self.reason, self.error = code, reason, error


class RealtimeRoutes:
    def __init__(self, manager: Manager, guard: Guard, cors: Cors) -> None:
        self._manager, self._guard, self._cors = manager, guard, cors

    async def connect(self, request: web.Request) -> web.StreamResponse:
        """Upgrade, and run the graph until either side ends the session."""
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise InvalidArgument(f"{request.path} is a WebSocket: connect to it with `Upgrade: websocket`")
        origin = request.headers.get("Origin", "")
        # CORS does not cover WebSockets: without keys any page could talk to the models of this machine.
        if not self._guard.required and not self._cors.names(origin):
            check_site(request.headers)
        session = self._guard.secret_session(presented_key(request.headers))
        name = request.query.get("model") or request.query.get("deployment")  # the latter is Azure's
        servable = self._servable(name or session.get("model"))
        current_request().patience = None  # a time-out of its client is not one of the session
        offered = request.headers.get("Sec-WebSocket-Protocol", "")
        ws = web.WebSocketResponse(
            protocols=(PROTOCOL,) if offered else (),
            max_msg_size=MAX_MESSAGE,
            heartbeat=HEARTBEAT_SECONDS,
            compress=False,  # audio in base64 gains little, and inflating costs time and memory
        )
        if not ws.can_prepare(request).ok:
            raise InvalidArgument("the headers of the WebSocket handshake are not valid")
        async with servable.start(self._handshake(request, servable, session), open_ended=True) as run:
            first = await run.first()
            await ws.prepare(request)
            request[ANSWERED] = ws.status  # however the session ends
            connection = _Connection(ws, run, self._still_valid(request), servable)
            await connection.serve(first.body)
        return ws

    async def create_secret(self, request: web.Request) -> web.Response:
        body = await read_small_body(request)
        options = decode_struct(body or b"{}", _secret)
        session = options.session or {}
        name = session.get("model")
        if name is not None and not isinstance(name, str):
            raise InvalidArgument.at("session.model", "expected a string")
        servable = self._servable(name)
        async with servable.start(self._handshake(request, servable, session), open_ended=True) as run:
            first = await run.first()  # so that what is wrong with the session is an error here
        described = msgspec.json.decode(first.body)["session"]
        seconds = (options.expires_after or ExpiresAfter()).seconds
        bound = {**session, "model": servable.name} if described["type"] == "realtime" else session
        value, expires = self._guard.make_secret(current_request().caller, seconds, bound)
        return json_response(msgspec.json.encode(Secret(value, expires, described)))

    def _servable(self, name: str | None) -> Servable:
        """Raises InvalidArgument without a name, unless one realtime graph is served; ModelNotFound."""
        if name:
            servable = self._manager.get(name)
            if ENDPOINT not in servable.endpoints:
                raise ModelNotFound(f"model {name!r} is not a realtime graph", param="model")
            return servable
        names = [s.name for s in self._manager.usable if ENDPOINT in s.endpoints]
        if len(names) == 1:
            return self._manager.get(names[0])
        listed = ", ".join(names) or "none"
        raise InvalidArgument.at(
            "model", f"required as ?model=NAME, because there is not one realtime graph; served: {listed}"
        )

    def _handshake(self, request: web.Request, servable: Servable, session: dict[str, Any]) -> HttpPayload:
        body = msgspec.json.encode({"model": servable.name, "session": session})
        return HttpPayload(
            ENDPOINT,
            body,
            headers_of(request),
            method="GET",
            path=request.path,
            query=request.rel_url.raw_query_string,
        )

    def _still_valid(self, request: web.Request) -> Any:
        """Return a check that raises Unauthenticated once the caller's key was deleted or has expired.

        A session outlives the short-lived key that began it, and not the key that made this one."""
        key, name = presented_key(request.headers), current_request().caller.name
        if self._guard.is_secret(key):
            return lambda: self._guard.caller_named(name) if name else None
        return lambda: self._guard.caller(key)


class _Connection:
    """One session: a task reads, one writes, one watches the time."""

    def __init__(self, ws: web.WebSocketResponse, run: GraphResponse, check: Any, servable: Servable) -> None:
        self._ws, self._run, self._check, self._servable = ws, run, check, servable
        self._began = self._heard = time.monotonic()

    async def serve(self, first: bytes) -> None:
        await self._ws.send_str(first.decode())
        tasks = [asyncio.create_task(work) for work in (self._read(), self._write(), self._watch())]
        try:
            finished, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in finished:
                task.result()
        except _Close as end:
            if end.error:
                await self._send_error(end.error, end.reason)
            await self._close(end.code, end.reason)
        except OvserveError as error:
            public_error = public(error)
            if public_error is not error:
                log.error("the graph of a session failed: %s", error, exc_info=for_log(error))
            await self._send_error(public_error.code or public_error.kind, str(public_error))
            await self._close(WSCloseCode.INTERNAL_ERROR, "the graph failed")
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self) -> None:
        """Hand on what the client sends, until it leaves. While the graph is busy, nothing more is read."""
        async for message in self._ws:
            self._heard = time.monotonic()
            if message.type is WSMsgType.TEXT:
                data = message.data.encode()
            elif message.type is WSMsgType.BINARY:
                data = message.data
            else:
                return
            await self._run.send(HttpPayload(ENDPOINT, data, method="MESSAGE"))

    async def _write(self) -> None:
        while (data := await self._run.next()) is not None:
            try:
                async with asyncio.timeout(SEND_SECONDS):
                    await self._ws.send_str(data.decode())
            except TimeoutError:
                raise _Close(WSCloseCode.POLICY_VIOLATION, "the client reads too slowly") from None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if self._servable.ended:
                raise _Close(
                    WSCloseCode.GOING_AWAY, "the server stops, or serves another version of the graph"
                )
            now = time.monotonic()
            if now - self._began > SESSION_SECONDS:
                reason = f"the session has reached its maximum duration of {SESSION_SECONDS / 60:g} minutes"
                raise _Close(WSCloseCode.GOING_AWAY, reason, "session_expired")
            if now - self._heard > IDLE_SECONDS:
                reason = f"no message came for {IDLE_SECONDS / 60:g} minutes"
                raise _Close(WSCloseCode.GOING_AWAY, reason, "session_idle")
            try:
                self._check()
            except Unauthenticated as error:
                raise _Close(WSCloseCode.POLICY_VIOLATION, str(error), "invalid_api_key") from None

    async def _send_error(self, code: str, message: str) -> None:
        kind = "invalid_request_error" if code in ("session_expired", "session_idle") else "server_error"
        error = {"type": kind, "code": code, "message": message, "param": None, "event_id": None}
        event = {"type": "error", "event_id": f"event_{time.time_ns():x}", "error": error}
        with suppress(TimeoutError, ConnectionError, RuntimeError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._ws.send_str(msgspec.json.encode(event).decode())

    async def _close(self, code: int, reason: str) -> None:
        with suppress(TimeoutError, ConnectionError, RuntimeError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._ws.close(code=code, message=reason.encode()[:120])
