"""The operator's calls.

GET /v1/config returns the states, POST /v1/config/reload makes the server do what its configuration says now;
both are OVMS's. GET /metrics returns everything counted, for Prometheus.
"""

from __future__ import annotations

from itertools import groupby

from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from ovserve.access import current_request
from ovserve.api.openai.common import encode
from ovserve.api.openai.operation import Operation
from ovserve.errors import LoadError, NotFound
from ovserve.http.body import json_response
from ovserve.services.monitoring.scrape import CONTENT_TYPE, Scraper
from ovserve.serving.manager import Manager
from ovserve.serving.status import ServableStatus

RELOADED, UNCHANGED = 201, 200
FAULT = "x-ovserve-configuration-error"
MAX_HEADER_CHARACTERS = 2000  # characters of it: a header has to fit into what clients read


class Status(Struct):
    error_code: str
    error_message: str


class VersionStatus(Struct):
    version: str
    state: str
    status: Status
    state_detail: str | UnsetType = UNSET  # unloaded or loading, of one that answers when it is loaded


class ModelStatus(Struct):
    model_version_status: list[VersionStatus]


class Config:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager

    async def status(self, request: web.Request) -> web.Response:
        return self._document(200)

    async def reload(self, request: web.Request) -> web.Response:
        """201 when something is served anew or no longer, 200 when nothing had changed."""
        result = await self._manager.reload()
        if result.failed:
            raise LoadError(f"not loaded: {result.errors}")
        return self._document(RELOADED if result.changed else UNCHANGED)

    def _document(self, status: int) -> web.Response:
        caller = current_request().caller
        visible = [s for s in self._manager.statuses() if caller.may_use(s.name)]
        versions = {name: list(group) for name, group in groupby(visible, lambda status: status.name)}
        body = encode(
            {name: ModelStatus(list(map(version_status, statuses))) for name, statuses in versions.items()}
        )
        # OVMS's document has a place for each model, and none for the configuration itself.
        fault = self._manager.fault if caller.rights.admin else ""
        headers = {FAULT: " ".join(fault.split())[:MAX_HEADER_CHARACTERS]} if fault else {}
        return json_response(body, headers, status)


def version_status(status: ServableStatus) -> VersionStatus:
    details = Status(status.error_code, status.reason or "OK")
    return VersionStatus(str(status.version), status.state.name, details, status.state_detail or UNSET)


OPERATIONS = (
    Operation(
        "GET", "/v1/config", "The state of every graph, in OVMS's form.", answer=dict[str, ModelStatus]
    ),
    Operation(
        "POST",
        "/v1/config/reload",
        "Read the configuration again: 201 when something changed, 200 when not, 412 when something cannot "
        "be loaded; what was served before still is then.",
        answer=dict[str, ModelStatus],
        also={RELOADED: "something is served anew, or no longer"},
    ),
)


class MetricsRoute:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._scraper = Scraper(manager)

    async def get(self, request: web.Request) -> web.Response:
        if not self._manager.metrics.enabled:
            raise NotFound("metrics are switched off; start the server with --metrics_enable true")
        return web.Response(body=self._scraper.scrape(), headers={"Content-Type": CONTENT_TYPE})


METRICS_OPERATIONS = (Operation("GET", "/metrics", "Everything counted, in Prometheus's text format."),)
