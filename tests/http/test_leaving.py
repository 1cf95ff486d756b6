"""A client that goes away frees the engine (the production application and runner, a real engine process)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from ovserve.http.sse import EventStream
from tests.conftest import ROOT, eventually
from tests.http.conftest import Running, Scripted, running

ENDLESS = json.dumps({"step_seconds": 0.02, "replies": [{"text": "word ", "repeat": 0}]})


LAST_CHUNK = b"\r\n0\r\n\r\n"


async def begin(
    server: Running, *, stream: bool, max_tokens: int | None = None, to_end: bool = False
) -> asyncio.StreamWriter:
    """Send a request and, when streaming, wait for its first text or for the end of the answer."""
    body = {"model": "m", "stream": stream, "messages": [{"role": "user", "content": "go"}]}
    if max_tokens:
        body |= {"max_tokens": max_tokens, "ignore_eos": True}
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        b"POST /v3/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data
    )
    if stream:
        seen = b""
        while LAST_CHUNK not in seen if to_end else seen.count(b"data: ") < 3:
            seen += await asyncio.wait_for(reader.read(4096), 60)
    else:
        await eventually(lambda: server.engine.stats().generated_tokens > 3)
    return writer


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("politely", [True, False])
async def test_client_leaves(scripted: Scripted, stream: bool, politely: bool) -> None:
    async with scripted(ENDLESS) as server:
        writer = await begin(server, stream=stream)
        assert server.engine.stats().running == 1
        if politely:
            writer.close()
        else:
            writer.transport.abort()
        await eventually(lambda: server.engine.stats().running == 0)
        assert server.engine.stats().aborted == 1


async def test_a_client_that_leaves_after_the_last_piece_had_its_answer(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the server still does then is cut off by the closed connection; it is not a request without answer."""

    async def slow(self: EventStream, *error: object) -> None:
        await asyncio.sleep(30)

    monkeypatch.setattr(EventStream, "__aexit__", slow)
    caplog.set_level("INFO", "ovserve.access")
    async with scripted(json.dumps({"replies": [{"text": "one two"}]})) as server:
        writer = await begin(server, stream=True, to_end=True)
        writer.close()
        await eventually(lambda: "chat/completions" in caplog.text)
        assert "chat/completions 200" in caplog.text


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def test_the_real_engine_stops_working_when_the_client_leaves(model: Path) -> None:
    async with running(ROOT / "graphs/smollm2") as server:
        for stream in (True, False):
            tokens = server.engine.stats().generated_tokens
            writer = await begin(server, stream=stream, max_tokens=4000)
            await eventually(lambda before=tokens: server.engine.stats().generated_tokens > before + 3)
            writer.transport.abort()
            await eventually(lambda: server.engine.stats().running == 0)
            for _ in range(
                25
            ):  # the engine may still compile; 4000 tokens take 30 s and more, all of them busy
                before = cpu_seconds(server.engine.pid)
                await asyncio.sleep(0.6)
                if (used := cpu_seconds(server.engine.pid) - before) < 0.1:
                    break
            assert used < 0.1, stream
        writer = await begin(server, stream=True, max_tokens=5)
        writer.close()


async def test_one_leaving_does_not_disturb_the_others(scripted: Scripted) -> None:
    async with scripted(ENDLESS) as server:
        writers = [await begin(server, stream=True) for _ in range(6)]
        for writer in writers[:3]:
            writer.transport.abort()
        await eventually(lambda: server.engine.stats().running == 3)
        before = server.engine.stats().generated_tokens
        await eventually(lambda: server.engine.stats().generated_tokens > before + 9)
        for writer in writers[3:]:
            writer.transport.abort()
        await eventually(lambda: server.engine.stats().running == 0)
