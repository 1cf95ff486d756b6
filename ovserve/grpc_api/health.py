"""grpc.health.v1.Health, which load balancers, Kubernetes and grpcurl call.

It knows the services "" and those of this server, which serve when the server is ready, and every model by
its name. The state is read at each call; watchers are notified within half a second of a change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from grpc_health.v1 import health_pb2 as pb

from ovserve.access import NOBODY, RequestContext, calling, current_request
from ovserve.errors import NotFound
from ovserve.grpc_api.service import Context
from ovserve.inference.metadata import Description

WATCH_SECONDS = 0.5  # the failure of an engine sends no notification


class Health:
    def __init__(self, description: Description, services: Sequence[str]) -> None:
        self._description = description
        self._services = services

    async def Check(self, request: pb.HealthCheckRequest, context: Context) -> pb.HealthCheckResponse:
        return pb.HealthCheckResponse(status=self._status(request.service))

    async def List(self, request: Any, context: Context) -> Any:
        response = pb.HealthListResponse()  # type: ignore[attr-defined]  # newer than the stubs
        for service in ("", *self._services, *self._description.names):
            response.statuses[service].status = self._status(service)
        return response

    async def Watch(self, request: pb.HealthCheckRequest, context: Context) -> None:
        """Stream the state until the client leaves. An unknown service may become known."""
        sent = None
        while True:
            try:
                status = self._status(request.service)
            except NotFound:
                status = pb.HealthCheckResponse.SERVICE_UNKNOWN
            if status != sent:
                await context.write(pb.HealthCheckResponse(status=status))
                sent = status
            await asyncio.sleep(WATCH_SECONDS)

    def _status(self, service: str) -> int:
        """Raises NotFound."""
        if service == "" or service in self._services:
            serving = self._description.ready
        elif current_request().caller is NOBODY:
            with calling(RequestContext()):  # probes have no keys; they only see the name that they ask for
                serving = self._description.model_ready(service)
        else:
            serving = self._description.model_ready(service)
        return pb.HealthCheckResponse.SERVING if serving else pb.HealthCheckResponse.NOT_SERVING
