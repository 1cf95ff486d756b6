"""An answer that is written to its end, and not read to it: the connection is not kept for ever."""

from __future__ import annotations

import asyncio

import pytest

from ovserve.http.connections import Connection, Connections
from tests.conftest import eventually

SIZE = 32 << 20  # more than the kernel keeps
PATIENCE = 0.2


class Answering(asyncio.Protocol):
    """Writes all at once, below the mark at which writers are told to wait, and is done."""

    outer: Connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(high=2 * SIZE)
        self.outer.request_begins()
        transport.write(b"x" * SIZE)
        transport.close()  # when all is sent
        self.outer.request_ended()


@pytest.mark.parametrize("reads", [False, True])
async def test_who_does_not_read_the_end_is_disconnected(reads: bool) -> None:
    all_ = Connections(10, 60.0, PATIENCE)

    def make() -> asyncio.BaseProtocol:
        inner = Answering()
        inner.outer = Connection(all_, inner)
        return inner.outer

    server = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=1024)
    await eventually(lambda: all_.open == 1)
    if reads:  # slowly: it takes several times the patience, and something in each
        got = 0
        while piece := await reader.read(4 << 20):
            got += len(piece)
            await asyncio.sleep(PATIENCE / 400)
        assert got == SIZE
    await eventually(lambda: all_.open == 0)
    writer.close()
    server.close()
