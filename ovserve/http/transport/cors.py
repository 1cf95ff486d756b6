"""CORS: the origins whose pages may read the server's answers in a browser.

The options are OVMS's, with an effect that browsers accept. Of a list of origins, only the requesting one is
returned, with `Vary`. `*` for headers returns the requested names, because a bare `*` excludes
`Authorization`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from aiohttp import hdrs, web

ORIGIN = re.compile(r"null|[a-z][a-z0-9+.-]*://[^/\s,]+")
MAX_AGE = 600  # seconds a browser may remember a preflight
# Headers that scripts may read, in addition to those that are always readable.
EXPOSED = (
    "x-request-id, retry-after, retry-after-ms, x-ovserve-ignored-params, x-ovserve-clamped, "
    "x-ovserve-adapted, x-ovserve-truncated, x-ovserve-repetition, "
    "x-ratelimit-limit-requests, x-ratelimit-remaining-requests, "
    "x-ratelimit-limit-tokens, x-ratelimit-remaining-tokens"
)


@dataclass(frozen=True)
class Cors:
    """The options: comma lists, or `*`; empty allows none. With `credentials` the origins must be named."""

    origins: str = "*"
    methods: str = "*"
    headers: str = "*"
    credentials: bool = False

    @cached_property
    def _allowed(self) -> tuple[str, ...]:
        return tuple(_split(self.origins))

    def problem(self) -> str | None:
        """Return what is wrong with the options, or None."""
        for origin in _split(self.origins):
            if origin != "*" and not ORIGIN.fullmatch(origin.lower()):
                return f"allowed_origins: expected an origin such as https://example.com, got {origin!r}"
        if self.credentials and "*" in _split(self.origins):
            return "allow_credentials: needs origins by name, because browsers reject it together with *"
        return None

    def names(self, origin: str) -> bool:
        """Return whether the options name this origin; `*` names none."""
        return bool(origin) and origin.lower() in [one.lower() for one in self._allowed if one != "*"]

    def is_preflight(self, request: web.Request) -> bool:
        return (
            request.method == hdrs.METH_OPTIONS
            and hdrs.ORIGIN in request.headers
            and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
        )

    def add(self, request: web.Request, response: web.StreamResponse) -> None:
        """Add the headers of an answer, or of a preflight's."""
        allowed = self._allowed
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
            request_headers = request.headers
            methods = _answer(self.methods, request_headers.get(hdrs.ACCESS_CONTROL_REQUEST_METHOD, ""))
            headers = _answer(self.headers, request_headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, ""))
            if methods:
                response.headers[hdrs.ACCESS_CONTROL_ALLOW_METHODS] = methods
            if headers:
                response.headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = headers
            response.headers[hdrs.ACCESS_CONTROL_MAX_AGE] = str(MAX_AGE)
        else:
            response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED


def _answer(configured: str, requested: str) -> str:
    return requested if "*" in _split(configured) else ", ".join(_split(configured))


def _split(listed: str) -> list[str]:
    return [one.strip() for one in listed.split(",") if one.strip()]
