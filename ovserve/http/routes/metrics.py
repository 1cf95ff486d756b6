"""GET /metrics: everything counted, for Prometheus; a 404 that says how to switch it on where it is off."""

from __future__ import annotations

from aiohttp import web

from ovserve.api.openai.operation import Operation
from ovserve.errors import NotFound
from ovserve.services.monitoring.scrape import CONTENT_TYPE, Scraper
from ovserve.serving.manager import Manager


class MetricsRoute:
    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._scraper = Scraper(manager)

    async def get(self, request: web.Request) -> web.Response:
        if not self._manager.metrics.enabled:
            raise NotFound("metrics are switched off; start the server with --metrics_enable true")
        return web.Response(body=self._scraper.scrape(), headers={"Content-Type": CONTENT_TYPE})


OPERATIONS = (Operation("GET", "/metrics", "Everything counted, in Prometheus's text format."),)
