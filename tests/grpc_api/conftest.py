"""The production gRPC server in this process, on a free port, so that a test can also look at the engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import grpc
import pytest

from ovserve.access import Guard
from ovserve.calculators.shipped import MODULES
from ovserve.engine.client.text import TextClient
from ovserve.graph import Registry
from ovserve.grpc_api.server import RpcOptions, RpcServer
from ovserve.services.inference.infer import Inference
from ovserve.serving.config.file import RepositoryContent
from ovserve.serving.manager import Manager
from ovserve.serving.settings import ServableSpec
from tests.conftest import ROOT, script_graph

TENSORS = ROOT / "examples/04_tensor_graph"
ENDLESS = json.dumps({"step_seconds": 0.02, "replies": [{"text": "word ", "repeat": 0}]})


@dataclass
class Running:
    address: str
    manager: Manager

    @property
    def engine(self) -> TextClient:
        return self.manager.get("m").engines["llm"]

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.address)


class Folder:
    """A repository: every directory in `path` is a graph of its name."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> RepositoryContent:
        found = sorted(d for d in self.path.iterdir() if d.is_dir())
        return RepositoryContent(tuple(ServableSpec.of_directory(d.name, d) for d in found))

    def digest(self) -> str:
        return str(self.read())


@asynccontextmanager
async def running(
    *directories: Path,
    message_bytes: int = 1 << 20,
    limits: Mapping[str, Any] = MappingProxyType({}),
    guard: Guard | None = None,
    repository: Folder | None = None,
) -> AsyncIterator[Running]:
    """The first is served as `m`, others under the names of their directories. `limits`: of RpcOptions."""
    manager = Manager(Registry(MODULES), repository=repository)
    options = RpcOptions(["127.0.0.1"], 0, message_bytes, **limits)
    server = RpcServer(manager, Inference(manager), options, guard)
    port = await server.start()
    try:
        if repository is not None:
            await manager.reload()
        for directory in directories:
            await manager.load("m" if directory is directories[0] else directory.name, directory)
        yield Running(f"127.0.0.1:{port}", manager)
    finally:
        await server.stop(0)
        await manager.stop()


Scripted = Callable[[str], AbstractAsyncContextManager[Running]]


@pytest.fixture
def scripted(tmp_path: Path) -> Scripted:
    """`async with scripted(json) as running`: the shipped five-node graph over a scripted engine."""
    return lambda script: running(script_graph(tmp_path / "graph", script))
