"""The limits of the HTTP server for each client."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

KEEP_ALIVE_SECONDS = 75.0  # of an idle connection; aiohttp's default of an hour is for servers behind a proxy
LINGER_SECONDS = 1.0  # for a client that still sends a rejected body, to read the error


@dataclass(frozen=True)
class RestLimits:
    """Limits. Sizes apply to the data sent, and for a body also to its decompressed form."""

    body_bytes: int
    shutdown_seconds: float  # time for handlers to return during shutdown
    head_bytes: int = 16384  # limit of the request line, and of each header
    read_seconds: float = 60.0  # time for the head of a request, and again for its body
    write_seconds: float = 60.0  # time for a client to read some of its pending data
    connections: int = 1000
    ping_seconds: float = 15.0  # silence before a stream sends a ping; 0: never


LIMITS = web.AppKey("LIMITS", RestLimits)
