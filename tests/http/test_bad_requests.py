"""Rubbish gets a clear answer with the right status, and the server stays up (real server process)."""

from __future__ import annotations

import json
import os
import signal
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


@pytest.mark.parametrize("type_", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_json_is_json_whatever_the_header_says(server: Server, type_: str | None) -> None:
    headers = {"content-type": type_} if type_ else {}
    answer = httpx.post(f"{server.v3}/chat/completions", content=json.dumps(GOOD), headers=headers)
    assert answer.status_code == 200
