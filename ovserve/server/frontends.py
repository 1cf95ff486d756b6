"""Frontends: the HTTP server, and the gRPC server if it is enabled, over one manager. Built by
`server.py` once the first engine has its model to load: aiohttp and the routes take as long to import as the
rest of the server, and an engine that is loading does not wait for them.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ovserve.access import AccessLog, Guard
from ovserve.console.console import Console, ConsoleSettings
from ovserve.errors import LoadError
from ovserve.http.app import build_app, build_batches, build_metrics_app, build_runner
from ovserve.http.connections import Listener, RestLimits, Runner
from ovserve.http.middleware import Cors
from ovserve.http.sockets import Certificate, Sockets, is_local, split
from ovserve.server.build import batch_bounds
from ovserve.server.settings import OPTIONS, Settings, grpc_addresses, tls_files
from ovserve.services.inference.infer import Inference
from ovserve.services.responses.service import ResponsesService
from ovserve.services.responses.store import ResponseStore
from ovserve.serving.manager import Manager

if TYPE_CHECKING:
    from ovserve.grpc_api.server import RpcServer

LAST_WORDS_SECONDS = 2.0  # for requests that were ended to get their error out

log = logging.getLogger(__name__)


class Frontends:
    def __init__(
        self,
        manager: Manager,
        responses: ResponsesService,
        store: ResponseStore | None,
        guard: Guard,
        access_log: AccessLog,
        settings: Settings,
    ) -> None:
        """Raises LoadError."""
        self._settings = settings
        self._limits = RestLimits(
            settings.max_body_bytes,
            LAST_WORDS_SECONDS,
            head_bytes=settings.max_head_bytes,
            read_seconds=settings.read_timeout,
            write_seconds=settings.write_timeout,
            connections=settings.max_connections,
            ping_seconds=settings.sse_ping_interval,
        )
        inference = Inference(manager)
        cors = _cors(settings)
        self._console = _console(manager, settings, guard, access_log)
        first = self._console.routes() if self._console is not None else ()
        models = Path(os.path.expanduser(settings.model_repository_path))
        self.batches = build_batches(manager, responses, guard, store, *batch_bounds(settings))
        app = build_app(
            manager,
            self._limits,
            responses,
            guard,
            cors,
            access_log,
            inference,
            first,
            models,
            self.batches,
        )
        self._runner = build_runner(app, self._limits)
        self._rpc = _rpc_server(manager, settings, guard, inference, access_log)
        self._metrics = build_runner(build_metrics_app(manager, self._limits, access_log), self._limits)
        self._listeners: list[Listener] = []

    async def open(self, sockets: Sockets, certificate: Certificate | None, metrics: Sockets) -> None:
        """Answer what comes in from now on. Raises LoadError for a gRPC port that is taken."""
        await self._listen(self._runner, sockets, certificate)
        self.batches.start()
        if metrics.port or metrics.unix:
            await self._listen(self._metrics, metrics, None)
            log.info("listening for scrapes without a key on %s", ", ".join(metrics.urls(tls=False)))
        if self._rpc is not None:
            port = await self._rpc.start()
            log.info("listening for gRPC on %s:%d", self._settings.grpc_bind_address, port)

    def close(self) -> None:
        """Take no more connections; those that are open stay, and so does gRPC, which notifies its
        clients."""
        for listener in self._listeners:
            listener.close()

    async def stop(self) -> None:
        if self._rpc is not None:
            await self._rpc.stop(LAST_WORDS_SECONDS)
        if self._console is not None:
            await self._console.stop()
        await self._runner.cleanup()
        await self._metrics.cleanup()

    async def _listen(self, runner: Runner, sockets: Sockets, certificate: Certificate | None) -> None:
        await runner.setup()
        listener = Listener(runner, self._limits, certificate)
        self._listeners.append(listener)
        await listener.open(sockets)


def _cors(settings: Settings) -> Cors:
    cors = Cors(
        settings.allowed_origins,
        settings.allowed_methods,
        settings.allowed_headers,
        settings.allow_credentials,
    )
    if problem := cors.problem():
        raise LoadError(f"--{problem}")
    return cors


def _console(manager: Manager, settings: Settings, guard: Guard, access_log: AccessLog) -> Console | None:
    if settings.console == "off":
        return None
    addresses = split(settings.rest_bind_address)
    safe = guard.required or all(map(is_local, addresses))
    # Secrets are not shown.
    options = {o.name: (getattr(settings, o.name), o.default) for o in OPTIONS if o.repr}
    write = settings.console_write == "on" or (settings.console_write == "auto" and safe)
    return Console(
        manager,
        guard,
        access_log,
        ConsoleSettings(write, settings.console_capture, tuple(a.lower() for a in addresses), options),
    )


def _rpc_server(
    manager: Manager, settings: Settings, guard: Guard, inference: Inference, access_log: AccessLog
) -> RpcServer | None:
    if not settings.grpc_port:
        return None
    # Engines are started by exec. grpc prepares for a copy of this process instead, and logs that it cannot.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
    from ovserve.grpc_api.server import (  # grpc takes 0.1 s to import
        RpcOptions,
        RpcServer,
        credentials,
        parse_arguments,
    )

    options = RpcOptions(
        grpc_addresses(settings),
        settings.grpc_port,
        settings.max_body_bytes,
        arguments=parse_arguments(settings.grpc_channel_arguments),
        credentials=credentials(*tls_files(settings)) if settings.tls_cert_file else None,
        head_bytes=settings.max_head_bytes,
        calls=settings.max_connections,
    )
    return RpcServer(manager, inference, options, guard, access_log)
