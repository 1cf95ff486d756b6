"""The production application with a response store, in this process; for the tests of the Responses paths."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import openai
from aiohttp import web

from ovserve.calculators.shipped import MODULES
from ovserve.engine.client.text import TextClient
from ovserve.graph import Registry
from ovserve.http.app import build_app, build_runner
from ovserve.http.connections import RestLimits
from ovserve.services.responses.service import ResponsesService
from ovserve.services.responses.store import ResponseStore
from ovserve.serving.manager import Manager
from tests.conftest import script_graph

OWNER = "x-test-owner"

# "echo" anywhere in the prompt gives the prompt back; the others are what they are called.
REPLIES: list[dict[str, Any]] = [
    {"match": "endless", "text": "word ", "repeat": 0, "step_seconds": 0.01},
    {"match": "unhurried", "text": "a b c d e f g h", "step_seconds": 0.5},
    {"match": "slowly", "text": "a b c d e f g h", "step_seconds": 0.05},
    {"match": "raise", "text": "one two three four", "raise_in_step": 3, "step_seconds": 0.1},
    {"match": "full", "refuse": "resource_exhausted"},
    {"match": "late", "text": "at last", "wait_steps": 200, "step_seconds": 0.02},
    {"match": "say", "text": "all is well"},
    {"match": "never", "text": "at last", "wait_steps": 10**9, "step_seconds": 0.02},
    {"echo": True},
]


@dataclass
class Serving:
    url: str
    port: int
    manager: Manager
    service: ResponsesService
    store: ResponseStore | None
    client: openai.AsyncOpenAI
    http: httpx.AsyncClient

    @property
    def engine(self) -> TextClient:
        return self.manager.get("m").engines["llm"]

    async def create(self, text: Any, **more: Any) -> Any:
        return await self.client.responses.create(model="m", input=text, **more)

    async def post(self, text: Any, **more: Any) -> httpx.Response:
        headers = more.pop("headers", None)
        body = {"model": "m", "input": text} | more
        return await self.http.post("/v3/responses", json=body, headers=headers, timeout=230)


@asynccontextmanager
async def serving(
    directory: Path,
    *,
    store: ResponseStore | str | None = "default",
    script: dict[str, Any] | None = None,
    options: str = "",
) -> AsyncIterator[Serving]:
    limits = RestLimits(body_bytes=1 << 20, shutdown_seconds=2.0)
    manager = Manager(Registry(MODULES))
    if isinstance(store, str):
        store = ResponseStore(directory / "responses.db", ttl=1000, max_bytes=1 << 26)
    service = ResponsesService(manager, store)
    runner = build_runner(build_app(manager, limits, service), limits)
    await runner.setup()
    try:
        await service.start()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        text = json.dumps({"replies": REPLIES} | (script or {}))
        await manager.load("m", script_graph(directory / "graph", text, options))
        url = f"http://127.0.0.1:{port}"
        async with (
            openai.AsyncOpenAI(base_url=url + "/v3", api_key="none", max_retries=0) as client,
            httpx.AsyncClient(base_url=url) as http,
        ):
            # stands in for authentication, which will name the owner of a request
            with patch(
                "ovserve.http.routes.responses.owner_of", lambda request: request.headers.get(OWNER, "")
            ):
                yield Serving(url, port, manager, service, store, client, http)
    finally:
        await service.stop()
        await manager.stop()
        await runner.cleanup()
        await service.close()
