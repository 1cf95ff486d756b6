"""The Console: its parts, and the paths it adds to the HTTP server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp import web

from ovserve import __version__
from ovserve.access import AccessLog, Guard
from ovserve.console.api import Api
from ovserve.console.calls import Access, Handler, answer, caller
from ovserve.console.history import MetricsHistory
from ovserve.console.inspector import Inspector
from ovserve.console.pages import ENTRY, HOME, Pages, wants_page
from ovserve.console.running import InProgress
from ovserve.serving.manager import Manager

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
