"""A graph with the stateful pipeline: the server lets one request in at a time, and says what the pipeline lacks
(a scripted engine in a real child process; the real one in tests/engine/test_stateful.py)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import eventually, script_graph
from tests.http.conftest import Running, running

SCRIPT = json.dumps(
    {
        "step_seconds": 0.005,
        "replies": [{"match": "endless", "text": "word ", "repeat": 0}, {"text": "a b c"}],
    }
)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    directory = script_graph(tmp_path / "graph", SCRIPT)
    path = directory / "graph.pbtxt"
    path.write_text(path.read_text().replace('models_path: "', 'pipeline_type: LM models_path: "'))
    async with running(directory) as server:
        yield server


@pytest.fixture
async def client(server: Running) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=230) as client:
        yield client


async def post(client: httpx.AsyncClient, word: str, **more: object) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": word}], **more}
    return await client.post("/v3/chat/completions", json=body)


async def test_others_wait_in_the_fair_queue(server: Running, client: httpx.AsyncClient) -> None:
    meter = server.manager.metrics.of("m").meter
    first = asyncio.create_task(post(client, "endless", stream=True))
    await eventually(lambda: server.engine.stats().running == 1)
    others = [asyncio.create_task(post(client, "hello", user=user)) for user in ("a", "b", "a")]
    await eventually(lambda: meter.queued == 3)
    assert server.engine.stats().running == 1
    first.cancel()  # who leaves makes room
    for other in others:
        assert (await other).json()["choices"][0]["message"]["content"] == "a b c"
    assert server.engine.stats().finished == 3


async def test_choices_come_one_after_the_other(server: Running, client: httpx.AsyncClient) -> None:
    answer = (await post(client, "hello", n=2)).json()
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["a b c", "a b c"]
    assert answer["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize(("more", "param"), [({"best_of": 2}, "best_of"), ({"logprobs": True}, "logprobs")])
async def test_a_limit_is_a_400_by_name(client: httpx.AsyncClient, more: dict[str, Any], param: str) -> None:
    refused = await post(client, "hello", **more)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param)
    assert "not possible with the stateful pipeline (pipeline_type LM)" in error["message"]


async def test_echo_is_a_400_by_name(client: httpx.AsyncClient) -> None:
    body = {"model": "m", "prompt": "hello", "echo": True}
    refused = await client.post("/v3/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "echo")


async def test_its_death_ends_the_answer_and_another_starts(
    server: Running, client: httpx.AsyncClient
) -> None:
    task = asyncio.create_task(post(client, "endless", stream=True))
    await eventually(lambda: server.engine.stats().generated_tokens > 3)
    waiting = asyncio.create_task(post(client, "hello"))
    os.kill(server.engine.pid, signal.SIGKILL)
    last = (await task).text.split("\n\n")[-2].removeprefix("data: ")
    assert "engine" in json.loads(last)["error"]["message"]
    assert (await waiting).status_code == 200
