"""Accept connections at the HTTP server's sockets, with or without TLS.

It replaces aiohttp's sites, which only accept aiohttp's own protocols; ours are wrapped by `connections.py`.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from ovserve.http.transport.connections import Connections
from ovserve.http.transport.limits import RestLimits
from ovserve.http.transport.sockets import LISTEN_BACKLOG, Sockets
from ovserve.http.transport.tls import Certificate


class Listener:
    def __init__(
        self, runner: web.AppRunner, limits: RestLimits, certificate: Certificate | None = None
    ) -> None:
        """`runner` must be set up already."""
        self.connections = Connections(limits.connections, limits.read_seconds, limits.write_seconds)
        self._runner = runner
        self._certificate = certificate
        self._servers: list[asyncio.Server] = []

    async def open(self, sockets: Sockets) -> None:
        """Open them. TLS is for TCP only: the file permissions of a Unix socket control its access."""
        loop = asyncio.get_running_loop()
        context = self._certificate.context if self._certificate else None
        for one in sockets.tcp:
            server = await loop.create_server(self._protocol, sock=one, ssl=context, backlog=LISTEN_BACKLOG)
            self._servers.append(server)
        for one in sockets.unix:
            self._servers.append(
                await loop.create_unix_server(self._protocol, sock=one, backlog=LISTEN_BACKLOG)
            )

    def close(self) -> None:
        """Accept no more connections; open ones stay."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _protocol(self) -> asyncio.Protocol:
        if self._certificate is not None:
            self._certificate.refresh()
        server = self._runner.server
        if server is None:  # it is shutting down
            raise ConnectionAbortedError("the server is stopping")
        return self.connections.protocol(server)
