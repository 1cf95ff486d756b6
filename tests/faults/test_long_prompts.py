"""What one client's long texts and many streams at once may do to others. Rows of docs/reliability.md."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from ovserve.engine.admission.fair_queue import Limits
from ovserve.engine.protocol.specs import TextSpec
from ovserve.http.connections import RestLimits
from ovserve.kinds.text import engine_spec
from tests.conftest import ROOT, eventually, script_graph
from tests.engine import tiny
from tests.faults.conftest import Figure
from tests.http.conftest import Running, running

pytestmark = pytest.mark.long

CHAT, COMPLETIONS = "/v3/chat/completions", "/v3/completions"
ANSWER = " ".join(f"word{i}" for i in range(30))
SCRIPT = {
    "step_seconds": 0.004,
    "replies": [
        {"match": "full", "refuse": "resource_exhausted"},
        {"match": "large", "text": "y" * 3000 + " ", "repeat": 40},
        {"match": "wait", "text": ANSWER, "wait_steps": 30},
        {"text": ANSWER},
    ],
}
STREAMS = 110


def graph_of(directory: Path, model: Path, options: str = "") -> Path:
    """The default graph with this model."""
    text = (ROOT / "graphs/smollm2/graph.pbtxt").read_text()
    text = re.sub(r'models_path: "[^"]*"', f'{options} models_path: "{model}"', text)
    directory.mkdir()
    (directory / "graph.pbtxt").write_text(text)
    return directory


@asynccontextmanager
async def serving(directory: Path, *, ping: float = 15.0) -> AsyncIterator[tuple[Running, httpx.AsyncClient]]:
    limits = RestLimits(body_bytes=32 << 20, shutdown_seconds=2.0, ping_seconds=ping)
    async with (
        running(directory, limits=limits) as server,
        httpx.AsyncClient(
            base_url=server.url, timeout=300, limits=httpx.Limits(max_connections=None)
        ) as http,
    ):
        yield server, http


def prompt(tokens: int, seed: int = 0) -> list[int]:
    rnd = random.Random(seed)
    return [rnd.randrange(1000, 40_000) for _ in range(tokens)]


async def complete(http: httpx.AsyncClient, prompts: Any, **more: Any) -> httpx.Response:
    body = {"model": "m", "prompt": prompts, "max_tokens": 1, "temperature": 0, **more}
    return await http.post(COMPLETIONS, json=body)


@pytest.mark.timeout(400)  # 40 s on a quiet machine, 120 s beside ten other processes
async def test_long_prompt_of_a_neighbour(tmp_path: Path, model: Path) -> None:
    """Read in some twenty steps, which take longer than anybody may wait in the queue."""
    graph = graph_of(tmp_path / "graph", model.parent, "queue_timeout: 0.5")
    async with serving(graph) as (server, http):
        done: list[str] = []

        async def ask(name: str, tokens: int) -> None:
            answer = await complete(http, prompt(tokens, len(name)))
            assert answer.status_code == 200, answer.text
            done.append(name)

        async with asyncio.TaskGroup() as group:
            group.create_task(ask("long", 4000))
            await eventually(lambda: server.engine.usage.requests > 0, 60)
            group.create_task(ask("another long one", 3000))
            group.create_task(ask("short", 60))
        assert done == ["short", "long", "another long one"]
        assert server.engine.stats().failed == 0


async def test_text_that_cannot_fit(tmp_path: Path, short_model: Path) -> None:
    """It is rejected by its size: no process is started to tokenise it, and the engine never sees it."""
    async with serving(graph_of(tmp_path / "graph", short_model)) as (server, http):
        engine = server.engine
        assert (engine.facts.longest_token, engine.facts.max_length) == (81, 8192)
        asked = engine.stats().requests
        text = "all work and no play " * 200_000
        for path, body, param in (
            (CHAT, {"messages": [{"role": "user", "content": text}]}, "messages"),
            (CHAT, {"messages": [{"role": "user", "content": text}], "stream": True}, "messages"),
            (COMPLETIONS, {"prompt": ["hi", text]}, "prompt"),
            (COMPLETIONS, {"prompt": prompt(9000)}, "prompt"),
            ("/v3/responses", {"input": text}, "input"),
        ):
            refused = await http.post(path, json={"model": "m", **body})
            error = refused.json()["error"]
            assert (refused.status_code, error["code"]) == (400, "context_length_exceeded"), error
            assert error["param"] == param
            assert "8192 tokens" in error["message"]
        for path, body, option in (
            ("/v3/tokenize", {"text": text * 5}, "--max_tokenize_bytes"),
            ("/v3/detokenize", {"tokens": [1] * 300_000}, "--max_detokenize_tokens"),
        ):
            refused = await http.post(path, json={"model": "m", **body})
            assert (refused.status_code, option in refused.text) == (400, True), refused.text
        assert (engine.texts.process.pid, engine.stats().requests) == (0, asked)


async def test_long_text_that_may_fit(tmp_path: Path, short_model: Path) -> None:
    """It is tokenised by a process of its own, which may die of it, as the engine would have."""
    async with serving(graph_of(tmp_path / "graph", short_model)) as (server, http):
        engine = server.engine
        short, spaces = " Once upon a time." * 100, " " * 60_000 + "Hello"
        counted = (await http.post("/v3/tokenize", json={"prompt": short})).json()
        assert engine.texts.process.pid == 0
        long = (await http.post("/v3/tokenize", json={"prompt": short * 30})).json()
        assert engine.texts.process.pid > 0
        assert long["tokens"] == counted["tokens"] * 30
        told = await http.post("/v3/detokenize", json={"tokens": long["tokens"]})
        assert told.json()["prompt"] == short * 30
        count = (await http.post("/v3/tokenize", json={"prompt": spaces})).json()["count"]
        answer = await complete(http, spaces)
        assert answer.json()["usage"]["prompt_tokens"] == count < 1000
        refused = await http.post(
            CHAT, json={"model": "m", "messages": [{"role": "user", "content": short * 30}]}
        )
        assert refused.json()["error"]["details"]["parts"]["last message"] == long["count"]


@pytest.fixture
def ticks() -> Iterator[Callable[[], int]]:
    """Yield a count of hundredths of a second since its last call. A process writes a byte for each, so a pause
    of the whole machine, which takes a virtual one many seconds, does not count."""
    code = "import os, time\nwhile True: os.write(1, b'.'), time.sleep(0.01)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, bufsize=0) as clock:
        pipe = clock.stdout
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
        try:
            yield lambda: len(pipe.read(1 << 16) or b"")
        finally:
            clock.kill()


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_texts_of_one_client_during_a_stream(
    tmp_path: Path, model: Path, figure: Figure, ticks: Callable[[], int]
) -> None:
    """The worst gap of a stream is at most twice that beside the steps of one long prompt."""
    async with serving(graph_of(tmp_path / "graph", model)) as (_, http):
        text = "all work and no play makes jack a dull boy " * 24_000
        body = {"prompt": "Once", "max_tokens": 8000, "ignore_eos": True, "stream": True}
        worst = lines = 0

        async def listen() -> None:
            nonlocal worst, lines
            async with http.stream("POST", COMPLETIONS, json={"model": "m", **body}) as answer:
                async for _ in answer.aiter_lines():
                    worst, lines = max(worst, ticks()), lines + 1

        async def gap_beside(*asked: Any) -> int:
            nonlocal worst
            worst = 0
            await asyncio.gather(*asked)
            begun = lines
            await eventually(lambda: lines > begun, 60)
            return worst

        listening = asyncio.create_task(listen())
        try:
            await eventually(lambda: lines > 0, 60)
            await complete(http, prompt(8000, 1))  # the cache grows to what the test needs
            await complete(http, [prompt(6000, seed) for seed in range(10, 18)])
            step = max([await gap_beside(complete(http, prompt(7900, seed))) for seed in (2, 3)])
            gaps = {
                "1 MB to tokenize": await gap_beside(
                    http.post("/v3/tokenize", json={"text": text[: 1 << 20]})
                ),
                "20 MB to tokenize": await gap_beside(http.post("/v3/tokenize", json={"text": text * 20})),
                "4 MB chat": await gap_beside(
                    http.post(
                        CHAT,
                        json={"model": "m", "messages": [{"role": "user", "content": text * 4}]},
                    )
                ),
                "600 kB prompt": await gap_beside(complete(http, text[:600_000])),
                "8 prompts of 6000": await gap_beside(
                    complete(http, [prompt(6000, seed) for seed in range(20, 28)])
                ),
                "262144 ids to text": await gap_beside(
                    http.post("/v3/detokenize", json={"tokens": [1000] * 262_144})
                ),
            }
        finally:
            listening.cancel()
            await asyncio.wait({listening})
        shown = ", ".join(f"{name} {gap / 100} s" for name, gap in gaps.items())
        figure(f"longest gap beside a prefill {step / 100} s; beside {shown}")
        assert max(gaps.values()) <= 2 * step, gaps


async def one_stream(port: int, path: str, body: dict[str, Any], way: str, rnd: random.Random) -> str:
    """How it ended for a client that reads, reads slowly, or leaves; on a connection of its own."""
    data = json.dumps({"model": "m", "stream": True, **body}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    told = b""
    leaves_after = rnd.randint(300, 3000)
    try:
        while chunk := await reader.read(2048 if way == "slow" else 1 << 16):
            told += chunk
            if way == "slow":
                await asyncio.sleep(rnd.random() * 0.02)
            elif way == "leaves" and len(told) > leaves_after:
                writer.transport.abort()
                return "left"
    finally:
        writer.close()
    status = told.split(b" ", 2)[1]
    if status != b"200":
        assert status in (b"503", b"400"), told
        return "refused"
    ends = told.count(b"data: [DONE]"), told.count(b'data: {"error":')
    assert ends in ((1, 0), (0, 1)), (ends, body, told[:300], told[-300:])
    assert told.rstrip().endswith(b"0"), "the stream itself ended"
    if b"context_length_exceeded" in told:  # after a ping, so there was a status already
        return "refused"
    return "done" if ends[0] else "error"


@pytest.mark.parametrize("kind", ["scripted", "real", "small cache"])
async def test_flood_of_streams(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers, slow readers and clients that leave, more than the engine takes at once; each of those who stay
    gets exactly one end. The real engine has room for a part of them only, and takes blocks back."""
    rnd = random.Random(7)
    if kind == "scripted":
        graph = script_graph(tmp_path / "graph", json.dumps(SCRIPT))
        text = (graph / "graph.pbtxt").read_text()
        options = "max_num_seqs: 8 queue_timeout: 1 models_path:"
        (graph / "graph.pbtxt").write_text(text.replace("models_path:", options, 1))
    else:
        tiny.write(tmp_path / "tiny.gguf", tiny.table())
        graph = graph_of(tmp_path / "graph", tmp_path / "tiny.gguf")
        if kind == "small cache":
            monkeypatch.setattr(engine_spec, "TextSpec", partial(TextSpec, num_kv_blocks=40))
    async with serving(graph, ping=0.05) as (server, _):

        async def client() -> str:
            await asyncio.sleep(rnd.random() * 0.5)
            way = rnd.choice(["reads", "reads", "slow", "leaves"])
            if kind == "scripted":
                content = rnd.choice(["hi", "hi", "large", "wait", "full"])
                body = {"messages": [{"role": "user", "content": content}]}
                return await one_stream(server.port, CHAT, body, way, rnd)
            letters = "".join(rnd.choices("abcdefghij", k=rnd.choice([5, 30, 200, 900, 1400, 5000])))
            body = {"prompt": letters, "max_tokens": rnd.choice([3, 50, 300]), "temperature": 0}
            return await one_stream(server.port, COMPLETIONS, body, way, rnd)

        ends = Counter(await asyncio.gather(*(client() for _ in range(STREAMS))))
        assert ends.total() == STREAMS
        assert ends["done"] > 10
        # What is refused after a ping has begun the stream comes as an error: on a busy machine that is all.
        assert {"done", "left"} < set(ends) <= {"done", "left", "error", "refused"}
        assert kind == "real" or ends["error"] or ends["refused"]
        assert kind == "scripted" or not ends["error"], "whoever fits alone is answered"
        metrics, engine = server.manager.metrics.of("m"), server.engine
        await eventually(lambda: metrics.running == 0 and engine.in_flight == 0, 30)
        assert (metrics.meter.queued, metrics.meter.queued_tokens, metrics.meter.in_engine) == (0, 0, 0)


async def test_a_refused_client_comes_again_within_the_time_of_the_queue(tmp_path: Path) -> None:
    script = {"step_seconds": 0.05, "replies": [{"match": "endless", "text": "word ", "repeat": 0}]}
    graph = script_graph(tmp_path / "graph", json.dumps(script))
    text = (graph / "graph.pbtxt").read_text()
    options = "max_num_seqs: 1 max_queue: 3 queue_timeout: 10 models_path:"
    (graph / "graph.pbtxt").write_text(text.replace("models_path:", options, 1))
    async with serving(graph) as (server, http):

        def ask(content: str) -> Any:
            return http.post(CHAT, json={"model": "m", "messages": [{"role": "user", "content": content}]})

        meter = server.manager.metrics.of("m").meter
        tasks = [asyncio.create_task(ask("endless"))]
        await eventually(lambda: server.engine.stats().generated_tokens > 30)
        tasks += [asyncio.create_task(ask("endless " + "word " * 3000)) for _ in range(3)]
        await eventually(lambda: meter.queued == 3)
        refused = await ask("hi")
        assert refused.status_code == 503
        assert 1 <= int(refused.headers["retry-after"]) <= 10
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def test_the_limits_of_texts_are_the_options() -> None:
    assert (Limits().max_tokenize_bytes, Limits().max_detokenize_tokens) == (1 << 20, 262_144)
