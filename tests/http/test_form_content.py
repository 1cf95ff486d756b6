"""The bounds of a form around its parts. Reading one never holds the event loop for long."""

from __future__ import annotations

import gzip
from pathlib import Path

import httpx
import pytest

from ovserve.http.transport.connections import RestLimits
from tests.conftest import script_graph
from tests.http.conftest import running
from tests.http.loop import Loop

END = b"--B--\r\n"
PART = b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nnone\r\n'
URL = "/v3/audio/transcriptions"


CASES = {
    "nothing": (b"", 404, "'none'"),
    "a few lines": (b"a few words\r\n" * 100, 404, "'none'"),
    "lines": (b"\n" * 2_000_000, 400, "more than 16384 lines"),
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
