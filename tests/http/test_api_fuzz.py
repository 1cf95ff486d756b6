"""The short form of `make api-fuzz`: the server keeps to its own OpenAPI document (schemathesis)."""

from __future__ import annotations

import re

import pytest

from scripts.api_fuzz import run

pytestmark = pytest.mark.long


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("phases", "examples"),
    [("examples,fuzzing", "3"), pytest.param("examples,coverage,fuzzing", "10", marks=pytest.mark.slow)],
)
def test_the_server_keeps_to_its_document(phases: str, examples: str) -> None:
    done = run("--max-examples", examples, "--seed", "1", phases=phases)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert re.search(r"(\d+) generated, \1 passed", done.stdout), done.stdout[-2000:]
