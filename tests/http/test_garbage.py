"""A request is freed when it ends. What waits for the garbage collector costs 26 kB a request until it comes."""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator

import httpx
import pytest

from ovserve.engine.admission.text import AdmittedText
from ovserve.graph.scheduler import GraphRun, NodeRun
from ovserve.kinds.text.node import ResponseBuilder
from ovserve.serving.servable import GraphResponse
from tests.conftest import eventually
from tests.http.conftest import Scripted

SCRIPT = json.dumps({"replies": [{"text": "hello there"}]})
OF_A_REQUEST = (GraphResponse, GraphRun, NodeRun, AdmittedText, ResponseBuilder)
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
BODIES = {
    "chat": ("chat/completions", CHAT),
    "chat stream": ("chat/completions", CHAT | {"stream": True}),
    "completion": ("completions", {"model": "m", "prompt": "hi", "n": 2, "temperature": 1}),
    "response": ("responses", {"model": "m", "input": "hi", "store": False}),
    "response stream": ("responses", {"model": "m", "input": "hi", "store": False, "stream": True}),
}


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left() -> list[str]:
    return [type(found).__name__ for found in gc.get_objects() if isinstance(found, OF_A_REQUEST)]


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("name", BODIES)
async def test_a_request_leaves_no_cycle(scripted: Scripted, name: str) -> None:
    path, body = BODIES[name]
    async with scripted(SCRIPT) as here, httpx.AsyncClient(base_url=here.url) as client:
        for _ in range(3):
            answer = await client.post(f"/v3/{path}", json=body)
            assert answer.status_code == 200, answer.text
            assert "hello" in answer.text
        await eventually(lambda: not left())
