"""The bounds of a form around its parts. Reading one never holds the event loop for long."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import httpx
import pytest

from ovserve.http.connections import RestLimits
from tests.conftest import script_graph, start_server
from tests.http.conftest import running
from tests.http.loop import Loop

END = b"--B--\r\n"
PART = b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nnone\r\n'
URL = "/v3/audio/transcriptions"


CASES = {
    "nothing": (b"", 404, "'none'"),
    "a few lines": (b"a few words\r\n" * 100, 404, "'none'"),
    "lines": (b"\n" * 150_000, 400, "more than 16384 lines"),
    "a line": (b" " * 300_000 + b"\n", 413, "larger than 200000 bytes"),
    "bytes": (b"a\n" * 15_000 + b" " * 200_000, 413, "larger than 200000 bytes"),
}


async def test_what_stands_before_the_parts(tmp_path: Path, subtests: pytest.Subtests) -> None:
    async with (
        running(script_graph(tmp_path, "{}"), limits=RestLimits(200_000, 2.0)) as it,
        httpx.AsyncClient(base_url=it.url) as http,
    ):
        for name, (before, status, says) in CASES.items():
            for packed in (False, True):
                form = before + PART + END
                headers = {"Content-Type": "multipart/form-data; boundary=B"}
                if packed:
                    form, headers["Content-Encoding"] = gzip.compress(form), "gzip"
                with subtests.test(f"{name}{', packed' if packed else ''}"):
                    async with Loop() as loop:
                        answer = await http.post(URL, content=form, headers=headers)
                        assert (answer.status_code, says in answer.text) == (status, True), answer.text
                    assert loop.held < 0.2


def upload(headers: bytes, more: bytes = b"") -> bytes:
    purpose = b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    return purpose + more + b"--B\r\n" + headers + b"\r\n\r\n{}\r\n--B--\r\n"


FILE = b'Content-Disposition: form-data; name="file"; filename="a'
FIELD = b'--B\r\nContent-Disposition: form-data; name="expires_after[%s]"\r\n\r\n%s\r\n'
PARTS = {
    "a name in Latin 1": (upload(FILE + b'\xff.jsonl"'), 200, '"filename":"a\ufffd.jsonl"'),
    "a field in Latin 1": (upload(FILE.replace(b'="file', b'="\xff') + b'"'), 400, "a name is not UTF-8"),
    "a type in Latin 1": (upload(FILE + b'"\r\nContent-Type: \xff'), 200, '"filename":"a"'),
    "binary": (upload(FILE + b'"\r\nContent-Transfer-Encoding: Binary'), 200, '"bytes":2'),
    "base64": (upload(FILE + b'"\r\nContent-Transfer-Encoding: base64'), 400, "got 'base64'"),
    "gzip": (upload(FILE + b'"\r\nContent-Encoding: gzip'), 400, "its Content-Encoding is not supported"),
    "a long charset": (
        b'--B\r\nContent-Disposition: form-data; name="_charset_"\r\n\r\n' + b"x" * 50 + b"\r\n--B--\r\n",
        400,
        "the form cannot be read",
    ),
    "zeros": (
        upload(FILE + b'"', FIELD % (b"anchor", b"created_at") + FIELD % (b"seconds", b"007")),
        400,
        "expires_after.seconds: expected `int` >= 3600, got 7",
    ),
}


def test_parts_of_careless_clients(tmp_path: Path, subtests: pytest.Subtests) -> None:
    graph = script_graph(tmp_path, "{}")
    server = start_server(graph, "--response_store_path", str(tmp_path / "r.db"), name="m")
    try:
        for name, (form, status, says) in PARTS.items():
            for coding in ("identity", "gzip", "deflate"):
                packed = {"gzip": gzip.compress, "deflate": zlib.compress}.get(coding, bytes)(form)
                headers = {"Content-Type": "multipart/form-data; boundary=B", "Content-Encoding": coding}
                with subtests.test(f"{name}, {coding}"):
                    answer = httpx.post(f"{server.url}/v1/files", content=packed, headers=headers)
                    assert (answer.status_code, says in answer.text) == (status, True), answer.text
        with subtests.test("half a file"):
            headers = {"Content-Type": "multipart/form-data; boundary=B", "Content-Encoding": "gzip"}
            packed = gzip.compress(upload(FILE + b'"'))[:-4]
            answer = httpx.post(f"{server.url}/v1/files", content=packed, headers=headers)
            assert (answer.status_code, "ends before its gzip" in answer.text) == (400, True), answer.text
        key = {"Idempotency-Key": b"\xff"}
        body = {"input_file_id": "file-x", "endpoint": "/v1/completions", "completion_window": "24h"}
        answer = httpx.post(f"{server.url}/v1/batches", json=body, headers=key)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")
    finally:
        server.stop()
