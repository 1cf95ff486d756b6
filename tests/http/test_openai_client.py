"""The unmodified openai client against the default graph, the real engine and the real model."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import httpx
import openai
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.conftest import Server

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as made:
        yield made


def chat(client: openai.OpenAI, **more: object) -> ChatCompletion:
    fields = {"model": "smollm2", "messages": FRANCE, "temperature": 0, "max_tokens": 24} | more
    return client.chat.completions.create(**fields)  # type: ignore[call-overload,no-any-return]


def stream(client: openai.OpenAI, **more: object) -> list[ChatCompletionChunk]:
    return list(chat(client, stream=True, **more))  # type: ignore[arg-type]


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def completion(client: openai.OpenAI, **more: object) -> Completion:
    fields = {
        "model": "smollm2",
        "prompt": "The capital of France is",
        "temperature": 0,
        "max_tokens": 8,
    } | more
    return client.completions.create(**fields)  # type: ignore[call-overload,no-any-return]


def test_a_real_answer(client: openai.OpenAI) -> None:
    answer = chat(client)
    assert "Paris" in (answer.choices[0].message.content or "")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == "smollm2"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens > 10
    ChatCompletion.model_validate(answer.to_dict(), strict=True)


def test_the_stream_is_the_answer_in_pieces(client: openai.OpenAI) -> None:
    chunks = stream(client)
    assert len(chunks) > 3
    assert text_of(chunks) == chat(client).choices[0].message.content
    assert len({c.id for c in chunks}) == 1
    assert {c.object for c in chunks} == {"chat.completion.chunk"}
    assert all(c.created and c.model == "smollm2" for c in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].delta.role for c in chunks[1:]] == [None] * (len(chunks) - 1)
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "stop"
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk.to_dict(), strict=True)


def test_usage_comes_in_a_last_chunk_when_asked(client: openai.OpenAI) -> None:
    chunks = stream(client, stream_options={"include_usage": True})
    assert chunks[-1].choices == []
    assert all(c.usage is None for c in chunks[:-1])
    assert chunks[-1].usage == chat(client).usage


def test_one_fingerprint_of_whole_answers_and_streams(client: openai.OpenAI) -> None:
    found = {chat(client, max_tokens=1).system_fingerprint}
    found |= {chunk.system_fingerprint for chunk in chat(client, max_tokens=2, stream=True)}
    found |= {client.completions.create(model="smollm2", prompt="a", max_tokens=1).system_fingerprint}
    (fingerprint,) = found
    assert fingerprint is not None
    assert re.fullmatch(r"fp_[0-9a-f]{12}", fingerprint)


def test_completions(client: openai.OpenAI) -> None:
    answer = completion(client)
    assert "Paris" in answer.choices[0].text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    chunks = list(completion(client, stream=True, stream_options={"include_usage": True}))  # type: ignore[arg-type]
    assert "".join(c.choices[0].text for c in chunks if c.choices) == answer.choices[0].text  # type: ignore[attr-defined]
    assert chunks[-1].usage == answer.usage  # type: ignore[attr-defined]


async def test_the_async_client_many_at_once(server: Server) -> None:
    """Every stream ends and gives what it gives alone; neighbours in a batch do not leak into each other."""
    import asyncio

    async with openai.AsyncOpenAI(base_url=server.v3, api_key="none", max_retries=0) as client:

        async def ask(topic: str) -> str:
            pieces = await client.chat.completions.create(
                model="smollm2",
                messages=[{"role": "user", "content": f"Say the word {topic}."}],
                temperature=0,
                max_tokens=12,
                stream=True,
            )
            return "".join([c.choices[0].delta.content or "" async for c in pieces])

        topics = ["apple", "river", "stone", "cloud", "tiger", "piano", "candle", "winter"]
        together = await asyncio.gather(*map(ask, topics))
    assert all(together)
    assert sum(t in a.lower() for t, a in zip(topics, together, strict=True)) >= 6


@pytest.mark.parametrize("version", ["/v3", "/v1", "/v3/v1"])
def test_every_prefix(server: Server, version: str) -> None:
    with openai.OpenAI(base_url=server.url + version, api_key="none", max_retries=0) as client:
        assert chat(client, max_tokens=2).choices[0].finish_reason == "length"
        assert [m.id for m in client.models.list()] == ["smollm2"]
        model = client.models.retrieve("smollm2")
        assert (model.id, model.object) == ("smollm2", "model")
        assert model.created > 1_700_000_000


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_max_tokens_counts_tokens(client: openai.OpenAI, name: str) -> None:
    for count in (1, 5):
        answer = chat(client, **({"max_tokens": None} | {name: count}))
        assert answer.usage is not None
        assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (count, "length")


@pytest.mark.parametrize("stop", ["Pa", ["zzz", "Paris"], "is Par", " "])
def test_stop_cuts_at_the_character(client: openai.OpenAI, stop: str | list[str]) -> None:
    whole = chat(client).choices[0].message.content or ""
    found = [whole.find(s) for s in ([stop] if isinstance(stop, str) else stop) if s in whole]
    answer = chat(client, stop=stop)
    assert answer.choices[0].message.content == whole[: min(found)]
    assert answer.choices[0].finish_reason == "stop"
    assert text_of(stream(client, stop=stop)) == whole[: min(found)]


STORY = [{"role": "user", "content": "Write a story about a bird."}]


def test_greedy_repeats_and_sampling_does_not(client: openai.OpenAI) -> None:
    """Without drafts and with a cached prompt, because the model's near-ties depend on the rows of a step."""
    chat(client, messages=STORY, max_tokens=1)

    def ask(**more: object) -> str:
        answer = chat(client, messages=STORY, extra_body={"num_assistant_tokens": 0}, **more)
        return answer.choices[0].message.content or ""

    assert ask() == ask()
    assert len({ask(temperature=1.5) for _ in range(4)}) > 1
    assert ask(temperature=1.2, seed=7) == ask(temperature=1.2, seed=7)
    assert ask(temperature=1.2, seed=7) != ask(temperature=1.2, seed=8)


CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.mark.parametrize("narrow", [{"top_k": 1}, {"top_p": 0}, {"top_p": 0.0001}, {"min_p": 1}])
def test_a_filter_that_leaves_one_token_is_greedy(client: openai.OpenAI, narrow: dict[str, float]) -> None:
    """Without drafts and with a cached prompt, because the model's near-ties depend on the rows of a step.
    A `min_p` below 1 leaves ties, so the question has a certain answer."""
    plain = {"num_assistant_tokens": 0}
    chat(client, messages=CAPITAL, max_tokens=1)
    greedy = chat(client, messages=CAPITAL, max_tokens=8, extra_body=plain).choices[0].message.content
    sampled = chat(client, messages=CAPITAL, max_tokens=8, temperature=1.9, seed=3, extra_body=narrow | plain)
    assert sampled.choices[0].message.content == greedy


@pytest.mark.parametrize(
    "penalty",
    [{"frequency_penalty": 2}, {"presence_penalty": 2}, {"extra_body": {"repetition_penalty": 1.8}}],
)
def test_penalties_reduce_repetition(client: openai.OpenAI, penalty: dict[str, object]) -> None:
    prompt = "one two three one two three one two three one two three one two"
    plain = completion(client, prompt=prompt, max_tokens=30).choices[0].text.split()
    fined = completion(client, prompt=prompt, max_tokens=30, **penalty).choices[0].text.split()
    assert len(set(fined)) > len(set(plain))


def test_ignore_eos_goes_on_to_the_limit(client: openai.OpenAI) -> None:
    answer = chat(client, max_tokens=60, extra_body={"ignore_eos": True})
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 60
    assert "<|im_end|>" not in (answer.choices[0].message.content or "")


def test_a_request_for_more_than_fits_is_clamped_and_told(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="smollm2",
        messages=FRANCE,
        temperature=0,
        max_tokens=32000,
        stop=["."],  # type: ignore[arg-type]
    )
    prompt_tokens = raw.parse().usage.prompt_tokens  # type: ignore[union-attr]
    assert raw.headers["x-ovserve-clamped"] == f"max_tokens={8192 - prompt_tokens}"


def test_unknown_fields_are_told(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="smollm2",
        messages=FRANCE,
        max_tokens=1,
        user="me",
        extra_body={"zebra": 1},  # type: ignore[arg-type]
    )
    assert raw.headers["x-ovserve-ignored-params"] == "zebra"
    assert raw.headers["x-request-id"]


def test_the_client_s_request_id_comes_back(server: Server) -> None:
    body = {"model": "smollm2", "messages": FRANCE, "max_tokens": 1}
    for stream_ in (True, False):
        answer = httpx.post(
            f"{server.v3}/chat/completions",
            json=body | {"stream": stream_},
            headers={"x-request-id": "abc-1"},
        )
        assert answer.headers["x-request-id"] == "abc-1"


def test_the_bytes_of_a_stream(server: Server) -> None:
    body = {"model": "smollm2", "messages": FRANCE, "max_tokens": 3, "stream": True, "temperature": 0}
    answer = httpx.post(f"{server.v3}/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    for event in events[:-2]:
        assert set(json.loads(event.removeprefix("data: "))) == {
            "id",
            "object",
            "created",
            "model",
            "system_fingerprint",
            "choices",
        }
    assert answer.text.count("[DONE]") == 1


def test_errors_are_the_client_s_own_types(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        chat(client, model="nobody")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    assert "'nobody'" in missing.value.message
    assert "smollm2" in missing.value.message
    with pytest.raises(openai.BadRequestError) as bad:
        chat(client, temperature=3)
    assert (bad.value.param, bad.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.BadRequestError) as unsupported:
        chat(client, modalities=["text", "audio"])
    assert (unsupported.value.param, unsupported.value.code) == ("modalities", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


@pytest.mark.parametrize("stream_", [True, False])
def test_a_prompt_longer_than_the_model_is_refused_with_numbers(client: openai.OpenAI, stream_: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, messages=[{"role": "user", "content": "word " * 9000}], stream=stream_)
    assert caught.value.code == "context_length_exceeded"
    assert "8192" in caught.value.message
