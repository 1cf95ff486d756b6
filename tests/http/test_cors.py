"""CORS: what a browser is told, for each configuration; also on errors, streams and preflights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import tritonclient.http

from ovserve.access import Guard
from ovserve.http.middleware import Cors
from tests.conftest import script_graph
from tests.http.conftest import running

PAGE, OTHER = "https://page.example", "https://other.example:8443"


async def ask(directory: Path, cors: Cors | None, origin: str | None, **more: Any) -> httpx.Headers:
    headers = more.pop("headers", {}) | ({"Origin": origin} if origin else {})
    method, path = more.pop("method", "GET"), more.pop("path", "/v3/models")
    async with (
        running(script_graph(directory, "{}"), cors=cors, guard=more.pop("guard", None)) as it,
        httpx.AsyncClient(base_url=it.url) as http,
    ):
        answer = await http.request(method, path, headers=headers, **more)
        assert "origin" not in answer.headers
        return answer.headers


async def test_by_default_any_origin_without_credentials(tmp_path: Path) -> None:
    told = await ask(tmp_path, None, PAGE)
    assert told["Access-Control-Allow-Origin"] == "*"
    assert "Access-Control-Allow-Credentials" not in told
    assert "Vary" not in told
    assert "x-request-id" in told["Access-Control-Expose-Headers"]


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        (PAGE, True),
        (OTHER, True),
        (PAGE + ".evil.example", False),
        ("http://page.example", False),
        (None, False),
    ],
)
async def test_of_a_list_only_the_one_that_asks_is_told(
    tmp_path: Path, origin: str | None, allowed: bool
) -> None:
    told = await ask(tmp_path, Cors(f"{PAGE}, {OTHER}", credentials=True), origin)
    assert told.get("Access-Control-Allow-Origin") == (origin if allowed else None)
    assert told.get("Access-Control-Allow-Credentials") == ("true" if allowed else None)
    assert told["Vary"] == "Origin", "a cache must not give it to another origin"


async def test_pages_may_read_what_clients_read(tmp_path: Path) -> None:
    """The clients run in browsers too; without x-should-retry they repeat what is hopeless."""
    packages = (Path(module.__file__).parent for module in (openai, anthropic, tritonclient.http))
    sources = "".join(file.read_text() for package in packages for file in package.glob("_*.py"))
    read = set(
        re.findall(r'"(x-should-retry|retry-after-ms|(?:x-)?request-id|inference-h[\w-]+)"', sources.lower())
    )
    assert len(read) == 5, "what these clients read of the headers that this server sends"
    exposed = (await ask(tmp_path, None, PAGE))["Access-Control-Expose-Headers"].split(", ")
    assert read <= {*exposed}


async def test_empty_allows_none(tmp_path: Path) -> None:
    told = await ask(tmp_path, Cors(""), PAGE)
    assert not [name for name in told if name.lower().startswith("access-control")]


async def test_errors_and_streams_have_the_headers_too(tmp_path: Path) -> None:
    refused = await ask(tmp_path / "a", None, PAGE, guard=Guard("a-key"), path="/v3/models")
    assert refused["Access-Control-Allow-Origin"] == "*"
    assert refused["WWW-Authenticate"]
    body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    stream = await ask(tmp_path / "b", None, PAGE, method="POST", path="/v3/chat/completions", json=body)
    assert stream["content-type"] == "text/event-stream"
    assert stream["Access-Control-Allow-Origin"] == "*"


PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


@pytest.mark.parametrize("path", ["/v3/chat/completions", "/no/such/path"])
async def test_a_preflight_needs_no_key_and_names_what_was_asked_for(tmp_path: Path, path: str) -> None:
    told = await ask(
        tmp_path, None, PAGE, method="OPTIONS", path=path, headers=PREFLIGHT, guard=Guard("a-key")
    )
    assert told["Access-Control-Allow-Methods"] == "POST"
    assert told["Access-Control-Allow-Headers"] == "authorization,content-type", "* leaves authorization out"
    assert int(told["Access-Control-Max-Age"]) > 0


async def test_a_preflight_with_lists(tmp_path: Path) -> None:
    cors = Cors(PAGE, "GET,POST", "authorization")
    told = await ask(tmp_path, cors, PAGE, method="OPTIONS", headers=PREFLIGHT)
    assert told["Access-Control-Allow-Methods"] == "GET, POST"
    assert told["Access-Control-Allow-Headers"] == "authorization"
    refused = await ask(tmp_path, cors, OTHER, method="OPTIONS", headers=PREFLIGHT)
    assert "Access-Control-Allow-Methods" not in refused


@pytest.mark.parametrize(
    ("cors", "says"),
    [
        (Cors("page.example"), "page.example"),
        (Cors(PAGE + "/"), PAGE + "/"),
        (Cors("*", credentials=True), "by name"),
        (Cors("null, " + PAGE, credentials=True), None),
        (Cors(""), None),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(cors: Cors, says: str | None) -> None:
    problem = cors.problem()
    assert problem is None if says is None else says in str(problem)
