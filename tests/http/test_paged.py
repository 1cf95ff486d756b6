"""Top log-probabilities and what else only the paged engine has, in all API styles (a scripted engine, with the
official clients; the real engine in tests/engine)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import openai
import pytest

from tests.conftest import script_graph
from tests.http.conftest import Running, running
from tests.http.responses_harness import serving

WORDS = ["It", " is", " five", "."]
TEXT = "".join(WORDS)
SCRIPT: dict[str, Any] = {"vocab_size": 500, "replies": [{"pieces": WORDS}]}
PAGED = 'engine: "paged"'
MESSAGES: Any = [{"role": "user", "content": "What time is it?"}]
GREEDY, SAMPLED = 0.0, 1.0


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(script_graph(tmp_path / "graph", json.dumps(SCRIPT), PAGED)) as server:
        yield server


@pytest.fixture
async def client(server: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v3", api_key="none", max_retries=0) as client:
        yield client


def expected(piece: str, top: int, temperature: float) -> list[tuple[str, float]]:
    """The script's rule: greedy takes the likeliest, else the third."""
    rank = 0 if temperature == GREEDY else 2
    return [(piece if i == rank else f"{piece}?{i}", -0.25 - i) for i in range(top)]


def pairs(tokens: Any) -> list[list[tuple[str, float]]]:
    return [[(one.token, one.logprob) for one in token.top_logprobs] for token in tokens]


@pytest.mark.parametrize("temperature", [GREEDY, SAMPLED])
@pytest.mark.parametrize("top", [0, 1, 5, 20])
async def test_chat_shows_the_likeliest_tokens(
    client: openai.AsyncOpenAI, top: int, temperature: float
) -> None:
    asked: dict[str, Any] = {
        "model": "m", "messages": MESSAGES, "logprobs": True, "top_logprobs": top, "temperature": temperature
    }  # fmt: skip
    whole = await client.chat.completions.create(**asked, n=2)
    rank = 0 if temperature == GREEDY else 2
    for choice in whole.choices:
        assert choice.logprobs is not None
        tokens = choice.logprobs.content or []
        assert [token.token for token in tokens] == WORDS
        assert [token.logprob for token in tokens] == [-0.25 - rank] * len(WORDS)
        assert pairs(tokens) == [expected(word, top, temperature) for word in WORDS]
        assert all(bytes(one.bytes).decode() == one.token for token in tokens for one in token.top_logprobs)
    streamed = [
        token
        async for chunk in await client.chat.completions.create(**asked, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for token in choice.logprobs.content or []
    ]
    assert streamed == (whole.choices[0].logprobs.content if whole.choices[0].logprobs else None)


@pytest.mark.parametrize("temperature", [GREEDY, SAMPLED])
@pytest.mark.parametrize("top", [0, 1, 5, 20])
async def test_completions_add_the_chosen_token(
    client: openai.AsyncOpenAI, top: int, temperature: float
) -> None:
    asked: dict[str, Any] = {"model": "m", "prompt": "x", "logprobs": top, "temperature": temperature}
    whole = (await client.completions.create(**asked)).choices[0].logprobs
    assert whole is not None
    chosen = -0.25 - (0 if temperature == GREEDY else 2)
    assert (whole.tokens, whole.token_logprobs) == (WORDS, [chosen] * len(WORDS))
    maps = [dict(expected(word, top, temperature)) | {word: chosen} for word in WORDS]
    assert whole.top_logprobs == (maps if top else None)
    parts = [
        chunk.choices[0].logprobs
        async for chunk in await client.completions.create(**asked, stream=True)
        if chunk.choices and chunk.choices[0].logprobs
    ]
    assert [one for part in parts for one in part.top_logprobs or []] == (whole.top_logprobs or [])
    assert [at for part in parts for at in part.text_offset or []] == whole.text_offset


@pytest.mark.parametrize("background", [False, True])
async def test_responses_keep_them_in_streams_and_in_the_store(tmp_path: Path, background: bool) -> None:
    asked: dict[str, Any] = {
        "model": "m", "input": "x", "top_logprobs": 5, "temperature": SAMPLED,
        "include": ["message.output_text.logprobs"],
    }  # fmt: skip
    wanted = [expected(word, 5, SAMPLED) for word in WORDS]
    async with serving(tmp_path, script=SCRIPT, options=PAGED) as server:
        responses = server.client.responses
        made = await responses.create(**asked, background=background)
        while made.status in ("queued", "in_progress"):
            await asyncio.sleep(0.02)
            made = await responses.retrieve(made.id)
        stored = await responses.retrieve(made.id)
        for response in (made, stored):
            part: Any = response.output[0].content[0]  # type: ignore[union-attr,index]
            assert (part.text, response.top_logprobs) == (TEXT, 5)
            assert pairs(part.logprobs) == wanted
            assert part.logprobs[0].top_logprobs[0].bytes == list(b"It?0")
        live = [event async for event in await responses.create(**asked, background=background, stream=True)]
        id_ = live[0].response.id  # type: ignore[union-attr]
        for events in (live, [event async for event in await responses.retrieve(id_, stream=True)]):
            deltas: list[Any] = [event for event in events if event.type == "response.output_text.delta"]
            assert [pair for delta in deltas for pair in pairs(delta.logprobs)] == wanted
            done: Any = next(event for event in events if event.type == "response.output_text.done")
            assert pairs(done.logprobs) == wanted


async def test_ollama_shows_them(server: Running) -> None:
    async with httpx.AsyncClient(base_url=server.url) as client:
        for path, body in (("chat", {"messages": MESSAGES}), ("generate", {"prompt": "x", "raw": True})):
            asked = {
                "model": "m",
                "logprobs": True,
                "top_logprobs": 3,
                "options": {"temperature": GREEDY},
                **body,
            }
            answer = await client.post(f"/api/{path}", json={**asked, "stream": False})
            kind = ollama.ChatResponse if path == "chat" else ollama.GenerateResponse
            tokens = kind.model_validate(answer.json()).logprobs or []
            assert [token.token for token in tokens] == WORDS
            found = [[(one.token, one.logprob) for one in token.top_logprobs or []] for token in tokens]
            assert found == [expected(word, 3, GREEDY) for word in WORDS]
            lines = (await client.post(f"/api/{path}", json=asked)).text.splitlines()
            assert [one for line in lines for one in json.loads(line).get("logprobs", [])] == answer.json()[
                "logprobs"
            ]


@pytest.mark.parametrize(
    "path", ["/chat/completions?api-version=1", "/openai/deployments/m/chat/completions"]
)
async def test_azure_shows_them(server: Running, path: str) -> None:
    async with httpx.AsyncClient(base_url=server.url) as client:
        body = {
            "model": "m",
            "messages": MESSAGES,
            "logprobs": True,
            "top_logprobs": 2,
            "logit_bias": {"5": 1},
        }
        answer = await client.post(path, json=body)
        tokens = answer.json()["choices"][0]["logprobs"]["content"]
        assert [one["token"] for one in tokens[0]["top_logprobs"]] == ["It?0", "It?1"]


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses"])
@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"logit_bias": {"500": 1}}, "logit_bias", "token id 500 is not in the vocabulary of 500"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "<= 100"),
        ({"logit_bias": {"five": 1}}, "logit_bias", '"five"'),
        ({"best_of": 21}, "best_of", "above best_of_limit 20"),
    ],
)
async def test_a_limit_is_a_400_by_name(
    server: Running, path: str, fields: dict[str, Any], param: str, says: str
) -> None:
    data = {
        "chat/completions": {"messages": MESSAGES},
        "completions": {"prompt": "x"},
        "responses": {"input": "x"},
    }
    async with httpx.AsyncClient(base_url=server.url) as client:
        answer = await client.post(f"/v3/{path}", json={"model": "m", **data[path], **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert says in error["message"]


async def test_what_the_engine_takes(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="m", messages=MESSAGES, logit_bias={"5": -100, "499": 100},
        extra_body={"min_tokens": 2, "num_assistant_tokens": 0},
    )  # fmt: skip
    assert answer.choices[0].message.content == TEXT


async def test_it_takes_no_adapter(server: Running, tmp_path: Path) -> None:
    async with httpx.AsyncClient(base_url=server.url) as client:
        body = {"lora_name": "sql", "lora_path": str(tmp_path)}
        answer = await client.post("/v1/load_lora_adapter", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "lora_path")
    assert 'an adapter needs engine: "genai", got "paged"' in error["message"]


async def test_capabilities_have_the_wider_ranges(server: Running) -> None:
    async with httpx.AsyncClient(base_url=server.url) as client:
        (model,) = (await client.get("/v3/capabilities")).json()["data"]
    rows = {
        e["endpoint"]: {row["name"]: row for row in e["parameters"]}
        for e in model["endpoints"]
        if e["available"] and "parameters" in e
    }
    for path, name in (
        ("chat/completions", "top_logprobs"),
        ("completions", "logprobs"),
        ("responses", "top_logprobs"),
    ):
        assert rows[path][name]["schema"]["maximum"] == 20
    for path in ("chat/completions", "completions", "responses"):
        assert rows[path]["logit_bias"]["status"] == "supported"
        assert rows[path]["num_assistant_tokens"]["status"] == "supported"
        assert rows[path]["best_of"]["schema"]["maximum"] == 20
