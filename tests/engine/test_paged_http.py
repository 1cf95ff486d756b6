"""The paged engine through the server: what only it has, with the official client. Of the default model, whose tokens
they are, it has two layers."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import openvino
import pytest
from openvino import opset13 as ops

from ovserve.engine.protocol.specs import PagedTextSpec
from ovserve.errors import LoadError
from ovserve.kinds.text.worker.paged import PagedEngine
from tests.conftest import Server, start_process
from tests.engine import tiny
from tests.engine.real import EXACT

FRANCE = "The capital of France is"
CAPITAL: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def server(short_model: Path) -> Iterator[Server]:
    flags = ("--model_name", "m", "--engine", "paged", "--plugin_config", EXACT)
    server = start_process(str(short_model), *flags, timeout=230)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as client:
        yield client


def chat(client: openai.OpenAI, **more: Any) -> Any:
    asked = {"model": "m", "messages": CAPITAL, "max_tokens": 8, "temperature": 0} | more
    return client.chat.completions.create(**asked)


def completion(client: openai.OpenAI, prompt: str = FRANCE, **more: Any) -> Any:
    asked = {"model": "m", "prompt": prompt, "max_tokens": 8, "temperature": 0} | more
    return client.completions.create(**asked).choices[0]


def ids(server: Server, text: str) -> list[int]:
    body = {"model": "m", "text": text, "add_special_tokens": False}
    found: list[int] = httpx.post(f"{server.v3}/tokenize", json=body).json()["tokens"]
    return found


def test_a_model_that_cannot_have_paged_attention_is_served_by_genai(
    tmp_path: Path,
) -> None:
    """Behind its output layer is an operator that the paged engine does not know."""
    plain, directory = Path(tiny.write_openvino(tmp_path / "plain", tiny.table())), tmp_path / "clamped"
    shutil.copytree(plain, directory, ignore=shutil.ignore_patterns("openvino_model.*"))
    model = openvino.Core().read_model(plain / "openvino_model.xml")
    logits = model.output(0).get_node().input(0)
    logits.replace_source_output(ops.clamp(logits.get_source_output(), -1e9, 1e9).output(0))
    openvino.save_model(model, directory / "openvino_model.xml", compress_to_fp16=False)
    with pytest.raises(LoadError, match="no output layer is found") as caught:
        PagedEngine(PagedTextSpec(str(directory)))
    assert caught.value.field == "engine"
    server = start_process(str(directory), "--model_name", "m", "--plugin_config", EXACT, timeout=230)
    try:
        [row] = httpx.get(f"{server.v3}/capabilities").json()["data"]
        with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as client:
            assert completion(client, "abc").text == "defghijk"
    finally:
        server.stop()
    assert [engine["kind"] for engine in row["engines"]] == ["text"]
    assert "OpenVINO GenAI's engine is used: no output layer is found in this model" in "".join(server.errors)


def test_the_chosen_token_is_the_likeliest_when_greedy(client: openai.OpenAI) -> None:
    choice = chat(client, logprobs=True, top_logprobs=20).choices[0]
    tokens = choice.logprobs.content
    assert "".join(token.token for token in tokens) == choice.message.content
    for token in tokens:
        values = [one.logprob for one in token.top_logprobs]
        assert len(values) == 20
        assert values == sorted(values, reverse=True)
        assert (token.top_logprobs[0].token, values[0]) == (token.token, token.logprob)
        assert 0 < sum(map(math.exp, values)) <= 1.001
        assert len({bytes(one.bytes) for one in token.top_logprobs}) == 20


def test_fewer_are_the_beginning_of_more(client: openai.OpenAI) -> None:
    few, many = (chat(client, logprobs=True, top_logprobs=top).choices[0].logprobs.content for top in (3, 20))
    for one, other in zip(few, many, strict=True):
        assert [each.token for each in one.top_logprobs] == [each.token for each in other.top_logprobs[:3]]


def test_a_stream_has_the_same_as_the_whole(client: openai.OpenAI) -> None:
    whole = chat(client, logprobs=True, top_logprobs=4).choices[0].logprobs.content
    streamed = [
        token
        for chunk in chat(client, logprobs=True, top_logprobs=4, stream=True)
        for choice in chunk.choices
        if choice.logprobs
        for token in choice.logprobs.content
    ]
    shown = [[[one.token for one in token.top_logprobs] for token in tokens] for tokens in (whole, streamed)]
    assert shown[0] == shown[1]


def test_choices_have_their_own(client: openai.OpenAI) -> None:
    answer = chat(client, logprobs=True, top_logprobs=5, n=3, temperature=1.5, seed=7)
    for choice in answer.choices:
        assert all(len(token.top_logprobs) == 5 for token in choice.logprobs.content)
    assert len({choice.message.content for choice in answer.choices}) > 1


def test_an_echoed_prompt_has_top_logprobs_too(client: openai.OpenAI, server: Server) -> None:
    choice = completion(client, logprobs=3, echo=True, max_tokens=2)
    found = choice.logprobs
    assert "".join(found.tokens) == choice.text
    assert choice.text.startswith(FRANCE)
    assert (found.token_logprobs[0], found.top_logprobs[0]) == (None, None)
    for token, value, top in zip(
        found.tokens[1:], found.token_logprobs[1:], found.top_logprobs[1:], strict=True
    ):
        assert len(top) in (3, 4), "the chosen token is added if it is not among them"
        assert top[token] == value
        assert value <= max(top.values())
    assert len(found.tokens) == len(ids(server, FRANCE)) + 2


def test_a_banned_token_does_not_come(client: openai.OpenAI, server: Server) -> None:
    banned: dict[str, float] = {}
    for _ in range(3):
        (token,) = completion(client, logprobs=1, max_tokens=1, logit_bias=banned).logprobs.tokens
        (id_,) = ids(server, token)
        assert str(id_) not in banned
        banned[str(id_)] = -100


def test_a_forced_token_comes_again_and_again(client: openai.OpenAI, server: Server) -> None:
    (id_,) = ids(server, " yes")
    for more in ({}, {"temperature": 1, "seed": 5}):
        assert completion(client, logit_bias={str(id_): 100}, **more).text == " yes" * 8


def test_a_small_bias_moves_the_choice_only_as_far(client: openai.OpenAI, server: Server) -> None:
    (top,) = completion(client, logprobs=2, max_tokens=1).logprobs.top_logprobs
    (first, high), (second, low) = sorted(top.items(), key=lambda item: -item[1])
    (id_,) = ids(server, second)
    for part, expected in ((0.5, first), (1.5, second)):
        assert completion(client, max_tokens=1, logit_bias={str(id_): part * (high - low)}).text == expected


def test_an_id_outside_of_the_vocabulary_is_a_400(server: Server) -> None:
    body = {"model": "m", "prompt": "x", "logit_bias": {"49152": 1}}
    answer = httpx.post(f"{server.v3}/completions", json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "logit_bias")
    assert error["message"] == "logit_bias: token id 49152 is not in the vocabulary of 49152"
    body["logit_bias"] = {"49151": 1}
    assert (
        httpx.post(f"{server.v3}/completions", json=body | {"max_tokens": 1}, timeout=230).status_code == 200
    )


def test_drafts_are_capped_and_turned_off(client: openai.OpenAI) -> None:
    prompt = "one two three four five six seven eight " * 6
    texts, accepted = set(), []
    for cap in (None, 0, 4, 64):
        more = {} if cap is None else {"extra_body": {"num_assistant_tokens": cap}}
        answer = client.completions.create(model="m", prompt=prompt, max_tokens=48, temperature=0, **more)
        texts.add(answer.choices[0].text)
        assert answer.usage is not None
        details = answer.usage.completion_tokens_details
        accepted.append(details.accepted_prediction_tokens or 0 if details else 0)
    assert len(texts) == 1
    assert accepted[1] == 0


def test_responses_and_ollama_have_them_too(client: openai.OpenAI, server: Server) -> None:
    response = client.responses.create(
        model="m", input="What is the capital of France?", top_logprobs=6, temperature=0, max_output_tokens=4,
        include=["message.output_text.logprobs"],
    )  # fmt: skip
    part: Any = response.output[0].content[0]  # type: ignore[union-attr,index]
    body = {
        "model": "m", "messages": CAPITAL, "logprobs": True, "top_logprobs": 6, "stream": False,
        "options": {"temperature": 0, "num_predict": 4},
    }  # fmt: skip
    line = httpx.post(f"{server.url}/api/chat", json=body, timeout=230).json()
    shown = [[one["token"] for one in token["top_logprobs"]] for token in line["logprobs"]]
    assert shown == [[one.token for one in token.top_logprobs] for token in part.logprobs]
    assert all(len(tops) == 6 for tops in shown)


def test_what_the_server_says_of_it(server: Server) -> None:
    (model,) = httpx.get(f"{server.v3}/capabilities").json()["data"]
    assert [engine["kind"] for engine in model["engines"]] == ["paged_text"]
    (rows,) = [e["parameters"] for e in model["endpoints"] if e["endpoint"] == "chat/completions"]
    assert {row["name"]: row for row in rows}["top_logprobs"]["schema"]["maximum"] == 20
