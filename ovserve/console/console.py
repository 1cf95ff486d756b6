"""The Console: its parts, and the paths it adds to the HTTP server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aiohttp import web

from ovserve import __version__
from ovserve.access import AccessLog, Guard
from ovserve.console.calls import Access, Handler, answer, caller
from ovserve.console.pages import HOME, Pages, wants_page
from ovserve.serving.manager import Manager

API = "/console/api"


@dataclass(frozen=True)
class ConsoleSettings:
    """`write`: graphs may be changed from the console. `capture` is "off", "ask" or "on". `names` are the
    host names the server listens on. `options` are the options in force, without secrets."""

    write: bool = False
    capture: str = "ask"
    names: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)


class Console:
    def __init__(
        self, manager: Manager, guard: Guard, access_log: AccessLog, settings: ConsoleSettings
    ) -> None:
        self._manager = manager
        self._guard = guard
        self._settings = settings
        self._pages = Pages()
        self._access = Access(lambda: guard.required, settings.names)

    def routes(self) -> list[tuple[str, str, Handler]]:
        """Return method, pattern and handler of every path; they come before the server's own."""
        any_, pages = self._access.protect, self._pages
        return [
            ("GET", "/", _root),
            ("GET", "/console", pages.enter),
            ("GET", API + "/whoami", any_(self._whoami)),
            ("GET", HOME + "{path:.*}", pages.get),
        ]

    async def _whoami(self, request: web.Request) -> web.Response:
        """Report what the caller may do, so that pages show only that."""
        rights = caller().rights
        limits = {
            "requests_per_minute": rights.requests_per_minute,
            "tokens_per_minute": rights.tokens_per_minute,
            "concurrency": rights.concurrency,
        }
        return answer(
            {
                "name": caller().name,
                "admin": rights.admin,
                "models": rights.models,
                "limits": {name: value for name, value in limits.items() if value is not None},
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
        return web.Response(status=302, headers={"Location": HOME, "Vary": "Accept"})
    return web.json_response({"live": True})
