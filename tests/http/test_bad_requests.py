"""Rubbish gets a clear answer with the right status, and the server stays up (real server process)."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator

import httpx
import pytest

from tests.conftest import Server

GOOD = {"model": "smollm2", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}


@pytest.fixture(autouse=True)
def still_alive(server: Server) -> Iterator[None]:
    """After every case the server answers the next request."""
    yield
    assert httpx.post(f"{server.v3}/chat/completions", json=GOOD).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"", 400, "not valid JSON"),
        (b"{", 400, "not valid JSON"),
        (b"[1]", 400, "not a JSON object"),
        (b'{"model": "smollm2", "messages": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", 400, "nests too deeply"),
        (b'{"model": "smollm2", "zzz": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_000 + b"}", 400, "nests too deeply"),
        (b'{"model": "smollm2"}', 400, "messages: required, but missing"),
        (b'{"messages": []}', 400, "model: required, but missing"),
        (b'{"model": 1, "messages": []}', 400, "model: expected `str`, got 1"),
        (b'{"model": "smollm2", "messages": []}', 400, "messages: expected `array` of length >= 1, got []"),
        (b'{"model": "nope", "messages": []}', 404, "'nope'"),
        (b"\xff\xfe", 400, "byte order mark of UTF-16"),
        (b'{"model": "smo\xffllm2"}', 400, "not valid JSON"),
        (b"x" * (33 << 20), 413, "larger than"),
    ],
)  # fmt: skip
def test_a_bad_body(server: Server, body: bytes, status: int, says: str) -> None:
    answer = httpx.post(
        f"{server.v3}/chat/completions", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert says in error["message"]
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 2, "temperature": 0, "dry_multiplier": 0.8}, "dry_multiplier"),
        ({"num_assistant_tokens": 10**6}, "num_assistant_tokens"),
        ({"num_assistant_tokens": 10**6, "stream": True}, "num_assistant_tokens"),
    ],
)
def test_what_cannot_be_combined_is_refused_while_the_engine_is_busy(
    server: Server, fields: dict[str, object], param: str
) -> None:
    """A busy engine reads its messages between two steps, which may take seconds. This one takes none."""
    stopped = server.engine_pid()
    os.kill(stopped, signal.SIGSTOP)
    try:
        answer = httpx.post(f"{server.v3}/chat/completions", json=GOOD | fields, timeout=230)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


@pytest.mark.parametrize(
    "path", ["chat/completions", "completions", "responses", "messages", "messages/count_tokens", "tokenize"]
)
@pytest.mark.parametrize(
    "names", [b'"a", "model": "b"', b'"smollm2", "model": "b"', b'"a", "mod\\u0065l": "smollm2"']
)
def test_two_models_are_a_400_whether_served_or_not(server: Server, path: str, names: bytes) -> None:
    body = b'{"model": ' + names + b', "messages": [], "prompt": "a", "input": "a", "max_tokens": 1}'
    answer = httpx.post(f"{server.v3}/{path}", content=body)
    assert answer.status_code == 400, answer.text
    assert "'model' occurs twice" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v3/nothing", 404),
        ("GET", "/v3/chat/completions/", 404),
        ("GET", "/%00", 404),
        ("GET", "/../../etc/passwd", 404),
        ("GET", "/v3/models/..%2f..%2fetc", 404),
    ],
)
def test_a_bad_path_or_method(server: Server, method: str, path: str, status: int) -> None:
    answer = httpx.request(method, server.url + path)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]


def test_kserve_paths_answer_with_a_string(server: Server) -> None:
    answer = httpx.get(f"{server.url}/v2/nothing")
    assert answer.status_code == 404
    assert isinstance(answer.json()["error"], str)


def test_multipart_is_an_unsupported_media_type(server: Server) -> None:
    answer = httpx.post(f"{server.v3}/chat/completions", files={"file": b"x"})
    assert answer.status_code == 415


@pytest.mark.parametrize("type_", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_json_is_json_whatever_the_header_says(server: Server, type_: str | None) -> None:
    headers = {"content-type": type_} if type_ else {}
    answer = httpx.post(f"{server.v3}/chat/completions", content=json.dumps(GOOD), headers=headers)
    assert answer.status_code == 200


def test_a_compressed_body_is_understood_and_a_bomb_is_not_swallowed(server: Server) -> None:
    import gzip

    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    url = f"{server.v3}/chat/completions"
    assert (
        httpx.post(url, content=gzip.compress(json.dumps(GOOD).encode()), headers=headers).status_code == 200
    )
    bomb = gzip.compress(b" " * (200 << 20))
    assert httpx.post(url, content=bomb, headers=headers, timeout=230).status_code in (400, 413)


@pytest.mark.parametrize(
    "raw",
    [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"POST /v3/chat/completions HTTP/1.1\r\nContent-Length: x\r\n\r\n",
     b"GET / HTTP/1.1\r\n" + b"A: " + b"b" * 100_000 + b"\r\n\r\n"],
)  # fmt: skip
def test_what_is_not_http(server: Server, raw: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=230) as sock:
        sock.sendall(raw)
        assert sock.recv(1 << 16)[:12] in (b"HTTP/1.0 400", b"HTTP/1.1 400")
