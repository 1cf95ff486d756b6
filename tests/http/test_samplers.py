"""DRY and XTC through the server: the default model, with the clients that send them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import openai
import pytest

from tests.conftest import Server, script_graph
from tests.http.conftest import running

IGNORED = "x-ovserve-ignored-params"
CATS = "The cat sat on the mat. " * 6 + "The cat sat on the"
DRY: dict[str, Any] = {"dry_multiplier": 8, "dry_base": 2, "dry_allowed_length": 2, "dry_penalty_last_n": -1}
XTC: dict[str, Any] = {"xtc_probability": 1, "xtc_threshold": 0.05}


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as client:
        yield client


def complete(client: openai.OpenAI, body: dict[str, Any], **more: Any) -> list[str]:
    asked: dict[str, Any] = {"model": "smollm2", "prompt": CATS, "max_tokens": 1, "temperature": 0} | more
    return [choice.text for choice in client.completions.create(**asked, extra_body=body).choices]


def test_dry_breaks_a_repetition_unless_it_is_off_or_broken(client: openai.OpenAI) -> None:
    [plain] = complete(client, {})
    assert plain.startswith(" mat")
    [other] = complete(client, DRY)
    assert not other.startswith(" mat")
    # Three tokens have no repetition, and none goes on over a breaker that is the last token.
    for off in ({"dry_multiplier": 0}, {"dry_allowed_length": 90}, {"dry_penalty_last_n": 3}):
        assert complete(client, DRY | off) == [plain]
    assert complete(client, DRY | {"dry_sequence_breakers": [" the"]}) == [plain]


def test_xtc_leaves_out_the_likeliest_token_and_a_seed_repeats_it(client: openai.OpenAI) -> None:
    more = {"n": 3, "temperature": 1, "seed": 11, "max_tokens": 8}
    first = complete(client, XTC | DRY, **more)
    assert complete(client, XTC | DRY, **more) == first
    assert len(set(first)) > 1
    chat: Any = {"model": "smollm2", "messages": [{"role": "user", "content": "Tell me a story."}]}
    chat |= {"temperature": 0.7, "seed": 3, "max_tokens": 12}
    texts = [
        client.chat.completions.create(**chat, extra_body=body).choices[0].message.content
        for body in ({}, XTC, XTC)
    ]
    assert texts[0] != texts[1] == texts[2]


def test_ollamas_options_are_the_same(server: Server) -> None:
    with ollama.Client(host=server.url) as client:
        greedy = {"temperature": 0, "num_predict": 4}
        said = [
            client.generate("smollm2", CATS, raw=True, options=greedy | options).response
            for options in ({}, DRY)
        ]
        assert said[0].startswith(" mat")
        assert not said[1].startswith(" mat")
        with pytest.raises(ollama.ResponseError, match="options.dry_base"):
            client.generate("smollm2", CATS, raw=True, options=DRY | {"dry_base": 0.5})


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"dry_multiplier": -1}, "dry_multiplier", "-1"),
        ({"dry_base": 0.5}, "dry_base", "0.5"),
        ({"dry_allowed_length": 0}, "dry_allowed_length", "0"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n", "-2"),
        ({"dry_sequence_breakers": [""]}, "dry_sequence_breakers[0]", "length >= 1"),
        ({"dry_sequence_breakers": ["x"] * 65}, "dry_sequence_breakers", "64"),
        ({"xtc_probability": 1.5}, "xtc_probability", "1.5"),
        ({"xtc_threshold": -0.1}, "xtc_threshold", "-0.1"),
        (DRY | {"best_of": 2}, "dry_multiplier", "best_of 2"),
        (XTC | {"best_of": 2}, "xtc_probability", "best_of 2"),
    ],
)
def test_wrong_values_are_refused(client: openai.OpenAI, body: Any, param: str, words: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, body)
    assert caught.value.param == param
    assert words in str(caught.value)


def test_what_has_no_effect_is_reported(server: Server) -> None:
    def ignored(**body: Any) -> set[str]:
        asked = {"model": "smollm2", "prompt": "x", "max_tokens": 1} | body
        answer = httpx.post(f"{server.v3}/completions", json=asked, timeout=230)
        assert answer.status_code == 200, answer.text
        return {*answer.headers.get(IGNORED, "").split(",")} - {""}

    assert ignored(**DRY, **XTC) == set()
    assert ignored(dry_base=2, xtc_threshold=0.2) == {"dry_base", "xtc_threshold"}
    assert ignored(**XTC, temperature=0) == {"xtc_probability", "xtc_threshold"}
    assert ignored(length_penalty=2.0) == {"length_penalty"}
    assert ignored(length_penalty=2.0, best_of=2) == ignored(length_penalty=1) == set()
    assert ignored(dry_multiplier=0, xtc_probability=0) == set()


async def test_another_engine_has_no_such_samplers(tmp_path: Path) -> None:
    graph = script_graph(tmp_path / "graph", "{}", 'engine: "genai"')
    async with running(graph) as server, httpx.AsyncClient(base_url=server.url) as http:
        body = {"model": "m", "prompt": "x"} | DRY | XTC
        answer = await http.post("/v3/completions", json=body)
        assert {*answer.headers[IGNORED].split(",")} == {*DRY, *XTC}
        options = {"model": "m", "prompt": "x", "stream": False, "options": DRY}
        answer = await http.post("/api/generate", json=options)
        assert {*answer.headers[IGNORED].split(",")} == {f"options.{name}" for name in DRY}
