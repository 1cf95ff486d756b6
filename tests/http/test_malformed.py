"""Bytes that are not HTTP, and bodies in codings: each answer has the API's shape and an id."""

from __future__ import annotations

import gzip
import json
import random
import re
import socket
import zlib
from collections.abc import Iterator

import pytest

from tests.conftest import Server, script_graph, start_process

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
POST = b"POST /v3/chat/completions HTTP/1.1\r\nHost: a\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("graphs")
    script_graph(root / "m", json.dumps({"replies": [{"text": "fine"}]}))
    (root / "key").write_text("the key")
    running = start_process(
        "--graphs_dir", str(root), "--response_store", "off", "--api_key_file", str(root / "key")
    )
    yield running
    assert "Traceback" not in "".join(running.errors)
    running.stop()


def ask(server: Server, data: bytes) -> tuple[int, str, bytes]:
    """Status, head and body of the answer."""
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(data)
        got = b""
        while part := connection.recv(65536):
            got += part
    head, _, body = got.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode(), body


def coded(coding: str, body: bytes) -> bytes:
    head = f"Content-Encoding: {coding}\r\nContent-Length: {len(body)}\r\n"
    return POST + b"Authorization: Bearer the key\r\nConnection: close\r\n" + head.encode() + b"\r\n" + body


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01 garbage\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
        POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        POST + b"Expect: something\r\nContent-Length: 0\r\n\r\n",
        b"GET /nowhere HTTP/1.1\r\nHost: a\r\nExpect: 100-continue, something\r\n\r\n",
    ],
)
def test_what_is_not_http_has_an_answer_of_the_api_and_one_line_of_the_log(
    server: Server, data: bytes
) -> None:
    status, head, body = ask(server, data)
    assert (status, json.loads(body)["error"]["type"]) == (400, "invalid_request_error")
    assert "not valid HTTP" in json.loads(body)["error"]["message"]
    assert (id_ := re.search(r"x-request-id: (\w+)", head)) is not None
    assert sum(id_[1] in line for line in server.errors) <= 1
    assert "aiohttp" not in head


@pytest.mark.parametrize("type_", ["application/json", "multipart/form-data; boundary=b"])
def test_a_body_that_will_be_too_large_is_refused_before_it_is_sent(server: Server, type_: str) -> None:
    path = b"/v3/chat/completions" if type_.endswith("json") else b"/v1/files"
    head = f"Authorization: Bearer the key\r\nContent-Type: {type_}\r\nContent-Length: {10**12}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), 20) as connection:
        connection.sendall(POST.replace(b"/v3/chat/completions", path) + head.encode())
        assert b" 413 " in connection.recv(65536)


@pytest.mark.parametrize(
    "coding", ["br", "zstd", "compress", "gzip, gzip", "gzip\r\nContent-Encoding: gzip", '"', "a" * 300]
)
def test_an_unknown_coding_is_a_415_that_lists_the_known(server: Server, coding: str) -> None:
    status, head, body = ask(server, coded(coding, gzip.compress(BODY)))
    assert (status, json.loads(body)["error"]["type"]) == (415, "invalid_request_error")
    assert "expected one of gzip, deflate" in json.loads(body)["error"]["message"]
    assert "x-request-id: " in head


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_body_that_is_not_what_its_coding_says_is_a_400(server: Server, coding: str) -> None:
    status, _, body = ask(server, coded(coding, BODY))
    assert (status, json.loads(body)["error"]["type"]) == (400, "invalid_request_error")
    assert f"not valid {coding}" in json.loads(body)["error"]["message"]


def judged(packed: bytes) -> bytes | None:
    """Return what Python's gzip makes of a body; None where it refuses it."""
    try:
        return gzip.decompress(packed)
    except (EOFError, OSError, zlib.error):
        return None


def variants(packed: bytes, rng: random.Random) -> Iterator[bytes]:
    yield from (packed[:at] for at in (0, 1, 5, len(packed) // 2, len(packed) - 8, len(packed) - 1))
    yield from (packed + more for more in (b"\0", bytes(600), b"x", b"\0x", packed[:5]))
    for _ in range(20):
        changed = bytearray(packed)
        # Behind the header, of which Python takes flags that RFC 1952 reserves.
        changed[rng.randrange(10, len(packed))] ^= 1 << rng.randrange(8)
        yield bytes(changed)


def test_a_gzip_body_is_what_pythons_gzip_makes_of_it(server: Server) -> None:
    half, rng = len(BODY) // 2, random.Random(1)
    members = gzip.compress(BODY[:half]) + gzip.compress(b"") * 2000 + bytes(3) + gzip.compress(BODY[half:])
    for packed in (gzip.compress(BODY), gzip.compress(BODY, 0), members):
        for body in (packed, *variants(packed, rng)):
            status, _, answer = ask(server, coded("x-gzip", body))
            if judged(body) is None:
                assert "the body cannot be read: it " in json.loads(answer)["error"]["message"], body
            assert (status == 200) == (judged(body) == BODY), (body, answer)


def test_a_body_without_its_end_or_with_more_is_a_400(server: Server) -> None:
    bare = zlib.compressobj(wbits=-15)
    for packed in (zlib.compress(BODY), bare.compress(BODY) + bare.flush()):
        assert ask(server, coded("deflate", packed))[0] == 200
        for body in (packed[:-1], packed[: len(packed) // 2], packed + b"\0", packed + packed):
            status, _, answer = ask(server, coded("deflate", body))
            assert status == 400, (body, answer)
            assert "the body cannot be read: it " in json.loads(answer)["error"]["message"]


@pytest.mark.parametrize("coding", ["gzip", "GZIP", "identity"])
def test_known_codings(server: Server, coding: str) -> None:
    packed = {"gzip": gzip.compress(BODY), "identity": BODY}[coding.lower()]
    assert ask(server, coded(coding, packed))[0] == 200
