"""The Console: its parts, and the paths it adds to the HTTP server.

Among them are calls that show the requests in progress and cancel one. A caller sees and cancels its own
requests, an administrator all of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from ovserve import __version__
from ovserve.access import AccessLog, Caller, Guard
from ovserve.access.access_log import Running
from ovserve.console.api import Api
from ovserve.console.calls import PING_SECONDS, Access, Handler, answer, caller, integer, stream
from ovserve.console.history import MetricsHistory
from ovserve.console.inspector import Inspector
from ovserve.console.pages import ENTRY, HOME, Pages, wants_page
from ovserve.console.requests import facts, hidden
from ovserve.errors import Cancelled, NotFound
from ovserve.serving.manager import Manager

LIVE_SECONDS = 0.4  # between two events

log = logging.getLogger(__name__)


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
        number = integer(request.match_info["number"], "number", 0)
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
    """GET /: a browser is led to the console, a probe gets the answer it always got."""
    if wants_page(request):
        return web.Response(status=302, headers={"Location": ENTRY, "Vary": "Accept"})
    return web.json_response({"live": True})
