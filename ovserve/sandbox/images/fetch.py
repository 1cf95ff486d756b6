"""Download an image under --allowed_media_domains.

The name is resolved once, all its addresses are checked, and the connection goes to one of those. So a name
that changes between check and use gains nothing. Redirects are followed explicitly, each checked like a URL
from the client. Proxies of the environment are not used, and bodies are not decompressed.
"""

from __future__ import annotations

import asyncio
import socket

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from ovserve.errors import InvalidArgument
from ovserve.sandbox.images.policy import Policy, as_address

MAX_REDIRECTS = 3
CHUNK_BYTES = 1 << 18
LONGEST_HOST, LONGEST_LABEL = 253, 63  # characters (RFC 1035)
_REDIRECTS = (301, 302, 303, 307, 308)


class NotPublicError(Exception):
    """The host has an address that the policy does not allow."""


class CheckedResolver(AbstractResolver):
    """Resolves names to addresses that are all allowed. aiohttp does not call it for hosts that are
    addresses."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolve. Raises OSError if the host does not exist, NotPublicError if one address is not
        allowed."""
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, family=family
        )
        results: list[ResolveResult] = []
        for family_, _, proto, _, address in found:
            if not self._policy.allows_address(str(address[0])):
                raise NotPublicError(host)
            results.append(
                ResolveResult(
                    hostname=host,
                    host=str(address[0]),
                    port=port,
                    family=family_,
                    proto=proto,
                    flags=socket.AI_NUMERICHOST,
                )
            )
        return results

    async def close(self) -> None:
        """Do nothing: it holds no resources."""


class Fetcher:
    """Downloads images. Sizes in bytes, times in seconds."""

    def __init__(self, policy: Policy, *, max_bytes: int, seconds: float) -> None:
        self._policy = policy
        self._max_bytes = max_bytes
        self._seconds = seconds
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, url: str, param: str) -> bytes:
        """Download. Raises InvalidArgument for every failure, because the client chose the URL."""
        if not self._policy.urls:
            raise InvalidArgument.at(param, "URLs are not allowed on this server (--allowed_media_domains)")
        try:
            async with asyncio.timeout(self._seconds):
                return await self._follow(url, param)
        except TimeoutError:
            raise _failed(param, f"it took more than {self._seconds:g} s") from None
        except NotPublicError as exc:
            raise _failed(param, f"host {exc} has an address that is not public") from None
        except (aiohttp.ClientError, UnicodeError) as exc:
            raise _failed(param, type(exc).__name__) from exc

    async def stop(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _follow(self, text: str, param: str) -> bytes:
        url = self._checked(text, param)
        for _ in range(MAX_REDIRECTS + 1):
            async with self._open().get(url, allow_redirects=False) as response:
                if response.status not in _REDIRECTS:
                    return await self._read(response, param)
                to = response.headers.get("location", "")
            try:
                url = self._checked(str(url.join(URL(to))), param)
            except ValueError:
                raise _failed(param, "it redirects to an invalid URL") from None
        raise _failed(param, f"it redirects more than {MAX_REDIRECTS} times")

    def _checked(self, text: str, param: str) -> URL:
        """Parse and check once: what is checked here is what the client connects to."""
        try:
            url = URL(text)
            host = (url.raw_host or "").lower()
        except ValueError:
            host = ""
        if not host or not _is_host(host) or url.scheme not in ("http", "https") or url.raw_user is not None:
            raise InvalidArgument.at(param, "expected an http or https URL with a host and without user name")
        if not self._policy.allows_host(host):
            kind = "address" if as_address(host) else "host"
            raise InvalidArgument.at(param, f"{kind} {host} is not allowed by --allowed_media_domains")
        return url

    async def _read(self, response: aiohttp.ClientResponse, param: str) -> bytes:
        if response.status != 200:
            raise _failed(param, f"its server answered with status {response.status}")
        if (response.content_length or 0) > self._max_bytes:
            raise _failed(param, f"it is larger than {self._max_bytes} bytes")
        data = bytearray()
        async for chunk in response.content.iter_chunked(CHUNK_BYTES):
            data += chunk
            if len(data) > self._max_bytes:
                raise _failed(param, f"it is larger than {self._max_bytes} bytes")
        return bytes(data)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    resolver=CheckedResolver(self._policy), use_dns_cache=False, force_close=True
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "ovserve"},
                auto_decompress=False,
                trust_env=False,
            )
        return self._session


def _is_host(host: str) -> bool:
    """Return whether it is an address, or labels of a length that DNS allows.

    Python's resolver raises UnicodeError for other names.
    """
    if as_address(host):
        return True
    labels = host.removesuffix(".").split(".")
    return len(host) <= LONGEST_HOST and all(0 < len(label) <= LONGEST_LABEL for label in labels)


def _failed(param: str, why: str) -> InvalidArgument:
    return InvalidArgument.at(param, f"the image cannot be downloaded: {why}")
