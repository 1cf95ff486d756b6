"""Paths that this server does not have: a 404 that says why, or names the path that was meant.

Some are of the APIs that we speak. Without a row here such a path is unknown, or a 405 where another path's
pattern has its shape. Others are misspelt: a base address with a slash at its end, or with a version that the
client adds as well.
"""

from __future__ import annotations

import re

from aiohttp import web
from yarl import URL

from ovserve.errors import NotFound

_ABSENT = (
    (
        re.compile(r"/(?:.+/)?images/embeddings"),
        "this server embeds text, and has no embeddings of images",
    ),
    (
        re.compile(r"/(?:.+/)?responses/compact"),
        "conversations are not compacted here; truncation: auto of responses leaves the oldest turns out",
    ),
    (
        re.compile(r"/(?:.+/)?realtime/(?:calls|sessions|transcription_sessions|translations)(?:/.*)?"),
        "Realtime is served over a WebSocket, at GET /v1/realtime; there is no WebRTC and no SIP, and "
        "POST /v1/realtime/client_secrets makes keys for pages",
    ),
)


VERSIONS = ("v1", "v3", "api", "openai")
MAX_PARTS = 16  # of a path that is compared with known ones; each costs a search


async def not_found(request: web.Request) -> NotFound:
    """The error for a path without a handler."""
    path = request.path
    if (reason := why_absent(path)) is not None:
        return reason
    for near in near_paths(path):
        match = await request.app.router.resolve(request.clone(rel_url=URL.build(path=near)))
        if match.http_exception is None:
            return NotFound(f"no such path: {path}; use {near}")
        if isinstance(match.http_exception, web.HTTPMethodNotAllowed):
            methods = " or ".join(sorted(match.http_exception.allowed_methods - {"HEAD", "OPTIONS"}))
            return NotFound(f"no such path: {path}; use {methods} {near}")
    return NotFound(f"no such path: {path}")


def near_paths(path: str) -> list[str]:
    """Return the paths that may be meant, the longest first: without doubled and last slashes, without what
    the base address and the client both add, and with fewer versions or without a proxy's prefix in front."""
    parts = [part for part in path.split("/") if part]
    if len(parts) > MAX_PARTS:
        return []
    near = [parts]
    for size in range(1, len(parts) // 2 + 1):
        if parts[-size:] == parts[-2 * size : -size]:
            near.append(parts[:-size])
    near += [parts[at:] for at in range(1, len(parts)) if parts[at] in VERSIONS]
    shorter = parts
    while shorter and shorter[0] in VERSIONS:
        shorter = shorter[1:]
        near += [shorter, ["v1", *shorter], [parts[0], *shorter]]
    near.sort(key=len, reverse=True)
    return [one for one in dict.fromkeys("/" + "/".join(parts) for parts in near) if one != path]


def why_absent(path: str) -> NotFound | None:
    """None for a path that nothing is known of."""
    for pattern, why in _ABSENT:
        if pattern.fullmatch(path):
            return NotFound(f"no such path: {path}; {why}")
    return None
