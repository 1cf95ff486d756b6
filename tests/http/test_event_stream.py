"""EventStream.put: what one turn of the event loop puts is one write, and a slow client is waited for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from ovserve.http.connections import LIMITS, RestLimits
from ovserve.http.sse import MOST_UNSENT, EventStream

Use = Callable[[EventStream, web.Request], Awaitable[None]]


@asynccontextmanager
async def served(use: Use, pings: float = 0.0) -> AsyncIterator[int]:
    """A server whose answers are what `use` does with a stream; the port."""

    async def handle(request: web.Request) -> web.StreamResponse:
        async with EventStream(request, {}, pings=pings > 0) as stream:
            await stream.begin({})
            await use(stream, request)
            return await stream.end()

    app = web.Application()
    app[LIMITS] = RestLimits(1 << 20, 2.0, ping_seconds=pings)
    app.router.add_get("/", handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


async def read_slowly(port: int, *, version: str = "1.1", pause: float = 0.0) -> bytes:
    """The whole answer, by a client that waits before it reads and has a small buffer."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=sock)
    writer.write(f"GET / HTTP/{version}\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    await asyncio.sleep(pause)
    try:
        return await reader.read(-1)
    finally:
        writer.close()


def body_of(answer: bytes) -> list[bytes]:
    """The chunks of a chunked body."""
    rest, chunks = answer.partition(b"\r\n\r\n")[2], []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if size == b"0":
            return chunks
        chunks.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]


async def test_the_pieces_of_a_turn_are_one_chunk() -> None:
    async def use(stream: EventStream, request: web.Request) -> None:
        for turn in (b"1", b"2"):
            for piece in (b"a", b"b"):
                assert stream.put(piece + turn)
            await asyncio.sleep(0.01)
        stream.put(b"last")

    async with served(use) as port:
        assert body_of(await read_slowly(port)) == [b"a1b1", b"a2b2", b"last"]


async def test_a_write_comes_after_what_was_put() -> None:
    async def use(stream: EventStream, request: web.Request) -> None:
        stream.put(b"one ")
        await stream.write(b"two ")
        stream.put(b"three ")
        await stream.drain()
        stream.put(b"four")

    async with served(use) as port:
        assert body_of(await read_slowly(port)) == [b"one two ", b"three ", b"four"]


async def test_a_body_without_chunks() -> None:
    async def use(stream: EventStream, request: web.Request) -> None:
        stream.put(b"one ")
        await asyncio.sleep(0.01)
        stream.put(b"two")

    async with served(use) as port:
        answer = await read_slowly(port, version="1.0")
        assert answer.partition(b"\r\n\r\n")[2] == b"one two"


async def test_a_slow_client_holds_the_stream_and_gets_all_of_it() -> None:
    pieces = [b"%d " % n * 200 for n in range(4000)]  # 4 MB
    most, waits = 0, 0

    async def use(stream: EventStream, request: web.Request) -> None:
        nonlocal most, waits
        for piece in pieces:
            room = stream.put(piece)
            assert request.transport is not None
            most = max(most, request.transport.get_write_buffer_size())  # type: ignore[attr-defined]
            if not room:
                waits += 1
                await stream.drain()

    async with asyncio.timeout(60), served(use) as port:
        answer = await read_slowly(port, pause=0.3)
    assert b"".join(body_of(answer)) == b"".join(pieces)
    assert waits > 10
    assert most < 2 * MOST_UNSENT + len(pieces[-1])


async def test_small_pieces_of_one_turn_are_bounded() -> None:
    """A node that flushes in a loop would hold up every other request until 64 kB are together."""
    taken: list[int] = []

    async def use(stream: EventStream, request: web.Request) -> None:
        for _ in range(2):
            count = 1
            while count < 10_000 and stream.put(b""):
                count += 1
            taken.append(count)
            await stream.drain()

    async with asyncio.timeout(60), served(use) as port:
        assert body_of(await read_slowly(port)) == []
    assert taken[0] == taken[1] <= 200


async def test_drain_says_that_the_client_has_left() -> None:
    left: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def use(stream: EventStream, request: web.Request) -> None:
        try:
            assert request.transport is not None
            request.transport.abort()
            assert not stream.put(b"for nobody")
            await stream.drain()
        except BaseException as exc:
            left.set_result(exc)
            raise

    async with asyncio.timeout(60), served(use) as port:
        with suppress(ConnectionError):
            assert await read_slowly(port) == b""
        assert isinstance(await left, ConnectionError)


def unsent(request: web.Request) -> int:
    assert request.transport is not None
    size: int = request.transport.get_write_buffer_size()  # type: ignore[attr-defined]
    return size


async def test_no_ping_follows_the_end_that_waits_for_its_client() -> None:
    piece = b"x" * (8 << 20)  # more than the kernel keeps

    async def use(stream: EventStream, request: web.Request) -> None:
        stream.put(piece)

    async with asyncio.timeout(60), served(use, pings=0.05) as port:
        answer = await read_slowly(port, pause=0.5)
    assert body_of(answer) == [piece]
    assert answer.endswith(b"\r\n0\r\n\r\n")


async def test_a_client_that_reads_nothing_gets_no_pings() -> None:
    """Each would look as if it had read something, and so keep its connection past --write_timeout."""
    sizes: list[int] = []

    async def use(stream: EventStream, request: web.Request) -> None:
        writing = asyncio.create_task(stream.write(b"x" * (8 << 20)))
        for _ in range(2):
            await asyncio.sleep(0.25)
            sizes.append(unsent(request))
        await writing

    async with asyncio.timeout(60), served(use, pings=0.05) as port:
        answer = await read_slowly(port, pause=0.8)
    assert sizes[0] == sizes[1] > MOST_UNSENT
    assert b"".join(body_of(answer)).replace(b": ping\n\n", b"") == b"x" * (8 << 20)
