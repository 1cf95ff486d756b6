"""What one client may ask of the HTTP server; read by `app.py`, `body.py` and `listen.py`."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

KEEP_ALIVE_SECONDS = 75.0  # of an idle connection; aiohttp's own hour is for being behind a proxy
LINGER_SECONDS = 1.0  # for a client that still sends a body which is refused already, to read why


@dataclass(frozen=True)
class RestLimits:
    """Sizes are of what is sent, and of a body also once it is unpacked."""

    body_bytes: int
    shutdown_seconds: float  # for handlers to return once the runner is cleaned up
    head_bytes: int = 16384  # of the request line, and of each header
    read_seconds: float = 60.0  # for the head of a request, and again for its body
    write_seconds: float = 60.0  # for a client to take something of what waits for it
    connections: int = 1000
    ping_seconds: float = 15.0  # of silence after which a stream says that it is alive; 0: never


LIMITS = web.AppKey("LIMITS", RestLimits)
