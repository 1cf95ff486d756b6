"""POST responses/input_tokens with the openai client: the number that the same response's usage tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import InputTokenCountResponse

from tests.conftest import Server
from tests.http.responses_harness import OWNER, serving


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as made:
        yield made


ITEMS: list[Any] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "input_text", "text": "Capital of France?"}]},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Paris."}]},
    {"role": "user", "content": "And of Italy?"},
]


@pytest.mark.parametrize("input_", ["What is the capital of France?", ITEMS])
@pytest.mark.parametrize("more", [{}, {"instructions": "Answer in one word."}])
def test_it_is_what_the_response_has(client: openai.OpenAI, input_: Any, more: dict[str, Any]) -> None:
    counted = client.responses.input_tokens.count(model="smollm2", input=input_, **more)
    InputTokenCountResponse.model_validate(counted.to_dict(), strict=True)
    assert counted.object == "response.input_tokens"
    made = client.responses.create(model="smollm2", input=input_, max_output_tokens=1, store=False, **more)
    assert made.usage is not None
    assert counted.input_tokens == made.usage.input_tokens


def test_history_counts(client: openai.OpenAI) -> None:
    first = client.responses.create(model="smollm2", input="Hi", max_output_tokens=3)
    counted = client.responses.input_tokens.count(previous_response_id=first.id, input="And?")
    second = client.responses.create(
        model="smollm2", previous_response_id=first.id, input="And?", max_output_tokens=1
    )
    assert second.usage is not None
    assert counted.input_tokens == second.usage.input_tokens
    alone = client.responses.input_tokens.count(model="smollm2", previous_response_id=first.id)
    assert 0 < alone.input_tokens < counted.input_tokens


def test_instructions_alone(client: openai.OpenAI) -> None:
    assert client.responses.input_tokens.count(instructions="Be kind.").input_tokens > 0


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"model": "smollm2"}, 400, "input: expected at least one message"),
        ({"model": "nobody", "input": "a"}, 404, "nobody"),
        ({"input": 5}, 400, "input: "),
        ({"input": "a", "previous_response_id": "resp_x"}, 400, "'resp_x' is not stored"),
        ({"input": [{"type": "zork"}]}, 400, "got none but input[0].type=zork"),
        ({"input": "a", "conversation": "c"}, 400, "previous_response_id"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
            400,
            "text only",
        ),
    ],
)
def test_refusals(server: Server, body: dict[str, Any], status: int, says: str) -> None:
    answer = httpx.post(f"{server.v3}/responses/input_tokens", json=body)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]["message"]


def test_a_key_twice_and_what_is_unknown(server: Server) -> None:
    twice = httpx.post(f"{server.v3}/responses/input_tokens", content=b'{"input":"a","input":"b"}')
    assert twice.status_code == 400
    odd = httpx.post(f"{server.v3}/responses/input_tokens", json={"input": "a", "personality": "friendly"})
    assert odd.headers["x-ovserve-ignored-params"] == "personality"


async def test_owners_are_apart(tmp_path: Path) -> None:
    async with serving(tmp_path, store="own") as running:
        mine = {OWNER: "a"}
        made = (await running.post("say", headers=mine)).json()
        body = {"model": "m", "previous_response_id": made["id"], "input": "more"}
        counted = await running.http.post("/v3/responses/input_tokens", json=body, headers=mine)
        assert counted.json()["input_tokens"] > made["usage"]["input_tokens"]
        other = await running.http.post("/v3/responses/input_tokens", json=body, headers={OWNER: "b"})
        assert other.status_code == 400
