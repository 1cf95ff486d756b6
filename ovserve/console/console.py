"""The Console: its parts, and the paths it adds to the HTTP server.

Among them are calls that show the requests in progress and cancel one. A caller sees and cancels its own
requests, an administrator all of them.

The page's files are read from the package on demand, and sent with headers that confine them in a browser.
The content security policy has no exception: scripts and styles are files of this server, and nothing is
fetched from elsewhere. Files are open to clients without a key, because they hold nothing of this server.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from aiohttp import web

from ovserve import __version__
from ovserve.access import AccessLog, Caller, Guard
from ovserve.access.access_log import Running
from ovserve.api.ollama.body import RUNNING
from ovserve.console.api import Api
from ovserve.console.capture import (
    PING_SECONDS,
    Access,
    Capture,
    Handler,
    Watches,
    answer,
    body_of,
    caller,
    heard,
    integer,
    stream,
)
from ovserve.console.history import MetricsHistory, RequestLog, facts, hidden
from ovserve.errors import Cancelled, InvalidArgument, NotFound
from ovserve.serving.manager import Manager

log = logging.getLogger(__name__)

ATTACH_SECONDS = 1.0  # between two looks for graphs that were loaded since
FOREVER_SECONDS = 1e12


class _Asked(msgspec.Struct, forbid_unknown_fields=True):
    """0 minutes end a capture; with `clear`, what it has recorded goes too."""

    minutes: Annotated[float, msgspec.Meta(ge=0, le=24 * 60)]
    clear: bool = False


class Inspector:
    def __init__(self, manager: Manager, mode: str) -> None:
        self.requests = RequestLog()
        self.watches = Watches(manager)
        self._mode = mode
        self._records = Capture()
        self._attaching: asyncio.Task[None] | None = None
        if mode == "on":
            self._begin(FOREVER_SECONDS)

    async def stop(self) -> None:
        if self._attaching is not None:
            self._attaching.cancel()
            await asyncio.wait({self._attaching})
        self._records.clear()

    async def follow(self, request: web.Request) -> web.StreamResponse:
        """GET: an event per change, with the requests that have ended since the one before."""
        return await stream(request, self._news(integer(request.query.get("after"), "after")))

    async def _news(self, number: int) -> AsyncGenerator[Any]:
        who, first = caller(), True
        while True:
            number, rows = self.requests.since(number, who)
            if rows or first:
                captured = [row.values["id"] for row in rows if self._records.of(row.values["id"], row.owner)]
                yield {
                    "requests": [row.values for row in rows],
                    "captured": captured,
                    "capture": self._state(),
                }
            first = False
            while not await heard(self.requests.wait(number)):
                yield {"capture": self._state()}

    async def get(self, request: web.Request) -> web.Response:
        """GET: one request, with its capture if there is one."""
        id_ = request.match_info["id"]
        row = self.requests.get(id_, caller())
        record = self._records.of(id_, row.owner)
        return answer({"request": row.values, "capture": record.body() if record is not None else None})

    async def state(self, request: web.Request) -> web.Response:
        return answer(self._state())

    async def capture(self, request: web.Request) -> web.Response:
        """POST: start a capture for some minutes, or end it."""
        change = await body_of(request, _Asked)
        if self._mode == "off":
            raise InvalidArgument("captures are switched off; see --console_capture")
        if change.minutes:
            self._begin(time.time() + change.minutes * 60)
        else:
            self._records.until = 0.0
        if change.clear:
            self._records.clear()
        return answer(self._state())

    def _state(self) -> dict[str, Any]:
        records = self._records
        remaining = max(0.0, records.until - time.time())
        return {
            "mode": self._mode,
            "active": records.active,
            "seconds_left": remaining if remaining < FOREVER_SECONDS / 2 else None,
            "records": len(records.records),
            "bytes": records.size,
        }

    def _begin(self, until: float) -> None:
        self._records.until = until
        self.watches.capture = self._records
        self.watches.attach()
        if self._attaching is None or self._attaching.done():
            self._attaching = asyncio.create_task(self._attach())

    async def _attach(self) -> None:
        """Also record graphs that are loaded while the capture runs, and take the taps out at its end."""
        while self._records.active:
            self.watches.attach()
            await asyncio.sleep(ATTACH_SECONDS)
        self.watches.capture = None
        self.watches.attach()


STATIC = Path(__file__).parent / "static"
HOME = "/console/"
ENTRY = "console/"  # relative to / and to /console, so that it holds behind a proxy with a prefix
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".txt": "text/plain",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "form-action 'none'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types ovserve dompurify",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(self), geolocation=()",
    "Cache-Control": "no-cache",  # with an ETag: a page and its scripts are always of one release
}
SMALLEST_PACKED = 1024  # bytes; below, gzip saves less than a packet


class Pages:
    """Serves the files. A file is read at its first use and kept, packed and not."""

    def __init__(self, root: Path = STATIC) -> None:
        self._root = root
        self._kept: dict[str, tuple[tuple[int, int], str, bytes, bytes]] = {}

    async def get(self, request: web.Request) -> web.Response:
        """GET /console/ and below. The one page keeps its views behind the #."""
        name = request.match_info.get("path", "") or "index.html"
        page = await asyncio.to_thread(self._load, name)
        if page is None:
            raise NotFound(f"the console has no file {name!r}")
        _, tag, plain, packed = page
        headers = {**HEADERS, "ETag": tag, "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        content = plain
        if packed and "gzip" in request.headers.get("Accept-Encoding", ""):
            content = packed
            headers["Content-Encoding"] = "gzip"
        return web.Response(
            body=content, content_type=TYPES[Path(name).suffix], charset="utf-8", headers=headers
        )

    async def enter(self, request: web.Request) -> web.Response:
        """GET /console: relative addresses in the page need the slash."""
        return web.Response(status=308, headers={"Location": ENTRY})

    def _load(self, name: str) -> tuple[tuple[int, int], str, bytes, bytes] | None:
        path = self._root / name
        if path.suffix not in TYPES or not path.resolve().is_relative_to(self._root.resolve()):
            return None
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            cached = self._kept.get(name)
            if cached is None or cached[0] != stamp:
                plain = path.read_bytes()
                tag = f'"{hashlib.sha256(plain).hexdigest()[:20]}"'
                packed = gzip.compress(plain, 6, mtime=0) if len(plain) >= SMALLEST_PACKED else b""
                cached = self._kept[name] = stamp, tag, plain, packed
        except (OSError, ValueError):
            return None
        return cached


def wants_page(request: web.Request) -> bool:
    """Return whether the client is a browser that opens a page."""
    return "text/html" in request.headers.get("Accept", "")


LIVE_SECONDS = 0.4  # between two events


class InProgress:
    def __init__(self, access_log: AccessLog) -> None:
        self._access_log = access_log

    def of(self, who: Caller, id_: str = "") -> list[Running]:
        """Return the requests that the caller may see; those of one id, if it is given."""
        return [
            one
            for one in self._access_log.running
            if not hidden(one.path)
            and (who.rights.admin or one.call.caller is who)
            and (not id_ or one.request_id == id_)
        ]

    async def follow(self, request: web.Request) -> web.StreamResponse:
        """GET: an event with all of them, a few times a second while there are any. `?id=` asks for one."""
        return await stream(request, self._news(caller(), request.query.get("id", "")))

    async def _news(self, who: Caller, id_: str) -> AsyncGenerator[Any]:
        last_rows, silent = None, 0.0
        while True:
            rows = [_row(one) for one in self.of(who, id_)]
            if rows or last_rows != rows:
                last_rows, silent = rows, 0.0
                yield {"running": rows}
            elif silent >= PING_SECONDS:
                silent = 0.0
                yield None
            await asyncio.sleep(LIVE_SECONDS)
            silent += LIVE_SECONDS

    async def cancel(self, request: web.Request) -> web.Response:
        """POST: end the request of this number with an error; no effect if it has ended."""
        number = integer(request.match_info["number"], "number")
        one = next((one for one in self.of(caller()) if one.number == number), None)
        if one is None:
            raise NotFound(f"no request {number} is running")
        by = f" by {caller().name}" if caller().name else ""
        ended = one.call.cancel(Cancelled(f"the request was cancelled in the console{by}"))
        if ended:
            log.info("request %s was cancelled in the console%s", one.request_id, by)
        return answer({"cancelled": ended})


def _row(one: Running) -> dict[str, Any]:
    call = one.call
    seconds = time.monotonic() - call.started
    unread = call.unread_tokens if call.first_token is None else 0
    return {
        "number": one.number,
        **facts(call, seconds, one.method, one.path, one.request_id),
        "unread_tokens": unread,
    }


PREFIX = "/console/api"


@dataclass(frozen=True)
class ConsoleSettings:
    """`write`: graphs may be changed from the console. `capture` is "off", "ask" or "on". `names` are the
    host names the server listens on. `options` are value and default of those in force, without secrets."""

    write: bool = False
    capture: str = "ask"
    names: tuple[str, ...] = ()
    options: Mapping[str, tuple[object, object]] = field(default_factory=dict)


class Console:
    def __init__(
        self, manager: Manager, guard: Guard, access_log: AccessLog, settings: ConsoleSettings
    ) -> None:
        """Must be created on the event loop."""
        self._manager = manager
        self._guard = guard
        self._settings = settings
        self._pages = Pages()
        self._access = Access(lambda: guard.required, settings.names)
        self._inspector = Inspector(manager, settings.capture)
        access_log.listen(self._inspector.requests.add)
        self._running = InProgress(access_log)
        self._history = MetricsHistory(manager)
        self._api = Api(manager, guard, self._inspector.watches, settings.options, write=settings.write)

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Return method, pattern and handler of every path; they come before the server's own."""
        any_, pages, api, inspector = self._access.protect, self._pages, self._api, self._inspector

        def admin(handler: Handler) -> Handler:
            return any_(handler, admin=True)

        return [
            ("GET", "/", _root),
            ("GET", "/console", pages.enter),
            ("GET", PREFIX + "/whoami", any_(self._whoami)),
            ("GET", PREFIX + "/models", any_(api.models)),
            ("POST", PREFIX + "/render", any_(api.render)),
            ("POST", PREFIX + "/tokens", any_(api.tokens)),
            ("GET", PREFIX + "/graphs/{name:.+}/live", any_(api.live)),
            ("GET", PREFIX + "/graphs/{name:.+}", any_(api.graph)),
            ("PUT", PREFIX + "/graphs/{name:.+}", admin(api.apply)),
            ("POST", PREFIX + "/check", admin(api.check)),
            ("GET", PREFIX + "/server", admin(api.server)),
            ("GET", PREFIX + "/logs", admin(api.logs)),
            ("GET", PREFIX + "/metrics", any_(self._history.get)),
            ("GET", PREFIX + "/running", any_(self._running.follow)),
            ("POST", PREFIX + "/running/{number}/cancel", any_(self._running.cancel)),
            ("GET", PREFIX + "/requests", any_(inspector.follow)),
            ("GET", PREFIX + "/requests/{id}", any_(inspector.get)),
            ("GET", PREFIX + "/capture", admin(inspector.state)),
            ("POST", PREFIX + "/capture", admin(inspector.capture)),
            ("GET", HOME + "{path:.*}", pages.get),
        ]

    async def stop(self) -> None:
        await self._history.stop()
        await self._inspector.stop()
        await self._api.stop()

    async def _whoami(self, request: web.Request) -> web.Response:
        """Report what the caller may do, so that pages show only that."""
        rights = caller().rights
        return answer(
            {
                "name": caller().name,
                "admin": rights.admin,
                "models": rights.models,
                "keys_required": self._guard.required,
                "write": self._settings.write and rights.admin,
                "capture": self._settings.capture if rights.admin else "off",
                "metrics": bool(self._manager.metrics.enabled),
                "version": __version__,
            }
        )


async def _root(request: web.Request) -> web.StreamResponse:
    """GET /: a browser is led to the console, a probe gets the answer that a server without one gives."""
    if wants_page(request):
        return web.Response(status=302, headers={"Location": ENTRY, "Vary": "Accept"})
    return web.Response(text=RUNNING)
