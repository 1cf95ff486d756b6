"""The files of the console, read from the package on demand, with the headers that confine them in a browser.

The content security policy has no exception: scripts and styles are files of this server, and nothing is
fetched from elsewhere. Files are open to clients without a key, because they hold nothing of this server.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from pathlib import Path

from aiohttp import web

from ovserve.errors import NotFound

STATIC = Path(__file__).parent / "static"
HOME = "/console/"
ENTRY = "console/"  # relative to / and to /console, so that it holds behind a proxy with a prefix
TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".txt": "text/plain",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "media-src 'self' data: blob:",
        "connect-src 'self'",
        "font-src 'self'",
        "form-action 'none'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types ovserve dompurify",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(self), geolocation=()",
    "Cache-Control": "no-cache",  # with an ETag: a page and its scripts are always of one release
}
SMALLEST_PACKED = 1024  # bytes; below, gzip saves less than a packet


class Pages:
    """Serves the files. A file is read at its first use and kept, packed and not."""

    def __init__(self, root: Path = STATIC) -> None:
        self._root = root
        self._kept: dict[str, tuple[tuple[int, int], str, bytes, bytes]] = {}

    async def get(self, request: web.Request) -> web.Response:
        """GET /console/ and below. The one page keeps its views behind the #."""
        name = request.match_info.get("path", "") or "index.html"
        page = await asyncio.to_thread(self._read, name)
        if page is None:
            raise NotFound(f"the console has no file {name!r}")
        _, tag, plain, packed = page
        headers = {**HEADERS, "ETag": tag, "Vary": "Accept-Encoding"}
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        content = plain
        if packed and "gzip" in request.headers.get("Accept-Encoding", ""):
            content = packed
            headers["Content-Encoding"] = "gzip"
        return web.Response(
            body=content, content_type=TYPES[Path(name).suffix], charset="utf-8", headers=headers
        )

    async def enter(self, request: web.Request) -> web.Response:
        """GET /console: relative addresses in the page need the slash."""
        return web.Response(status=308, headers={"Location": ENTRY})

    def _read(self, name: str) -> tuple[tuple[int, int], str, bytes, bytes] | None:
        path = self._root / name
        if path.suffix not in TYPES or not path.resolve().is_relative_to(self._root.resolve()):
            return None
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            cached = self._kept.get(name)
            if cached is None or cached[0] != stamp:
                plain = path.read_bytes()
                tag = f'"{hashlib.sha256(plain).hexdigest()[:20]}"'
                packed = gzip.compress(plain, 6, mtime=0) if len(plain) >= SMALLEST_PACKED else b""
                cached = self._kept[name] = stamp, tag, plain, packed
        except (OSError, ValueError):
            return None
        return cached


def wants_page(request: web.Request) -> bool:
    """Return whether the client is a browser that opens a page."""
    return "text/html" in request.headers.get("Accept", "")
