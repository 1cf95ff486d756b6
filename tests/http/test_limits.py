"""What one client may ask for: sizes, times, connections. Each with a raw socket where a client would not."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from ovserve.http.connections import Listener, RestLimits
from tests.conftest import eventually, script_graph
from tests.http.conftest import Running, running
from tests.http.loop import Loop

HEAD = b"POST /v3/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


@asynccontextmanager
async def limited(
    directory: Path, *, read_seconds: float = 30, connections: int = 100
) -> AsyncIterator[tuple[Running, Listener]]:
    limits = RestLimits(1 << 16, 2.0, head_bytes=4096, read_seconds=read_seconds, connections=connections)
    async with running(script_graph(directory, "{}"), limits=limits) as it:
        yield it, it.listener


async def talk(port: int, *pieces: bytes, pause: float = 0) -> bytes:
    """Everything the server says until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


async def test_a_head_that_never_ends_is_cut_off(tmp_path: Path) -> None:
    async with limited(tmp_path, read_seconds=0.3) as (it, listener):
        assert status(await talk(it.port, HEAD)) == 408
        assert status(await talk(it.port)) == 408, "nothing was sent at all"
        await eventually(lambda: listener.connections.open == 0)


async def test_a_head_that_drips_is_cut_off_too(tmp_path: Path) -> None:
    async with limited(tmp_path, read_seconds=0.3) as (it, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)

        async def drip() -> None:
            for _ in range(1000):
                writer.write(b"X-A: b\r\n" if _ else HEAD)
                await asyncio.sleep(0.02)

        dripping = asyncio.create_task(drip())
        assert status(await asyncio.wait_for(reader.readline(), 60)) == 408
        dripping.cancel()
        writer.close()


async def test_the_clock_starts_again_on_a_connection_that_was_kept(tmp_path: Path) -> None:
    async with limited(tmp_path, read_seconds=1) as (it, _):
        get = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
        answer = await talk(it.port, get, get[:-2], pause=0.05)
        assert answer.count(b"HTTP/1.1 200") == 1
        assert answer.count(b"HTTP/1.1 408") == 1


async def test_an_idle_connection_is_kept_and_an_answer_may_take_long(tmp_path: Path) -> None:
    script = json.dumps({"step_seconds": 0.2, "replies": [{"text": "a b c d e f g h"}]})
    limits = RestLimits(1 << 16, 2.0, read_seconds=1)  # the client sends its head later on a busy machine
    async with (
        running(script_graph(tmp_path, script), limits=limits) as it,
        httpx.AsyncClient(base_url=it.url) as http,
    ):
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        assert (await http.post("/v3/chat/completions", json=body, timeout=230)).status_code == 200
        await asyncio.sleep(1.2)
        assert (await http.get("/v3/models")).status_code == 200
        assert it.listener.connections.open == 1, "it is the same connection"


async def test_a_body_that_never_ends_is_a_408(tmp_path: Path) -> None:
    async with limited(tmp_path, read_seconds=0.3) as (it, _):
        answer = await talk(it.port, HEAD + b"Connection: close\r\nContent-Length: 100\r\n\r\n{")
        assert status(answer) == 408
        assert b"did not arrive within 0.3 s" in answer


async def test_connections_over_the_limit_are_told_so(tmp_path: Path) -> None:
    async with limited(tmp_path, connections=2) as (it, listener):
        held = [await asyncio.open_connection("127.0.0.1", it.port) for _ in range(2)]
        await eventually(lambda: listener.connections.open == 2)
        refused = await talk(it.port)
        assert status(refused) == 503
        assert b"Retry-After: 1" in refused
        for _, writer in held:
            writer.close()
        await eventually(lambda: listener.connections.open == 0)
        async with httpx.AsyncClient(base_url=it.url) as http:
            assert (await http.get("/v2/health/live")).status_code == 200


async def test_a_connection_that_asks_nothing_gives_its_place_to_a_newcomer(tmp_path: Path) -> None:
    async with limited(tmp_path, connections=3) as (it, listener):
        get = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
        kept = []
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
            writer.write(get)
            assert await reader.readuntil(b"\r\n\r\n")
            kept.append((reader, writer))
        silent = await asyncio.open_connection("127.0.0.1", it.port)  # has asked nothing yet: it may
        await eventually(lambda: listener.connections.open == 3)

        close = get.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        for _ in range(200):  # those who asked a moment ago are left alone
            if status(await talk(it.port, close)) == 200:
                break
            await asyncio.sleep(0.05)
        (longest, _), (reader, writer) = kept
        assert b"HTTP/1.1" not in await asyncio.wait_for(longest.read(), 60), (
            "it is closed, and was told nothing"
        )
        writer.write(get)
        assert status(await reader.readline()) == 200, "it asked later, and stays"
        silent[1].write(get)
        assert status(await silent[0].readline()) == 200
        assert listener.connections.open == 2
        for _, writer in (*kept, silent):
            writer.close()
        await eventually(lambda: listener.connections.open == 0)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"a" * 5000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Many: a\r\n" * 5000 + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01",  # TLS to a port without
    ],
    ids=["url", "header", "headers", "smuggling", "tls"],
)
async def test_a_head_that_is_too_much_or_wrong_is_refused(tmp_path: Path, request_: bytes) -> None:
    async with limited(tmp_path) as (it, _):
        assert status(await talk(it.port, request_)) == 400
        async with httpx.AsyncClient(base_url=it.url) as http:
            assert (await http.get("/v2/health/live")).status_code == 200


async def test_the_limit_holds_for_what_a_body_unpacks_to(tmp_path: Path) -> None:
    async with limited(tmp_path) as (it, _), httpx.AsyncClient(base_url=it.url) as http:
        bomb = gzip.compress(b"[" * 50_000_000)
        assert len(bomb) < 1 << 16
        headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
        answer = await http.post("/v3/chat/completions", content=bomb, headers=headers, timeout=230)
        assert answer.status_code == 413
        assert "65536" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v3/chat/completions", "/nowhere"])
async def test_the_rest_of_a_rejected_body_is_not_unpacked(tmp_path: Path, path: str) -> None:
    """The answer comes, the connection ends, and the event loop is not held meanwhile."""
    bomb = gzip.compress(b"[" * 200_000_000)
    head = HEAD.replace(b"/v3/chat/completions", path.encode())
    head += b"Content-Encoding: gzip\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    async with limited(tmp_path) as (it, _), Loop() as loop:
        assert status(await talk(it.port, head + bomb)) == (404 if path == "/nowhere" else 413)
    assert loop.held < 0.2


@pytest.mark.parametrize("deep", ["[" * 30_000, '{"a":' * 10_000, "[" * 30_000 + "]" * 30_000])
async def test_a_body_nested_too_deep_is_a_400(tmp_path: Path, deep: str) -> None:
    async with limited(tmp_path) as (it, _), httpx.AsyncClient(base_url=it.url) as http:
        for body in (deep, f'{{"model":"m","messages":{deep}}}', f'{{"model":"m","unknown":{deep}}}'):
            answer = await http.post("/v3/chat/completions", content=body[: 1 << 16])
            assert answer.status_code == 400, answer.text


@pytest.mark.parametrize(
    "path",
    [
        "/v3/models/../../etc/passwd",
        "/v3/models/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/v3/models/..%2f..%2fgraphs",
        "/v3/models/m%00",
        "/v3/responses/..%2f..%2fetc%2fpasswd",
        "/v3/responses/%27%20OR%201=1--",
        "//etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
    ],
)
async def test_names_in_paths_are_names_and_no_paths(tmp_path: Path, path: str) -> None:
    async with limited(tmp_path) as (it, _):
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()
        answer = await talk(it.port, request)
        assert status(answer) in (400, 404), answer
        assert b"root:" not in answer
