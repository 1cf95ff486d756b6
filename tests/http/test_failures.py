"""What a client sees when the engine fails: a clean status before the first byte, one SSE error after it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.conftest import eventually, script_graph
from tests.http.conftest import Scripted

SCRIPT = json.dumps(
    {
        "step_seconds": 0.01,
        "replies": [
            {"match": "endless", "text": "word ", "repeat": 0},
            {"match": "raise", "text": "a b c d e f", "raise_in_step": 3},
            {"match": "patient", "text": " ".join("abcdefghijklmnopqrst")},
            {"match": "full", "refuse": "resource_exhausted"},
            {"match": "fine", "text": "all is well"},
        ],
    }
)


def body(word: str, **more: object) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": word}], **more}


async def post(client: httpx.AsyncClient, word: str, **more: object) -> httpx.Response:
    return await client.post("/v3/chat/completions", json=body(word, **more), timeout=230)


def events(text: str) -> list[str]:
    return [e.removeprefix("data: ") for e in text.split("\n\n") if e]


@pytest.mark.parametrize("how", ["kill", "raise"])
async def test_the_engine_dies_under_a_stream(scripted: Scripted, how: str) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        task = asyncio.create_task(post(client, "endless" if how == "kill" else "raise", stream=True))
        if how == "kill":
            await eventually(lambda: server.engine.stats().generated_tokens > 3)
            os.kill(server.engine.pid, signal.SIGKILL)
        answer = await task
        assert answer.status_code == 200
        last = events(answer.text)[-1]
        assert "[DONE]" not in answer.text
        error = json.loads(last)["error"]
        assert error["type"] == "server_error"
        assert "engine" in error["message"]
        # The next request waits for the new engine and works.
        again = await post(client, "fine")
        assert again.json()["choices"][0]["message"]["content"] == "all is well"


@pytest.mark.parametrize("how", ["kill", "raise"])
async def test_the_engine_dies_under_a_unary_request(scripted: Scripted, how: str) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        task = asyncio.create_task(post(client, "endless" if how == "kill" else "raise"))
        for restarts in (0, 1) if how == "kill" else ():  # the first time it is made again
            await eventually(
                lambda n=restarts: server.engine.stats().restarts == n and bool(server.engine.pid)
            )
            before = server.engine.stats().generated_tokens
            await eventually(lambda n=before: server.engine.stats().generated_tokens > n + 3)
            os.kill(server.engine.pid, signal.SIGKILL)
        answer = await task
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert "engine" in answer.json()["error"]["message"]
        assert (await post(client, "fine")).status_code == 200


async def test_a_whole_answer_nobody_has_seen_is_made_again(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        task = asyncio.create_task(post(client, "patient"))
        await eventually(lambda: server.engine.stats().generated_tokens > 3)
        os.kill(server.engine.pid, signal.SIGKILL)
        answer = (await task).json()
        assert answer["choices"][0]["message"]["content"] == " ".join("abcdefghijklmnopqrst")
        assert answer["usage"]["completion_tokens"] == 20
        metrics = server.manager.metrics.of("m")
        assert (metrics.finished, sum(metrics.accepted.values()), metrics.running) == (1, 1, 0)


async def test_readiness_follows_the_engine(scripted: Scripted, tmp_path: Path) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/v2/health/ready")).status_code == 200
        (tmp_path / "graph/model.script.json").write_text('{"load": "hang"}')  # the next engine reads it
        os.kill(server.engine.pid, signal.SIGKILL)
        await eventually(lambda: server.engine.state.name == "restarting")
        answer = await client.get("/v2/health/ready")
        assert answer.status_code == 503
        assert "killed by SIGKILL" in answer.json()["error"] or "ended" in answer.json()["error"]
        assert (await client.get("/v2/health/live")).status_code == 200
        (tmp_path / "graph/go").touch()
        await eventually(lambda: server.manager.ready)
        assert (await client.get("/v2/health/ready")).status_code == 200


async def test_no_room_in_the_engine_is_503_for_a_stream_as_well(scripted: Scripted) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        unary = await post(client, "full")
        assert (unary.status_code, unary.json()["error"]["type"]) == (503, "server_error")
        streamed = await post(client, "full", stream=True)
        assert (streamed.status_code, streamed.json()) == (503, unary.json())  # nothing had been said


async def test_loading_and_stopping_are_told_apart_from_unknown(scripted: Scripted, tmp_path: Path) -> None:
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        later = script_graph(tmp_path / "later", '{"load": "hang"}')
        loading = asyncio.create_task(server.manager.load("later", later))
        await eventually(lambda: len(server.manager.statuses()) == 2)
        answer = await client.post("/v3/chat/completions", json=body("x") | {"model": "later"})
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert "loading" in answer.json()["error"]["message"]
        assert (await client.get("/v2/health/ready")).status_code == 200  # "m" answers
        loading.cancel()
        await asyncio.wait([loading])
        server.manager.stopping = True
        assert (await post(client, "fine")).status_code == 503
        server.manager.stopping = False


async def test_slow_reader_costs_only_itself(scripted: Scripted) -> None:
    """One client never reads an endless answer; another gets its whole one meanwhile."""
    script = json.dumps(
        {"replies": [{"match": "flood", "text": "x" * 2000 + " ", "repeat": 0}, {"text": "a b c"}]}
    )
    async with scripted(script) as server, httpx.AsyncClient(base_url=server.url) as client:
        data = json.dumps(body("flood", stream=True)).encode()
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        writer.write(
            b"POST /v3/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data
        )
        await eventually(lambda: server.engine.stats().generated_tokens > 500)
        for _ in range(5):
            answer = await post(client, "other")
            assert answer.json()["choices"][0]["message"]["content"] == "a b c"
        writer.transport.abort()
        await eventually(lambda: server.engine.stats().running == 0)


async def test_every_request_has_one_end(scripted: Scripted) -> None:
    """Answers, refusals, aborts and a death, all at once: what was sent is what has ended."""
    async with scripted(SCRIPT) as server, httpx.AsyncClient(base_url=server.url) as client:
        words = ["fine"] * 8 + ["full"] * 4 + ["raise"] * 2
        answers = await asyncio.gather(*(post(client, w, stream=i % 2 == 0) for i, w in enumerate(words)))
        for answer in answers:
            if answer.headers["content-type"].startswith("text/event-stream"):
                done, failed = answer.text.count("[DONE]"), answer.text.count('{"error"')
                assert done + failed == 1
            else:
                assert answer.status_code in (200, 503)
        stats = server.engine.stats()
        assert stats.running == 0
        assert stats.requests == stats.finished + stats.failed + stats.aborted
