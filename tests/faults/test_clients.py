"""What clients can do to the server, by will or by accident. Rows of docs/reliability.md."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress

import pytest

from ovserve.http.connections import RestLimits
from tests.conftest import eventually
from tests.faults.conftest import LIMITS, Hurt, Hurting


def request(word: str, *, stream: bool = True) -> bytes:
    message = {"role": "user", "content": word}
    body = json.dumps({"model": "m", "stream": stream, "messages": [message]}).encode()
    return b"POST /v3/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (
        len(body),
        body,
    )


async def connect(hurt: Hurt) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", hurt.server.port, limit=1024)


async def connect_narrow(hurt: Hurt) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection whose client takes little: a kernel may hold 32 MB for it, more than the longest answer."""
    narrow = socket.socket()
    narrow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    narrow.setblocking(False)
    await asyncio.get_running_loop().sock_connect(narrow, ("127.0.0.1", hurt.server.port))
    return await asyncio.open_connection(sock=narrow, limit=1024)


async def nothing_left(hurt: Hurt) -> None:
    connections = hurt.server.listener.connections
    kept = 1  # that of the client which judges
    await eventually(lambda: hurt.server.manager.metrics.of("m").running == 0)
    await eventually(lambda: connections.open <= kept)
    assert await hurt.chat() == "whole"
    hurt.check()


@pytest.mark.slow
async def test_500_clients_vanishing_at_once(hurting: Hurting) -> None:
    async with hurting() as hurt:
        metrics = hurt.server.manager.metrics.of("m")
        writers = []
        for _ in range(500):
            _, writer = await connect(hurt)
            writer.write(request("quiet"))
            writers.append(writer)
        # On a busy machine the head of one or another may come too late, which is a 408 and no request.
        await eventually(lambda: metrics.running >= 490, 60)
        begun = metrics.running
        for writer in writers:
            writer.transport.abort()
        await nothing_left(hurt)
        assert 490 <= begun <= metrics.cancelled["disconnect"] <= 500


@pytest.mark.slow
async def test_half_open_sockets(hurting: Hurting) -> None:
    """Peers that TCP believes in: one that never asks, one that asked and is gone, one that says no more."""
    async with hurting() as hurt:
        reader, writer = await connect(hurt)
        assert b" 408 " in await asyncio.wait_for(reader.read(), 60)
        writer.close()
        gone = socket.create_connection(("127.0.0.1", hurt.server.port))
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        gone.sendall(request("flood"))  # and nobody reads
        shut = socket.create_connection(("127.0.0.1", hurt.server.port))
        shut.sendall(request("quiet"))
        await eventually(lambda: hurt.server.manager.metrics.of("m").running == 2)
        shut.shutdown(socket.SHUT_WR)
        await nothing_left(hurt)
        gone.close()
        shut.close()


async def everything(reader: asyncio.StreamReader) -> bytes:
    """What came before the end. A line that meets a closed connection has it reset, after the answer."""
    told = b""
    with suppress(ConnectionResetError):
        while chunk := await reader.read(1 << 16):
            told += chunk
    return told


@pytest.mark.slow
async def test_slow_readers(hurting: Hurting) -> None:
    """They cost the memory of their own text, nobody's time, and after a while nothing."""
    async with hurting() as hurt:
        readers = []
        for _ in range(5):
            reader, writer = await connect_narrow(hurt)
            writer.write(request("flood"))
            assert b" 200 " in await reader.readline()
            readers.append((reader, writer))
        assert [await hurt.chat(stream=n % 2 == 0) for n in range(4)] == ["whole"] * 4
        await nothing_left(hurt)  # the write timeout
        for _, writer in readers:
            writer.close()


@pytest.mark.slow
async def test_a_reader_that_is_slow_but_reads_is_served(hurting: Hurting) -> None:
    async with hurting() as hurt:
        reader, writer = await connect_narrow(hurt)
        writer.write(request("flood"))
        for _ in range(80):  # twice the write timeout, and half of the answer's 4 MB
            assert await reader.readexactly(1 << 15)
            await asyncio.sleep(0.1)
        told = b""
        while b"data: [DONE]" not in told:
            chunk = await reader.read(1 << 18)
            assert chunk, "it was cut"
            told = told[-20:] + chunk
        writer.close()
        await nothing_left(hurt)


async def test_slowloris_headers(hurting: Hurting) -> None:
    async with hurting() as hurt:
        connections = hurt.server.listener.connections
        pairs = [await connect(hurt) for _ in range(50)]

        async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
            answer = asyncio.create_task(everything(reader))
            writer.write(b"POST /v3/chat/completions HTTP/1.1\r\n")
            while not answer.done():
                writer.write(b"X-A: b\r\n")
                await asyncio.wait({answer}, timeout=0.1)
            writer.close()
            return await answer

        dripping = [asyncio.create_task(drip(*pair)) for pair in pairs]
        assert await hurt.chat() == "whole"
        assert all(b" 408 " in answer for answer in await asyncio.gather(*dripping))
        await eventually(lambda: connections.open <= 1)
        hurt.check()


def test_the_limits_in_force_are_the_options() -> None:
    """These tests run with short ones."""
    assert (LIMITS.read_seconds, LIMITS.write_seconds) == (4.0, 4.0)
    assert (RestLimits(1, 1.0).read_seconds, RestLimits(1, 1.0).write_seconds) == (60.0, 60.0)


async def test_slow_writers(hurting: Hurting) -> None:
    """Bodies that come a byte at a time: each connection is closed with a 408, others are answered meanwhile."""
    async with hurting() as hurt:
        connections = hurt.server.listener.connections
        pairs = [await connect(hurt) for _ in range(50)]
        whole = request("hi")

        async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
            answer = asyncio.create_task(everything(reader))
            head = whole.index(b"\r\n\r\n") + 4
            writer.write(whole[:head])
            for byte in whole[head:]:
                if answer.done():
                    break
                writer.write(bytes([byte]))
                await asyncio.wait({answer}, timeout=0.1)
            writer.close()
            return await answer

        dripping = [asyncio.create_task(drip(*pair)) for pair in pairs]
        assert await hurt.chat() == "whole"
        assert all(b" 408 " in answer for answer in await asyncio.gather(*dripping))
        await eventually(lambda: connections.open <= 1)
        hurt.check()
