"""KServe's health paths, and the plain ones that probes and benchmark tools ask for."""

from __future__ import annotations

from aiohttp import web

from ovserve.access import current_call
from ovserve.errors import Unavailable
from ovserve.openai.operation import Operation
from ovserve.serving.manager import RETRY_AFTER, Manager


class V2:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def live(self, request: web.Request) -> web.Response:
        return web.Response()

    async def ready(self, request: web.Request) -> web.Response:
        """200 once the first load is done and something can answer; 503 tells what is the matter."""
        if self._manager.ready:
            return web.Response()
        may = current_call().caller.may_use
        shown = [s for s in self._manager.statuses() if may(s.name)]
        states = ", ".join(f"{s.name} {s.state.name} {s.reason}".rstrip() for s in shown)
        raise Unavailable(f"not ready: {states or 'loading'}", retry_after=RETRY_AFTER)


OPERATIONS = (
    Operation("GET", "/", "200 while the server is up."),
    Operation("GET", "/v2/health/live", "200 while the server is up."),
    Operation("GET", "/v2/health/ready", "200 while something can answer; 503 says what does not, and why."),
    Operation("GET", "/v3/health", "As /v2/health/ready."),
)
