"""CORS: which pages of which origins a browser may let read our answers. Built by `app.py`.

OVMS's options, with an effect that browsers accept: of a list of origins only the one that asks is told, with
`Vary`; `*` for headers names those that were asked for, as a bare `*` leaves out `Authorization`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from aiohttp import hdrs, web

ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^/\s,]+")
MAX_AGE = 600  # seconds a browser may remember a preflight
# What scripts may read of an answer besides the few headers that are always readable.
EXPOSED = (
    "x-request-id, retry-after, retry-after-ms, x-ovserve-ignored-params, x-ovserve-clamped, "
    "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, x-ratelimit-limit-tokens, "
    "x-ratelimit-remaining-tokens"
)


@dataclass(frozen=True)
class Cors:
    """Comma lists, or `*`; empty allows none. With `credentials` the origins must be named."""

    origins: str = "*"
    methods: str = "*"
    headers: str = "*"
    credentials: bool = False

    def problem(self) -> str | None:
        """What is wrong with it, or None."""
        for origin in _split(self.origins):
            if origin != "*" and not ORIGIN.fullmatch(origin.lower()):
                return f"allowed_origins: expected an origin such as https://example.com, got {origin!r}"
        if self.credentials and "*" in _split(self.origins):
            return "allow_credentials: needs origins by name, browsers refuse it together with *"
        return None

    def is_preflight(self, request: web.Request) -> bool:
        return (
            request.method == hdrs.METH_OPTIONS
            and hdrs.ORIGIN in request.headers
            and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
        )

    def add(self, request: web.Request, response: web.StreamResponse) -> None:
        """The headers of an answer, or of a preflight's."""
        allowed = _split(self.origins)
        if not allowed:
            return
        origin = request.headers.get(hdrs.ORIGIN)
        if "*" in allowed:
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = "*"
        else:
            response.headers.add(hdrs.VARY, hdrs.ORIGIN)
            if origin is None or origin.lower() not in [one.lower() for one in allowed]:
                return
            response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            if self.credentials:
                response.headers[hdrs.ACCESS_CONTROL_ALLOW_CREDENTIALS] = "true"
        if self.is_preflight(request):
            asked = request.headers
            methods = _answer(self.methods, asked.get(hdrs.ACCESS_CONTROL_REQUEST_METHOD, ""))
            headers = _answer(self.headers, asked.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, ""))
            if methods:
                response.headers[hdrs.ACCESS_CONTROL_ALLOW_METHODS] = methods
            if headers:
                response.headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = headers
            response.headers[hdrs.ACCESS_CONTROL_MAX_AGE] = str(MAX_AGE)
        else:
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED


def _answer(configured: str, asked: str) -> str:
    return asked if "*" in _split(configured) else ", ".join(_split(configured))


def _split(listed: str) -> list[str]:
    return [one.strip() for one in listed.split(",") if one.strip()]
