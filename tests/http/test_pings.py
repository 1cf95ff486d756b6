"""A stream that is silent says that it is alive: when, when not, and what a late error looks like then."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx
import openai
import pytest

from ovserve.http.connections import RestLimits
from tests.conftest import eventually, script_graph
from tests.http.conftest import Running, running

PING = ": ping\n\n"
SECONDS = 0.1
SCRIPT = json.dumps(
    {
        "step_seconds": 0.01,
        "replies": [
            {"match": "prefill", "text": "at last", "wait_steps": 60},
            {"match": "never", "text": "at last", "wait_steps": 10**9},
            {"match": "endless", "text": "word ", "repeat": 0},
            {"match": "breaks", "text": "a b", "wait_steps": 60, "refuse": "resource_exhausted"},
            {"match": "busy", "text": "word ", "repeat": 60},
            {"text": "one two"},
        ],
    }
)
Pinging = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def pinging(tmp_path: Path) -> Pinging:
    def start(seconds: float = SECONDS, options: str = "") -> AbstractAsyncContextManager[Running]:
        directory = script_graph(tmp_path / "graph", SCRIPT)
        text = (directory / "graph.pbtxt").read_text()
        (directory / "graph.pbtxt").write_text(text.replace("models_path:", f"{options} models_path:", 1))
        return running(directory, limits=RestLimits(1 << 20, 2.0, ping_seconds=seconds))

    return start


async def post(server: Running, word: str, *, stream: bool = True) -> httpx.Response:
    body = {"model": "m", "messages": [{"role": "user", "content": word}], "stream": stream}
    async with httpx.AsyncClient(base_url=server.url) as client:
        return await client.post("/v3/chat/completions", json=body, timeout=230)


def said(text: str) -> str:
    """The content of a stream, its comments skipped."""
    events = [e.removeprefix("data: ") for e in text.replace(PING, "").split("\n\n") if e]
    assert events.pop() == "[DONE]"
    return "".join(json.loads(e)["choices"][0]["delta"].get("content") or "" for e in events)


@asynccontextmanager
async def streaming(server: Running, word: str) -> AsyncIterator[httpx.Response]:
    body = {"model": "m", "messages": [{"role": "user", "content": word}], "stream": True}
    async with (
        httpx.AsyncClient(base_url=server.url) as client,
        client.stream("POST", "/v3/chat/completions", json=body) as answer,
    ):
        assert answer.status_code == 200
        yield answer


async def test_pings_during_a_long_prefill(pinging: Pinging) -> None:
    async with pinging() as server:
        async with streaming(server, "never") as answer:
            assert "x-request-id" in answer.headers
            seen = ""
            async for text in answer.aiter_text():
                seen += text
                if seen.count(PING) >= 2:
                    break
            assert '"at"' not in seen
        assert said((await post(server, "prefill")).text) == "at last"


async def test_pings_between_tokens(pinging: Pinging) -> None:
    async with pinging() as server, streaming(server, "endless") as answer:
        seen, pid, pieces = "", server.engine.pid, answer.aiter_text()
        try:
            async for text in pieces:
                seen += text
                if seen.count('"word') == 2:
                    os.kill(pid, signal.SIGSTOP)
                if seen.count('"word') >= 2 and seen.endswith(PING):
                    break
        finally:
            os.kill(pid, signal.SIGCONT)
        async for text in pieces:
            if '"word' in text:
                break


async def test_a_busy_stream_has_none(pinging: Pinging) -> None:
    async with pinging(seconds=20) as server:
        assert PING not in (await post(server, "busy")).text


async def test_none_where_they_are_off_or_the_answer_is_whole(pinging: Pinging) -> None:
    async with pinging(seconds=0) as server:
        assert PING not in (await post(server, "prefill")).text
    async with pinging() as server:
        whole = await post(server, "prefill", stream=False)
        assert whole.json()["choices"][0]["message"]["content"] == "at last"


async def test_the_first_ping_begins_an_answer_that_waits(pinging: Pinging) -> None:
    """Nothing of the graph has come yet: the engine does not even admit."""
    async with pinging() as server:
        os.kill(server.engine.pid, signal.SIGSTOP)
        try:
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
            async with (
                httpx.AsyncClient(base_url=server.url, timeout=230) as client,
                client.stream("POST", "/v3/chat/completions", json=body) as answer,
            ):
                assert answer.status_code == 200
                assert answer.headers["content-type"].startswith("text/event-stream")
                pieces = answer.aiter_text()
                assert await anext(pieces) == PING
                os.kill(server.engine.pid, signal.SIGCONT)
                assert said("".join([piece async for piece in pieces])) == "one two"
        finally:
            os.kill(server.engine.pid, signal.SIGCONT)


@pytest.mark.parametrize("path", ["/v3/chat/completions", "/v1/messages", "/v3/responses"])
async def test_an_error_after_a_ping_is_an_event(pinging: Pinging, path: str) -> None:
    async with pinging(options="queue_timeout: 3") as server:
        os.kill(server.engine.pid, signal.SIGSTOP)
        try:
            body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
            if path == "/v3/responses":
                body = {"model": "m", "stream": True, "input": "hi"}
            if path == "/v1/messages":
                body["max_tokens"] = 5
            async with httpx.AsyncClient(base_url=server.url) as client:
                answer = await client.post(path, json=body, timeout=230)
        finally:
            os.kill(server.engine.pid, signal.SIGCONT)
        assert answer.status_code == 200
        assert answer.text.startswith(PING)
        last = answer.text.strip().split("\n\n")[-1]
        assert "overloaded" in last
        assert "error" in json.loads(last.partition("data: ")[2])
        await eventually(lambda: server.engine.in_flight == 0)


async def test_an_error_before_the_first_ping_has_its_status(pinging: Pinging) -> None:
    async with pinging(seconds=20, options="queue_timeout: 0.2") as server:
        os.kill(server.engine.pid, signal.SIGSTOP)
        try:
            answer = await post(server, "hi")
        finally:
            os.kill(server.engine.pid, signal.SIGCONT)
        assert answer.status_code == 503
        assert "retry-after" in answer.headers


async def test_clients_skip_them(pinging: Pinging) -> None:
    async with pinging() as server, openai.AsyncOpenAI(base_url=f"{server.url}/v3", api_key="-") as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "prefill"}], stream=True
        )
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
        assert text == "at last"
        with pytest.raises(openai.APIError, match="script rejects"):
            async for _ in await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "breaks"}], stream=True
            ):
                pass


async def test_a_client_that_leaves_in_the_silence_ends_the_work(pinging: Pinging) -> None:
    async with pinging() as server:
        task = asyncio.create_task(post(server, "prefill"))
        await eventually(lambda: server.engine.stats().running == 1)
        task.cancel()
        await asyncio.wait([task])
        await eventually(lambda: server.engine.stats().running == 0)
        assert server.manager.metrics.of("m").cancelled["disconnect"] == 1
