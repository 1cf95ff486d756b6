"""`suffix` of completions, and fim/completions: the prompt that the model gets, and the form of the answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.conftest import Server
from tests.http.conftest import Scripted

FIELDS = {"model": "m", "prompt": "def add", "suffix": "return c"}
PROMPT = "<|fim_prefix|>def add<|fim_suffix|>return c<|fim_middle|>"


@pytest.fixture
async def mirror(scripted: Scripted) -> AsyncIterator[httpx.AsyncClient]:
    """A model that answers with its prompt; every word is a token of its vocabulary."""
    script = json.dumps({"replies": [{"match": "", "echo": True}], "step_seconds": 0.001})
    async with scripted(script) as running, httpx.AsyncClient(base_url=running.url, timeout=230) as client:
        yield client


async def test_completions_take_a_suffix(mirror: httpx.AsyncClient) -> None:
    answer = (await mirror.post("/v3/completions", json=FIELDS)).json()
    assert answer["choices"][0]["text"].strip() == PROMPT
    for prompt in ("", ["a", "b"]):
        assert (await mirror.post("/v1/completions", json=FIELDS | {"prompt": prompt})).status_code == 200
    answer = (await mirror.post("/v3/completions", json=FIELDS | {"suffix": ""})).json()
    assert answer["choices"][0]["text"].strip() == "def add"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"echo": True}, "suffix: excludes echo"),
        ({"prompt": [1, 2]}, "suffix: needs a prompt of text"),
        ({"suffix": 5}, "suffix: expected"),
        ({"suffix": None, "prompt": ""}, "prompt: expected at least one"),
    ],
)
async def test_what_a_suffix_excludes(
    more: dict[str, object], message: str, mirror: httpx.AsyncClient
) -> None:
    answer = await mirror.post("/v3/completions", json=FIELDS | more)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


async def test_mistral_s_form_is_answered_as_a_chat(mirror: httpx.AsyncClient) -> None:
    body = FIELDS | {"random_seed": 1, "min_tokens": 0, "temperature": 0}
    answer = await mirror.post("/v1/fim/completions", json=body)
    whole = ChatCompletion.model_validate(answer.json(), strict=False)
    assert (whole.choices[0].message.content or "").strip() == PROMPT
    assert whole.object == "chat.completion"
    assert "x-ovserve-ignored-params" not in answer.headers
    answer = await mirror.post("/v1/fim/completions", json=body | {"stream": True})
    *events, done = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    chunks = [ChatCompletionChunk.model_validate_json(event) for event in events]
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert done == "[DONE]"
    answer = await mirror.post("/v1/fim/completions", json=body | {"seed": 2})
    assert answer.json()["error"]["param"] == "random_seed"
    answer = await mirror.post("/v1/fim/completions", json=body | {"prompt": ["a"]})
    assert answer.json()["error"]["param"] == "prompt"


def test_a_model_without_the_tokens_says_so(server: Server) -> None:
    answer = httpx.post(f"{server.v3}/completions", json=FIELDS | {"model": "smollm2"}, timeout=230)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "unsupported_parameter"
    assert "no tokens to fill in the middle" in answer.json()["error"]["message"]
