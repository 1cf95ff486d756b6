"""graphs/bounded_memory with two layers of the real model: no length of a prompt ends its engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT, Server, start_server

pytestmark = pytest.mark.long

BORDERS = sorted(
    {n + d for n in (1, 8, 32, 40, 64, 96, 128, 160, 192) for d in (-1, 0, 1)} - {0} | set(range(31, 42))
)
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}


@pytest.fixture(scope="module")
def bounded(short_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A length meets the same borders in each layer."""
    text = (ROOT / "graphs/bounded_memory/graph.pbtxt").read_text()
    text, count = re.subn(r'models_path: "[^"]*"', f'models_path: "{short_model}"', text)
    assert count == 1
    directory = tmp_path_factory.mktemp("bounded")
    (directory / "graph.pbtxt").write_text(text)
    running = start_server(directory, name="bounded")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def client(bounded: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=bounded.v3, timeout=230) as client:
        pid = bounded.engine_pid()
        yield client
        assert bounded.engine_pid() == pid  # the same engine answered all of it


def prompt(tokens: int) -> list[int]:
    """Token ids, so that the length is exact."""
    return [2000 + 7 * n for n in range(tokens)]


def body(tokens: int, **more: object) -> dict[str, object]:
    return {"model": "bounded", "prompt": prompt(tokens), "temperature": 0, "max_tokens": 2, **more}


def test_every_other_length(client: httpx.Client) -> None:
    def ask(tokens: int) -> None:
        answer = client.post("/completions", json=body(tokens, stop=["never said"], ignore_eos=True))
        assert answer.status_code == 200, (tokens, answer.text)
        usage = answer.json()["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (tokens, 2)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, sorted({*range(1, 101)} - {*BORDERS})))  # which are streamed below


@pytest.mark.parametrize("tokens", BORDERS)
def test_streams_at_the_borders_of_blocks_and_windows(client: httpx.Client, tokens: int) -> None:
    with client.stream("POST", "/completions", json=body(tokens, stream=True, stop=["\n\n\n"])) as answer:
        assert answer.status_code == 200
        events = [line[6:] for line in answer.iter_lines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    choices = [choice for event in events[:-1] for choice in json.loads(event)["choices"]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] in (
        ["length"],
        ["stop"],
    )


def words(count: int) -> str:
    return " ".join(["word"] * count)


def test_schemas_at_the_borders_of_blocks_and_windows(client: httpx.Client) -> None:
    """The chat template adds tokens of its own, so the lengths are those that were counted."""
    seen = set()
    for count in [*range(17, 26), 49, 50, 81, 82]:
        asked = {
            "model": "bounded",
            "messages": [{"role": "system", "content": "a"}, {"role": "user", "content": words(count)}],
            "temperature": 0,
            "max_tokens": 20,
            "response_format": FORMAT,
        }
        answer = client.post("/chat/completions", json=asked)
        assert answer.status_code == 200, answer.text
        assert isinstance(json.loads(answer.json()["choices"][0]["message"]["content"])["ok"], bool)
        seen.add(answer.json()["usage"]["prompt_tokens"])
    assert seen >= {*range(33, 40), 64, 65, 96, 97}, sorted(seen)
