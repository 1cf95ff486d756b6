"""Any body at all gets a documented status and a well-formed answer, and the server answers the next request.

A real server process with a scripted model, so that a hang or a crash is one of the whole server. Bodies are
arbitrary JSON, requests with fields replaced by arbitrary values, and requests with bytes of them damaged.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ovserve.api.openai.describe import parameters
from ovserve.http.openapi import OPERATIONS
from tests.breadth import examples
from tests.conftest import Server, script_graph, start_server

ASKED = {
    o.path.replace("{deployment}", "m").replace("{model}", "m"): o
    for o in OPERATIONS
    if o.request is not None
    and o.method == "POST"
    and o.path != "/api/pull"  # which runs a command
    and not o.form  # tests/http/test_transcriptions.py, test_batches.py
}
AZURE = "/chat/completions?api-version=1"  # without the query it is OpenAI's
AZURES = (AZURE, "/models/chat/completions", "/models/embeddings")
PATHS = [*ASKED, AZURE]
GOOD: dict[str, Any] = {"model": "m", "prompt": "a", "max_tokens": 1}
LEGAL: dict[str, list[Any]] = {
    "model": ["m", "other"],
    "messages": [[{"role": "user", "content": "hi"}], [{"role": "assistant", "content": [{"type": "text", "text": "x"}]}]],
    "prompt": ["hi", [1, 2], ["a", "b"], [[1], [2, 3]]],
    "input": ["hi", [{"role": "user", "content": "hi"}]],
    "text": ["hi"],
    "max_tokens": [1, 100_000],
    "stream": [True],
    "stream_options": [{"include_usage": True}],
    "n": [3],
    "echo": [True],
    "logprobs": [True, 1],
    "stop": ["o", ["a", "b"]],
    "tools": [[{"type": "function", "function": {"name": "f", "parameters": {}}}]],
    "background": [False],  # what runs on is for the tests of responses
}  # fmt: skip
EDGES = [
    0,
    1,
    -1,
    2**31,
    2**63,
    2**64,
    -(2**63) - 1,
    10**400,
    0.5,
    1e308,
    -0.0,
    "",
    "\x00",
    "\u2028",
    "x" * 5000,
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20) | st.sampled_from(EDGES),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    script = '{"max_length": 200, "replies": [{"text": "one two three", "repeat": 4}]}'
    running = start_server(script_graph(tmp_path_factory.mktemp("graph"), script), name="m")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=230) as made:
        yield made


@cache
def known(path: str) -> tuple[list[str], list[str]]:
    """Names of the parameters that must be there, and of all, with some that no endpoint has."""
    rows = parameters(ASKED[path])
    required = [row.name for row in rows if row.required and row.name in LEGAL]
    return required, [row.name for row in rows if "." not in row.name] + ["unknown", "\u00e4\n,"]


@st.composite
def requests(draw: st.DrawFn, path: str) -> dict[str, Any]:
    """A request that is sound but for a few fields, some of which the endpoint does not have."""
    required, names = known(path.partition("?")[0])
    body = {name: draw(st.sampled_from(LEGAL[name])) for name in required}
    for name in draw(st.lists(st.sampled_from(names), max_size=4)):
        legal = st.sampled_from(LEGAL[name]) if name in LEGAL else json_values
        body[name] = draw(st.one_of(legal, json_values, st.sampled_from(EDGES)))
    return body


def judge(answer: httpx.Response, path: str, body: bytes) -> None:
    """A documented status, and a body of its kind."""
    shown = f"{path} {body[:500]!r} -> {answer.status_code} {answer.text[:500]}"
    assert answer.status_code in (200, 400, 404, 413, *([422] if path in AZURES else [])), shown
    assert answer.headers["x-request-id"]
    if answer.headers["content-type"].startswith("text/event-stream"):
        events = answer.text.removesuffix("\n\n").split("\n\n")
        for event in events:
            data = [line for line in event.split("\n") if not line.startswith(("event: ", ":"))]
            assert len(data) == 1, shown
            assert data[0].startswith("data: "), shown
            assert data[0] == "data: [DONE]" or isinstance(json.loads(data[0][6:]), dict), shown
        return
    if answer.headers["content-type"].startswith("application/x-ndjson"):  # Ollama's streams
        assert all(isinstance(json.loads(line), dict) for line in answer.text.splitlines()), shown
        return
    value = answer.json()
    if answer.status_code == 200:
        assert "error" not in value or value["error"] is None, shown
        return
    if path.startswith(("/v2/", "/api/")) or path.endswith(":predict"):  # these have text for errors
        assert isinstance(value["error"], str) and value["error"], shown  # noqa: PT018
        return
    error = value if path in AZURES else value["error"]
    assert isinstance(error["message"], str), shown
    assert error["message"], shown
    assert error["code" if path in AZURES else "type"], shown


def ask(client: httpx.Client, path: str, body: bytes) -> None:
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    judge(answer, path, body)


@pytest.fixture(autouse=True)
def alive(client: httpx.Client) -> Iterator[None]:
    """Whatever a test has sent, the next request is answered."""
    yield
    assert client.post("/v3/completions", json=GOOD).status_code == 200


few = settings(
    max_examples=examples(3),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
many = settings(few, max_examples=examples(8))


def encode(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize("path", PATHS)
@few
@given(value=json_values)
def test_any_json(client: httpx.Client, path: str, value: Any) -> None:
    ask(client, path, encode(value))


@pytest.mark.parametrize("path", PATHS)
@many
@given(data=st.data())
def test_requests_with_any_values(client: httpx.Client, path: str, data: st.DataObject) -> None:
    ask(client, path, encode(data.draw(requests(path))))


@pytest.mark.parametrize("path", PATHS)
@few
@given(data=st.data())
def test_damaged_requests(client: httpx.Client, path: str, data: st.DataObject) -> None:
    body = bytearray(encode(data.draw(requests(path))))
    for at in data.draw(st.lists(st.integers(0, len(body) - 1), min_size=1, max_size=4)):
        body[at] = data.draw(st.integers(0, 255))
    ask(client, path, bytes(body))


NASTY = [
    b'{"model": "m", "messages": [], "logit_bias": 1e999}',
    b'{"model": "m", "prompt": "a", "logit_bias": 1e999, "suffix": -1e999}',
    b'{"model": "m", "prompt": "a", "temperature": 1e999}',
    b'{"model": "m", "prompt": "a", "temperature": "hot", "x": 1e999}',
    b'{"model": "m", "prompt": "a", "x": "\xff"}',
    b'{"model": "m", "prompt": "a", "x": ' + b"9" * 5000 + b"}",
    b'{"model": "m", "prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
    b'{"model": "m", "prompt": 7, "x": ' + b'{"y":' * 900 + b"1" + b"}" * 901,
    b'{"model": "m", "prompt": "a", "x": NaN}',
    b'{"model": "m", "prompt": "a", ' + b",".join(b'"f%d": 1' % i for i in range(20_000)) + b"}",
    b'{"model": "m", "prompt": "a", "\\u0000\\n": 1, "' + b"k" * 100_000 + b'": 1}',
    b'\xef\xbb\xbf{"model": "m", "prompt": "a"}',
    '{"model": "m", "prompt": "a"}'.encode("utf-16"),
    b'{"model": "' + b"m" * 100_000 + b'"}',
]


@pytest.mark.parametrize("path", PATHS)
def test_what_the_property_tests_would_take_long_to_find(
    client: httpx.Client, path: str, subtests: pytest.Subtests
) -> None:
    for body in NASTY:
        with subtests.test(repr(body[:60])):
            ask(client, path, body)
