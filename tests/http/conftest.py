"""The production application and runner in this process, so that a test can also look at the engine's counters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ovserve.access import Guard
from ovserve.calculators.shipped import MODULES
from ovserve.engine.client.settings import EngineSettings
from ovserve.engine.client.state import RestartPolicy
from ovserve.engine.client.text import TextClient
from ovserve.graph import Registry
from ovserve.http.app import build_app, build_runner
from ovserve.http.connections import Listener, RestLimits
from ovserve.http.middleware import Cors
from ovserve.http.sockets import Sockets
from ovserve.sandbox.images.loader import Media
from ovserve.services.monitoring.families import NAMES
from ovserve.serving.manager import Manager
from ovserve.serving.settings import ServingSettings
from ovserve.telemetry.metrics import Metrics
from tests.conftest import script_graph


@dataclass
class Running:
    url: str
    port: int
    manager: Manager
    listener: Listener

    @property
    def engine(self) -> TextClient:
        return self.manager.get("m").engines["llm"]


@asynccontextmanager
async def running(
    directory: Path,
    guard: Guard | None = None,
    *,
    cors: Cors | None = None,
    limits: RestLimits | None = None,
    media: Media | None = None,
    restarts: RestartPolicy | None = None,
    models: Path = Path("models"),
) -> AsyncIterator[Running]:
    limits = limits or RestLimits(body_bytes=1 << 20, shutdown_seconds=2.0)
    manager = Manager(
        Registry(MODULES),
        ServingSettings(EngineSettings(ready_timeout=60, restarts=restarts or RestartPolicy())),
        metrics=Metrics(NAMES),
        media=media,
    )
    runner = build_runner(build_app(manager, limits, guard=guard, cors=cors, models=models), limits)
    await runner.setup()
    listener = Listener(runner, limits)
    try:
        sockets = Sockets.bind(["127.0.0.1"], 0)
        await listener.open(sockets)
        (url,) = sockets.urls(tls=False)
        await manager.load("m", directory)
        yield Running(url, sockets.port, manager, listener)
    finally:
        listener.close()
        await runner.cleanup()
        await manager.stop()


Scripted = Callable[[str], AbstractAsyncContextManager[Running]]


@pytest.fixture
def scripted(tmp_path: Path) -> Scripted:
    """`async with scripted(json) as running`: the shipped five-node graph over a scripted engine."""
    return lambda script: running(script_graph(tmp_path / "graph", script))
