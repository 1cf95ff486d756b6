"""Middleware of every request: its id, the border where errors become answers, and one line in the log.

The order is fixed in `app.py`. `sse.py` handles errors after a streamed answer has begun; requests that reach
this border have sent nothing yet.

Headers say how long a client waits for an answer: `Prefer: wait=10` is a standard, and the clients of OpenAI
and Anthropic send their read timeout.

Sources: https://www.rfc-editor.org/rfc/rfc7240 and https://github.com/openai/openai-python, read 2026-11-23.

A path that this server does not have gets a 404 that says why, or names the path that was meant. Some are of
the APIs that we speak. Without a row here such a path is unknown, or a 405 where another path's pattern has
its shape. Others are misspelt: a base address with a slash at its end, or with a version that the client adds
as well.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from random import getrandbits

from aiohttp import ClientConnectionResetError, hdrs, web
from aiohttp.typedefs import Middleware
from yarl import URL

from ovserve.access import NOBODY, AccessLog, Guard, RequestContext, calling, current_request, presented_key
from ovserve.access.caller import check_site
from ovserve.errors import (
    INTERNAL_MESSAGE,
    Internal,
    MethodNotAllowed,
    NotFound,
    OvserveError,
    PayloadTooLarge,
    Unauthenticated,
    for_log,
    public,
)
from ovserve.http.connections import Connection
from ovserve.http.errors import API_STYLE, style_of
from ovserve.http.sockets import split
from ovserve.http.sse import ANSWERED
from ovserve.log import request_id
from ovserve.telemetry.metrics import Metrics

log = logging.getLogger(__name__)

# CORS: the origins whose pages may read the server's answers in a browser.
#
# The options are OVMS's, with an effect that browsers accept. Of a list of origins, only the requesting one
# is returned, with `Vary`. `*` for headers returns the requested names, because a bare `*` excludes
# `Authorization`.


ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^/\s,]+")
MAX_AGE = 600  # seconds a browser may remember a preflight
# Headers that scripts may read, in addition to those that are always readable.
EXPOSED = (
    "x-request-id, request-id, retry-after, retry-after-ms, x-should-retry, "
    "inference-header-content-length, x-ovserve-ignored-params, x-ovserve-clamped, "
    "x-ovserve-adapted, x-ovserve-truncated, x-ovserve-repetition, "
    "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    "x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens"
)


@dataclass(frozen=True)
class Cors:
    """The options: comma lists, or `*`; empty allows none. With `credentials` the origins must be named."""

    origins: str = "*"
    methods: str = "*"
    headers: str = "*"
    credentials: bool = False

    @cached_property
    def _allowed(self) -> tuple[str, ...]:
        return tuple(split(self.origins))

    def problem(self) -> str | None:
        """Return what is wrong with the options, or None."""
        for origin in split(self.origins):
            if origin != "*" and not ORIGIN.fullmatch(origin.lower()):
                return f"allowed_origins: expected an origin such as https://example.com, got {origin!r}"
        if self.credentials and "*" in split(self.origins):
            return "allow_credentials: needs origins by name, because browsers reject it together with *"
        return None

    def names(self, origin: str) -> bool:
        """Return whether the options name this origin; `*` names none."""
        return bool(origin) and origin.lower() in [one.lower() for one in self._allowed if one != "*"]

    def is_preflight(self, request: web.Request) -> bool:
        return (
            request.method == hdrs.METH_OPTIONS
            and hdrs.ORIGIN in request.headers
            and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
        )

    def add(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the headers of an answer, or of a preflight's."""
        allowed = self._allowed
        if not allowed:
            return
        origin = request.headers.get(hdrs.ORIGIN)
        if "*" in allowed:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = "*"
        else:
            response.headers.add(hdrs.VARY, hdrs.ORIGIN)
            if origin is None or origin.lower() not in [one.lower() for one in allowed]:
                return
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            if self.credentials:
                response.headers[hdrs.ACCESS_CONTROL_ALLOW_CREDENTIALS] = "true"
        if self.is_preflight(request):
            request_headers = request.headers
            methods = _answer(self.methods, request_headers.get(hdrs.ACCESS_CONTROL_REQUEST_METHOD, ""))
            headers = _answer(self.headers, request_headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, ""))
            if methods:
                response.headers[hdrs.ACCESS_CONTROL_ALLOW_METHODS] = methods
            if headers:
                response.headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = headers
            response.headers[hdrs.ACCESS_CONTROL_MAX_AGE] = str(MAX_AGE)
        else:
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED


def _answer(configured: str, requested: str) -> str:
    return requested if "*" in split(configured) else ", ".join(split(configured))


_ABSENT = (
    (
        re.compile(r"/(?:.+/)?images/embeddings"),
        "this server embeds text, and has no embeddings of images",
    ),
    (
        re.compile(r"/v1/models/.+:(?:classify|regress)"),
        "of TensorFlow Serving's methods, only :predict is served",
    ),
    (
        re.compile(r"/v2/models/.+/generate(?:_stream)?"),
        "Triton's generate is not served here; POST its tensors to the model's /infer",
    ),
    (
        re.compile(r"/(?:.+/)?responses/compact"),
        "conversations are not compacted here; truncation: auto of responses leaves the oldest turns out",
    ),
    (
        re.compile(r"/(?:.+/)?realtime/(?:calls|sessions|transcription_sessions|translations)(?:/.*)?"),
        "Realtime is served over a WebSocket, at GET /v1/realtime; there is no WebRTC and no SIP, and "
        "POST /v1/realtime/client_secrets makes keys for pages",
    ),
)


VERSIONS = ("v1", "v3", "api", "openai")
MAX_PARTS = 16  # of a path that is compared with known ones; each costs a search


async def not_found(request: web.Request) -> NotFound:
    """The error for a path without a handler."""
    path = request.path
    if (reason := why_absent(path)) is not None:
        return reason
    for near in near_paths(path):
        match = await request.app.router.resolve(request.clone(rel_url=URL.build(path=near)))
        if match.http_exception is None:
            methods = " or ".join(sorted(own_methods(match) - {"HEAD"})) + " " if is_unserved(match) else ""
            return NotFound(f"no such path: {path}; use {methods}{near}")
    return NotFound(f"no such path: {path}")


def near_paths(path: str) -> list[str]:
    """Return the paths that may be meant, the longest first: without doubled and last slashes, without what
    the base address and the client both add, and with fewer versions or without a proxy's prefix in front."""
    parts = [part for part in path.split("/") if part]
    if len(parts) > MAX_PARTS:
        return []
    near = [parts]
    for size in range(1, len(parts) // 2 + 1):
        if parts[-size:] == parts[-2 * size : -size]:
            near.append(parts[:-size])
    near += [parts[at:] for at in range(1, len(parts)) if parts[at] in VERSIONS]
    shorter = parts
    while shorter and shorter[0] in VERSIONS:
        shorter = shorter[1:]
        near += [shorter, ["v1", *shorter], [parts[0], *shorter]]
    near.sort(key=len, reverse=True)
    return [one for one in dict.fromkeys("/" + "/".join(parts) for parts in near) if one != path]


def why_absent(path: str) -> NotFound | None:
    """None for a path that nothing is known of."""
    for pattern, why in _ABSENT:
        if pattern.fullmatch(path):
            return NotFound(f"no such path: {path}; {why}")
    return None


PREFER, WAIT = "Prefer", re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})", re.IGNORECASE)
SECONDS = ("x-stainless-read-timeout", "x-stainless-timeout")
NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?")


def patience(headers: Mapping[str, str]) -> float | None:
    """Return the seconds; None where no header says so in a form that is known."""
    seconds = list[float]()
    for name in SECONDS:
        if name in headers and NUMBER.fullmatch(text := headers[name].strip()):
            seconds.append(float(text))
    if PREFER in headers:
        seconds += [float(match[1]) for match in WAIT.finditer(headers[PREFER])]
    return min(seconds, default=None)


REQUEST_ID = "x-request-id"
CLIENT_LEFT_STATUS = 499  # what proxies log for a disconnected client
# In the request, for what aiohttp calls outside of the middleware.
CALL = web.RequestKey("CALL", RequestContext)
ID_HEADERS = (REQUEST_ID, "x-client-request-id", "x-ms-client-request-id", "x-correlation-id")

# Probes have no keys. These paths only report that the server is there, and whether it is ready.
OPEN = ("/", "/v2/health/live", "/v2/health/ready", "/health", "/v1/health", "/v3/health", "/v3/v1/health")

# Probes and pages read them; lines for them would hide others.
QUIET = {*OPEN, "/metrics", "/v3/capabilities"}
# What changes the server. Without keys, pages of other sites must not reach it.
ADMINISTRATION = ("/v1/config/reload", "/v2/repository/", "/v2/logging")
REALTIME = "/realtime"  # the path that short-lived keys open
CONSOLE, CONSOLE_API = "/console", "/console/api/"  # its files need no key, its calls do
# POST, but they change nothing.
CONSOLE_READS = {CONSOLE_API + name for name in ("check", "render", "tokens")}

ACCESS_LOG = web.AppKey("access_log", AccessLog)
METRICS = web.AppKey("metrics", Metrics)

REJECTED_KEYS = (401, 403)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Take the client's request id or make one; it is on every log line and on every answer."""
    client_id = next(filter(None, map(request.headers.get, ID_HEADERS)), "")
    usable = client_id and len(client_id) <= 128 and client_id.isprintable() and client_id.isascii()
    id_ = client_id if usable else f"{getrandbits(128):032x}"  # it protects nothing, and urandom() takes 2 us
    token = request_id.set(id_)
    status = CLIENT_LEFT_STATUS
    sent_status: int | None = None
    connection = request.transport.get_protocol() if request.transport is not None else None
    if isinstance(connection, Connection):
        connection.request_begins()
    call = request[CALL] = RequestContext(NOBODY)
    call.remote = request.remote or ""
    call.patience = patience(request.headers)
    style = request[API_STYLE] = style_of(request.path, request.query, request.headers)
    request.app[ACCESS_LOG].begin(call, request.method, request.rel_url.raw_path, id_)
    try:
        with calling(call):
            response = await handler(request)
        status = response.status
    finally:
        status = request.get(ANSWERED, status)  # also if the client left right after the last piece
        # It was already sent: the log has the failure's.
        if call.failure is not None and status != CLIENT_LEFT_STATUS:
            sent_status, status = status, style.answer(call.failure).status
        request.app[METRICS].responses[sent_status or status] += 1
        request.app[ACCESS_LOG].log(
            call,
            request.method,
            request.rel_url.raw_path,  # as received: a decoded one may hold line breaks
            status,
            failed=status >= 500,
            quiet=_is_quiet(request, status),
            request_id=id_,
            headers=request.headers,
            sent_status=sent_status,
        )
        request_id.reset(token)
        if isinstance(connection, Connection):
            connection.request_ended()
    if not response.prepared:
        for name in style.id_headers:
            response.headers[name] = id_
    return response


def _is_quiet(request: web.Request, status: int) -> bool:
    """Probes, and what the console's own pages read; its streams end when a page is left."""
    if _is_console(request.path):
        reads = request.method in ("GET", "HEAD") or request.path in CONSOLE_READS
        return reads and status < 500 and status not in REJECTED_KEYS
    return request.path in QUIET and status < 400


def _is_console(path: str) -> bool:
    return path.startswith(CONSOLE) and path[len(CONSOLE) :][:1] in ("", "/")


def authorize(guard: Guard) -> Middleware:
    """Authenticate the caller; `serving/` checks the rights, for all transports alike."""

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            check = guard.session_caller if request.path.endswith(REALTIME) else guard.caller
            current_request().caller = check(presented_key(request.headers))
        except Unauthenticated:
            page = _is_console(request.path) and not request.path.startswith(CONSOLE_API)
            if not (page or request.path in OPEN):
                raise
        if request.method == "POST" and request.path.startswith(ADMINISTRATION) and not guard.required:
            check_site(request.headers)
        return await handler(request)

    return middleware


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Convert every exception below into one JSON body with the right status.

    OPTIONS is answered on any path, known or not, as by OVMS. `finish_headers` adds the CORS headers."""
    try:
        return web.Response() if request.method == hdrs.METH_OPTIONS else await handler(request)
    except ClientConnectionResetError:
        raise  # the client disconnected during its answer, and nothing failed
    except OvserveError as exc:
        error = exc
    except web.HTTPRequestEntityTooLarge as exc:
        error = PayloadTooLarge(f"the body is larger than {request.client_max_size} bytes ({exc.text})")
    except web.HTTPNotFound:
        error = await not_found(request)
    except web.HTTPException as exc:
        error = OvserveError(exc.reason)
        error.kind = "invalid_argument" if exc.status < 500 else "internal"
    except Exception as exc:
        log.exception("unexpected %s", type(exc).__name__)
        error = Internal(INTERNAL_MESSAGE)
    if error.kind == "internal":
        log.error("%s", error, exc_info=for_log(error))
    error = request[CALL].error = public(error)
    status, headers, body = request[API_STYLE].answer(error)
    return web.Response(status=status, body=body, content_type="application/json", headers=headers)


def is_unserved(match: web.UrlMappingMatchInfo) -> bool:
    """Return whether no path matches, or one that does not take the method."""
    return match.route.method == hdrs.METH_ANY


def own_methods(match: web.UrlMappingMatchInfo) -> set[str]:
    return {route.method for route in match.route.resource or ()} - {hdrs.METH_ANY}


async def other_method(request: web.Request) -> web.StreamResponse:
    raise why_absent(request.path) or wrong_method(request, own_methods(request.match_info))


def wrong_method(request: web.Request, allowed: Iterable[str]) -> MethodNotAllowed:
    methods = tuple(sorted(allowed))
    return MethodNotAllowed(
        f"{request.path} takes {', '.join(methods)}, got {request.method}", allowed=methods
    )


def finish_headers(
    cors: Cors, stopping: Callable[[], bool] = lambda: False
) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Return the hook that completes the headers of every answer. Limits are reported in OpenAI's form.

    While the server is `stopping`, a connection ends with its answer. Behind a load balancer, a client that
    kept its connection would send each retry to the server that rejects it. For a new connection the load
    balancer chooses another server.
    """

    async def finish(request: web.Request, response: web.StreamResponse) -> None:
        headers = response.headers
        headers["Server"] = "ovserve"  # aiohttp would reveal its version and Python's
        if not _is_console(request.path):  # its calls are for its own pages, whatever --allowed_origins says
            cors.add(request, response)
        call = request.get(CALL)
        if call is not None and call.caller.limited:
            for what, (limit, remaining) in call.caller.remaining().items():
                headers[f"x-ratelimit-limit-{what}"] = str(limit)
                headers[f"x-ratelimit-remaining-{what}"] = str(remaining)
        if stopping():
            response.force_close()
            headers["Connection"] = "close"

    return finish
