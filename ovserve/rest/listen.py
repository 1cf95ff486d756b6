"""The sockets of the HTTP server: TCP addresses and unix sockets, with TLS or without. Made by `server.py`.

Not aiohttp's sites: those take their protocols from aiohttp alone, and ours are wrapped by `connections.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
from collections.abc import Sequence

from aiohttp import web

from ovserve.errors import LoadError
from ovserve.rest.addresses import UNIX, url
from ovserve.rest.connections import Connections
from ovserve.rest.limits import RestLimits
from ovserve.rest.tls import Certificate

BACKLOG = 1024


class Listener:
    def __init__(
        self, runner: web.AppRunner, limits: RestLimits, certificate: Certificate | None = None
    ) -> None:
        """`runner` is set up already."""
        self.connections = Connections(limits.connections, limits.read_seconds, limits.write_seconds)
        self._runner = runner
        self._certificate = certificate
        self._servers: list[asyncio.Server] = []
        self._paths: list[str] = []
        self.port = 0  # of TCP; 0 with unix sockets alone

    async def open(self, addresses: Sequence[str], port: int) -> list[str]:
        """Listen on all, or raise LoadError. Returns where to find it, in the same order.

        With port 0 the first address takes a free one and the others the same. TLS is for TCP: who may use a
        unix socket is said by the rights of its file.
        """
        urls = []
        self.port = port
        try:
            for address in addresses:
                if address.startswith(UNIX):
                    await self._open_unix(address.removeprefix(UNIX))
                else:
                    await self._open_tcp(address.strip("[]"))
                urls.append(url("https" if self._certificate else "http", address, self.port))
        except OSError as exc:
            # getaddrinfo has its own numbers, which strerror does not know
            why = exc.strerror if isinstance(exc, socket.gaierror) else os.strerror(exc.errno or 0)
            where = address if address.startswith(UNIX) else f"{address}:{self.port}"
            await self.close()
            raise LoadError(f"cannot listen on {where}: {why}") from exc
        return urls

    async def close(self) -> None:
        """Take no more connections; those that are open stay."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self._paths.clear()

    async def _open_tcp(self, host: str) -> None:
        context = self._certificate.context if self._certificate else None
        loop = asyncio.get_running_loop()
        server = await loop.create_server(self._protocol, host, self.port, ssl=context, backlog=BACKLOG)
        self._servers.append(server)
        self.port = self.port or server.sockets[0].getsockname()[1]

    async def _open_unix(self, path: str) -> None:
        _remove_dead_socket(path)
        loop = asyncio.get_running_loop()
        self._servers.append(await loop.create_unix_server(self._protocol, path, backlog=BACKLOG))
        self._paths.append(path)

    def _protocol(self) -> asyncio.Protocol:
        if self._certificate is not None:
            self._certificate.refresh()
        server = self._runner.server
        if server is None:  # it is being cleaned up
            raise ConnectionAbortedError("the server is stopping")
        return self.connections.protocol(server)


def _remove_dead_socket(path: str) -> None:
    """One that a killed server left behind. asyncio would take it from a living one, too."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        else:
            raise OSError(errno.EADDRINUSE, "in use", path)
