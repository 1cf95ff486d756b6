"""A pod that is deleted, as Kubernetes does it: it leaves the endpoints a moment after its preStop hook has begun, and
SIGTERM comes when the hook is over. Clients keep their connections and stream all the time; none may lose a request.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx
import openai
import pytest

from tests.conftest import Server, script_graph, start_server
from tests.e2e.test_stopping import content_of, until_stopping

pytestmark = pytest.mark.long

WORDS = 12
LONG = 60  # words of an answer that keeps the pod for longer than the clients' retries last
REPLIES = [{"match": "long", "text": "w ", "repeat": LONG}, {"text": "w ", "repeat": WORDS}]
SCRIPT = json.dumps({"step_seconds": 0.04, "replies": REPLIES})
CLIENTS = 6
PROPAGATION, PRE_STOP = 0.3, 0.7  # seconds; 15 s of preStop in the manifests


class Switch:
    """What a Service does: each new connection goes to the next of the endpoints, and stays where it is."""

    def __init__(self, endpoints: list[int]) -> None:
        self.endpoints = endpoints
        self._turn = itertools.count()
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        try:
            yield f"http://{host}:{port}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        port = self.endpoints[next(self._turn) % len(self.endpoints)]
        with suppress(ConnectionError, asyncio.CancelledError):
            back, forth = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(_copy(reader, forth), _copy(back, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[list[Server]]:
    graph = script_graph(tmp_path / "g", SCRIPT)
    with ExitStack() as stack:
        servers = []
        for _ in range(2):
            servers.append(start_server(graph, "--shutdown_timeout", "20", name="m"))
            stack.callback(servers[-1].stop)
        yield servers


async def stream_until(over: asyncio.Event, url: str) -> list[str]:
    """Ask again and again as OpenAI's client does by itself: with its connections kept, and two retries."""
    texts = []
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=230) as client:
        while not over.is_set():
            stream = await client.chat.completions.create(
                model="m", stream=True, messages=[{"role": "user", "content": "hi"}]
            )
            text, ended = "", False
            async for chunk in stream:
                for choice in chunk.choices:
                    text += choice.delta.content or ""
                    ended = choice.finish_reason == "stop"
            assert ended, text
            texts.append(text)
    return texts


async def test_a_pod_that_is_deleted_loses_no_request(pods: list[Server]) -> None:
    leaving, staying = pods
    ports = [httpx.URL(pod.url).port or 0 for pod in pods]
    switch, over = Switch(ports), asyncio.Event()
    async with switch.listening() as url, httpx.AsyncClient(base_url=leaving.url) as probe:
        clients = [asyncio.create_task(stream_until(over, url)) for _ in range(CLIENTS)]
        await asyncio.sleep(0.5)
        deleted = time.monotonic()
        await asyncio.sleep(PROPAGATION)
        switch.endpoints = [ports[1]]
        await asyncio.sleep(deleted + PRE_STOP - time.monotonic())
        assert (await probe.get("/v2/health/ready")).status_code == 200, "preStop tells the server nothing"
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "long"}]}
        async with probe.stream("POST", "/v1/chat/completions", json=body) as long:
            lines = long.aiter_lines()
            received = [await anext(lines)]
            engine = leaving.engine_pid()
            os.kill(engine, signal.SIGSTOP)  # no answer ends while the probes are asked
            try:
                leaving.process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(until_stopping, leaving)
                ready = await probe.get("/v2/health/ready")
                assert (ready.status_code, ready.headers["Connection"]) == (503, "close")
                assert (await probe.get("/v2/health/live")).status_code == 200, "streams are still running"
            finally:
                os.kill(engine, signal.SIGCONT)
            received += [line async for line in lines]
        ends = "".join(received).count('"finish_reason":"stop"')
        assert (content_of(received), ends) == ("w " * LONG, 1)
        assert await asyncio.to_thread(leaving.process.wait, 60) == 0
        over.set()
        texts = [text for texts in await asyncio.gather(*clients) for text in texts]
    assert set(texts) == {("w " * WORDS)}
    assert len(texts) >= 2 * CLIENTS
    assert staying.process.poll() is None
