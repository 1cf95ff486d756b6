"""The short form of `make api-fuzz`: the server keeps to its own OpenAPI document (schemathesis)."""

from __future__ import annotations

import re

import pytest

from tests.api_fuzz import run


@pytest.mark.timeout(300)
def test_the_server_keeps_to_its_document() -> None:
    done = run("--max-examples", "10", "--seed", "1")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(r"(\d+) generated, \1 passed", done.stdout), done.stdout[-2000:]
