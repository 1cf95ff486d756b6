"""Downloads, from a real HTTP server on 127.0.0.1 that the policy names."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from ovserve.errors import InvalidArgument
from ovserve.sandbox.images.fetch import Fetcher
from ovserve.sandbox.images.policy import parse_policy

LIMIT = 1000


@dataclass
class Site:
    port: int = 0
    paths: list[str] = field(default_factory=list)  # asked for, in order
    headers: dict[str, str] = field(default_factory=dict)  # of the last request
    location: str = ""

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    site = Site()

    async def answer(request: web.Request) -> web.StreamResponse:
        site.paths.append(request.path)
        site.headers = {k.lower(): v for k, v in request.headers.items()}
        if request.path == "/redirect":
            return web.Response(status=302, headers={"location": site.location})
        if request.path == "/missing":
            return web.Response(status=404, text="<html>")
        if request.path == "/packed":
            return web.Response(body=b"not unpacked", headers={"content-encoding": "gzip"})
        if request.path == "/slow":
            await asyncio.Event().wait()
        if request.path == "/announced":
            return web.Response(body=bytes(LIMIT + 1))
        if request.path == "/endless":
            stream = web.StreamResponse()
            await stream.prepare(request)
            while True:
                await stream.write(bytes(LIMIT))
        return web.Response(body=b"picture")

    runner = web.AppRunner(_app(answer), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    site.port = runner.addresses[0][1]
    yield site
    await runner.cleanup()


def _app(answer: Callable[[web.Request], Any]) -> web.Application:
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    return app


async def fetch(url: str, domains: str = "127.0.0.1", seconds: float = 230.0) -> bytes:
    fetcher = Fetcher(parse_policy(domains, ""), max_bytes=LIMIT, seconds=seconds)
    try:
        return await fetcher.fetch(url, "x.url")
    finally:
        await fetcher.stop()


async def refusal(url: str, domains: str = "127.0.0.1", seconds: float = 230.0) -> str:
    with pytest.raises(InvalidArgument, match=r"^x\.url: ") as raised:
        await fetch(url, domains, seconds)
    assert raised.value.param == "x.url"
    return raised.value.message


async def test_a_listed_address(site: Site) -> None:
    assert await fetch(site.url("/cat.png")) == b"picture"
    assert site.headers["accept-encoding"] == "identity"
    assert "cookie" not in site.headers


async def test_nothing_is_asked_of_what_is_not_listed(site: Site) -> None:
    assert "URLs are not allowed" in await refusal(site.url("/"), "")
    assert "address 127.0.0.1 is not allowed" in await refusal(site.url("/"), "images.example.org")
    assert "address 127.0.0.1 is not allowed" in await refusal(site.url("/"), "all")
    assert "host localhost is not allowed" in await refusal(site.url("/", "localhost"), "images.example.org")
    for disguise in (
        "2130706433",
        "0x7f.1",
        "127.1",
        "0177.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "localhost",
    ):
        assert re.search("not public|not allowed|InvalidUrl", await refusal(site.url("/", disguise), "all"))
    assert site.paths == []


async def test_a_listed_name_must_be_public_or_its_network_listed(site: Site) -> None:
    assert "host localhost has an address that is not public" in await refusal(
        site.url("/", "localhost"), "localhost"
    )
    assert site.paths == []
    assert await fetch(site.url("/", "localhost"), "localhost,127.0.0.0/8,::1") == b"picture"
    assert await fetch(site.url("/", "LOCALHOST"), "localhost,127.0.0.0/8,::1") == b"picture"


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http:///cat.png",
        "http://u:p@127.0.0.1/",
        "http://127.0.0.1:99999/",
        "http://[::1/",
        f"http://{'a' * 64}.com/",
        f"http://b.{'a' * 300}/",
        f"http://{'a.' * 130}com/",
        "http://a..b/",
        "http://.a/",
    ],
)
async def test_what_is_no_url(url: str) -> None:
    assert "expected an http or https URL" in await refusal(url, "all")


async def test_a_name_is_resolved_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that first tells a harmless address, and then another."""
    answers = ["127.0.0.1", "169.254.169.254"]

    async def getaddrinfo(host: str, port: int, **more: Any) -> list[tuple[Any, ...]]:
        assert host == "rebound.example.org"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    assert await fetch(site.url("/", "rebound.example.org"), "rebound.example.org,127.0.0.1") == b"picture"
    assert answers == ["169.254.169.254"]
    assert "not public" in await refusal(
        site.url("/", "rebound.example.org"), "rebound.example.org,127.0.0.1"
    )


async def test_one_private_address_among_public_ones_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    async def getaddrinfo(host: str, port: int, **more: Any) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in ("93.184.216.34", "10.0.0.1")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    assert "not public" in await refusal("http://mixed.example.org/", "mixed.example.org")


async def test_redirects_are_checked_like_urls(site: Site) -> None:
    site.location = "/cat.png"
    assert await fetch(site.url("/redirect")) == b"picture"
    site.paths.clear()
    for location, why in (
        (site.url("/secret", "localhost"), "host localhost is not allowed"),
        ("http://169.254.169.254/latest/meta-data", "address 169.254.169.254 is not allowed"),
        ("file:///etc/passwd", "expected an http or https URL"),
        ("", "redirects more than 3 times"),
        ("/redirect", "redirects more than 3 times"),
    ):
        site.location = location
        assert why in await refusal(site.url("/redirect"))
    assert set(site.paths) == {"/redirect"}


async def test_bounds(site: Site) -> None:
    assert "larger than 1000 bytes" in await refusal(site.url("/announced"))
    assert "larger than 1000 bytes" in await refusal(site.url("/endless"))
    assert "more than 0.2 s" in await refusal(site.url("/slow"), seconds=0.2)


async def test_failures(site: Site) -> None:
    assert "status 404" in await refusal(site.url("/missing"))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert "cannot be downloaded" in await refusal(f"http://127.0.0.1:{closed.getsockname()[1]}/")
    assert "cannot be downloaded" in await refusal(f"https://127.0.0.1:{site.port}/")


async def test_a_body_is_not_unpacked(site: Site) -> None:
    assert await fetch(site.url("/packed")) == b"not unpacked"


async def test_proxies_of_the_environment_are_not_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9/")
    assert await fetch(site.url("/cat.png")) == b"picture"
