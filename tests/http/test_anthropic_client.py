"""The unmodified anthropic client: the real model, scripted failures, and what agents send."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from ovserve.api.openai.sampling import MAX_STOP
from tests.conftest import Server, eventually
from tests.http.conftest import Running, Scripted

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0}
DOCUMENTS = (
    {"type": "text", "media_type": "text/plain", "data": "pages"},
    {"type": "content", "content": [{"type": "text", "text": "parts"}]},
)
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
SCRIPT = json.dumps(
    {
        "max_length": 60,
        "step_seconds": 0.01,
        "replies": [
            {"match": "endless", "text": "word ", "repeat": 0},
            {"match": "raise", "text": "a b c d e f", "raise_in_step": 3},
            {"match": "full", "refuse": "resource_exhausted"},
            {"match": "stops", "text": "one two three four"},
            {"match": "mirror", "echo": True},
            {"text": "all is well"},
        ],
    }
)


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as made:
        yield made


def ask(client: anthropic.Anthropic, **more: Any) -> Message:
    """Greedy unless told otherwise. The client has no arguments for sampling any more; the API has."""
    names = ("temperature", "top_p", "top_k")
    sampling = {"temperature": 0} | {name: more.pop(name) for name in names if name in more}
    fields = {"model": "smollm2", "messages": FRANCE, "max_tokens": 24, "extra_body": sampling} | more
    return client.messages.create(**fields)  # type: ignore[no-any-return]


def test_a_real_answer(client: anthropic.Anthropic, server: Server) -> None:
    ask(client)  # so that the prefix cache has the prompt for both: rounding differs where it is computed
    answer = ask(client)
    Message.model_validate(answer.to_dict(), strict=True)
    (block,) = answer.content
    assert block.type == "text"
    assert "Paris" in block.text
    assert (answer.role, answer.stop_reason, answer.stop_sequence) == ("assistant", "end_turn", None)
    assert answer.model == "smollm2"
    assert answer.id.startswith("msg_")
    openai = httpx.post(
        f"{server.v3}/chat/completions",
        json={"model": "smollm2", "messages": FRANCE, "temperature": 0, "max_tokens": 24},
    ).json()
    assert block.text == openai["choices"][0]["message"]["content"]
    cached = answer.usage.cache_read_input_tokens or 0  # which Anthropic's input_tokens are without
    assert answer.usage.input_tokens + cached == openai["usage"]["prompt_tokens"]
    assert answer.usage.output_tokens == openai["usage"]["completion_tokens"]


def test_the_stream_is_the_answer_in_pieces(client: anthropic.Anthropic) -> None:
    whole = ask(client)
    events = list(ask(client, stream=True))  # type: ignore[call-overload]
    for event in events:
        EVENT.validate_python(event.to_dict(), strict=True)
    kinds = [event.type for event in events]
    deltas = kinds.count("content_block_delta")
    assert deltas > 3
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert "".join(e.delta.text for e in events if e.type == "content_block_delta") == whole.content[0].text
    assert events[0].message.usage.input_tokens == whole.usage.input_tokens
    assert events[-2].usage.output_tokens == whole.usage.output_tokens
    with client.messages.stream(model="smollm2", messages=FRANCE, max_tokens=24, extra_body=GREEDY) as stream:
        final = stream.get_final_message()
    assert (final.content[0].text, final.stop_reason) == (whole.content[0].text, "end_turn")


@pytest.mark.parametrize("base", ["", "/v3"])
def test_every_base_address(server: Server, base: str) -> None:
    with anthropic.Anthropic(base_url=server.url + base, api_key="none", max_retries=0) as client:
        assert ask(client, max_tokens=2).stop_reason == "max_tokens"
        assert client.messages.count_tokens(model="smollm2", messages=FRANCE).input_tokens > 10


def test_count_tokens_is_what_the_answer_says(client: anthropic.Anthropic) -> None:
    body = {
        "model": "smollm2",
        "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}],
        "messages": [*FRANCE, {"role": "assistant", "content": "It is"}],
    }
    counted = client.messages.count_tokens(**body)
    assert counted.input_tokens == ask(client, **body, max_tokens=1).usage.input_tokens


def test_an_answer_is_continued(client: anthropic.Anthropic) -> None:
    answer = ask(client, messages=[*FRANCE, {"role": "assistant", "content": "The capital of France is"}])
    assert answer.content[0].text.lstrip().startswith("Paris")


@pytest.mark.parametrize("stop", [["Pa"], ["zzz", " is"], ["capital", "Paris"]])
def test_stop_sequences_cut_and_are_named(client: anthropic.Anthropic, stop: list[str]) -> None:
    whole = ask(client).content[0].text
    found = {s: whole.find(s) for s in stop if s in whole}
    first = min(found, key=lambda s: found[s] + len(s))
    answer = ask(client, stop_sequences=stop)
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", first)
    assert answer.content[0].text == whole[: found[first]]
    with client.messages.stream(
        model="smollm2", messages=FRANCE, max_tokens=24, stop_sequences=stop, extra_body=GREEDY
    ) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", first)
    assert final.content[0].text == answer.content[0].text


def test_greedy_by_top_k_and_top_p(client: anthropic.Anthropic) -> None:
    story = [{"role": "user", "content": "Write a story about a bird."}]
    ask(client, messages=story)  # a prompt of the cache is rounded otherwise
    greedy = ask(client, messages=story).content[0].text
    for narrow in ({"top_k": 1}, {"top_p": 0.0001}, {"top_p": 0}):
        assert ask(client, messages=story, temperature=1, **narrow).content[0].text == greedy
    assert len({ask(client, messages=story, temperature=1, top_k=0).content[0].text for _ in range(4)}) > 1


def test_what_agents_send_is_no_error(client: anthropic.Anthropic) -> None:
    raw = client.messages.with_raw_response.create(
        model="smollm2",
        max_tokens=4,
        messages=FRANCE,
        system=[
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=abc12;"},
            {"type": "text", "text": "You are brief.", "cache_control": {"type": "ephemeral"}},
        ],
        metadata={"user_id": "u"},
        thinking={"type": "enabled", "budget_tokens": 1024},
        service_tier="auto",
        extra_body={"context_management": {"edits": []}, "output_config": {"effort": "high"}},
        extra_query={"beta": "true"},
    )
    ignored = raw.headers["x-ovserve-ignored-params"].split(",")
    assert set(ignored) == {
        "context_management",
        "metadata",
        "output_config.effort",
        "service_tier",
        "system.x-anthropic-billing-header",
        "system[1].cache_control",
        "thinking",
        "thinking.budget_tokens",
    }
    assert raw.headers["request-id"] == raw.headers["x-request-id"]
    with_nonce = raw.parse().usage.input_tokens
    assert with_nonce == ask(client, system="You are brief.", max_tokens=1).usage.input_tokens


def test_more_than_fits_is_clamped_and_told(client: anthropic.Anthropic) -> None:
    raw = client.messages.with_raw_response.create(
        model="smollm2",
        max_tokens=32000,
        messages=FRANCE,
        extra_body=GREEDY,
        stop_sequences=["."],
        timeout=230,
    )
    usage = raw.parse().usage
    room = 8192 - usage.input_tokens - (usage.cache_read_input_tokens or 0)
    assert raw.headers["x-ovserve-clamped"] == f"max_tokens={room}"


def test_errors_are_the_client_s_own_types(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        ask(client, model="claude-of-tomorrow")
    body = missing.value.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "not_found_error"
    assert "claude-of-tomorrow" in body["error"]["message"]
    assert body["request_id"] == missing.value.response.headers["request-id"]
    assert missing.value.request_id == body["request_id"]
    with pytest.raises(anthropic.BadRequestError) as bad:
        ask(client, temperature=3)
    assert bad.value.body["error"]["type"] == "invalid_request_error"
    assert "temperature" in bad.value.body["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_prompt_that_is_too_long(client: anthropic.Anthropic, stream: bool) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, messages=[{"role": "user", "content": "word " * 9000}], system="Be kind.", stream=stream)
    message = caught.value.body["error"]["message"]
    assert message.startswith("prompt is too long: ")
    assert "8191 maximum" in message
    assert "The prompt has 90" in message
    assert "By part: system 3, history 0, last message 9001, template " in message
    assert "at most 81" in message


@pytest.mark.parametrize("stream", [True, False])
def test_no_tokens_at_all_prepare_the_prefix_cache(client: anthropic.Anthropic, stream: bool) -> None:
    """As Anthropic documents max_tokens 0, in the same form with and without a tool that must be called."""
    system = f"Known before the first question, {'streamed' if stream else 'whole'}. " * 20
    for more in ({}, {"tools": [TOOL], "tool_choice": {"type": "any"}}):
        warmed = ask(client, messages=FRANCE, system=system, max_tokens=0, stream=stream, **more)
        if stream:
            events = list(warmed)
            assert [event.type for event in events] == ["message_start", "message_delta", "message_stop"]
            assert (events[1].delta.stop_reason, events[1].usage.output_tokens) == ("max_tokens", 0)
        else:
            assert (warmed.content, warmed.stop_reason) == ([], "max_tokens")
            assert warmed.usage.output_tokens == 0
    answer = ask(client, messages=FRANCE, system=system, max_tokens=1)
    assert answer.usage.cache_read_input_tokens > 100


CALL = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"x": 1}}
TOOL = {"name": "f", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role: expected one of"),
        ({"messages": [{"role": "user"}]}, "messages[0].content: required, but missing"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]}, "messages[0].content[0].type: this model takes text only, got 'image'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text: required"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "a"}]}]}, "tool_use_id: required"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": 5}]}]}, "content[0].content: expected a string or blocks, got 5"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": 5}]}]}]}, "messages[0].content[0].content[0].text: expected `str | null`, got 5"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": ["x"]}]}]}, 'messages[0].content[0].content[0]: expected `object`, got "x"'),
        ({"system": 5}, "system"),
        ({"system": [{"type": "image"}]}, 'system[0].type: expected one of text, got "image"'),
        ({"system": [{"type": "search_result", "source": 3, "text": "a"}]}, 'system[0].type: expected one of text, got "search_result"'),
        ({"system": [{"type": "text"}]}, "system[0].text: required"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["a"] * (MAX_STOP + 1)}, "stop_sequences"),
        ({"top_k": -1}, "top_k"),
        ({"thinking": {}}, "thinking.type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema: required"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name: 'g'"),
    ],
)  # fmt: skip
def test_refusals(server: Server, change: dict[str, Any], says: str) -> None:
    body = {"model": "smollm2", "max_tokens": 4, "messages": FRANCE} | change
    answer = httpx.post(f"{server.url}/v1/messages", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert says in error["error"]["message"], error["error"]["message"]


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"model": 5}', b"\xff"])
def test_no_request_at_all(server: Server, data: bytes) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        answer = httpx.post(server.url + path, content=data)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
    assert httpx.get(f"{server.url}/v1/messages").json()["error"]["type"] == "invalid_request_error"


# ---- scripted


@pytest.fixture
async def running(scripted: Scripted) -> AsyncIterator[Running]:
    async with scripted(SCRIPT) as running:
        yield running


@pytest.fixture
async def calls(running: Running) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as made:
        yield made


async def say(calls: anthropic.AsyncAnthropic, content: Any, **more: Any) -> Any:
    messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
    return await calls.messages.create(**{"model": "m", "max_tokens": 40, "messages": messages} | more)


@pytest.mark.parametrize("how", ["kill", "raise"])
async def test_the_engine_dies_under_a_stream(
    running: Running, calls: anthropic.AsyncAnthropic, how: str
) -> None:
    stream = await say(calls, "endless" if how == "kill" else "raise", stream=True)
    seen: list[str] = []

    async def read() -> None:
        async for event in stream:
            seen.append(event.type)
            if how == "kill" and seen.count("content_block_delta") == 3:
                os.kill(running.engine.pid, signal.SIGKILL)

    with pytest.raises(anthropic.APIStatusError) as caught:
        await read()
    assert seen[0] == "message_start"
    assert "message_stop" not in seen
    assert caught.value.body["error"]["type"] == "overloaded_error"
    await eventually(lambda: running.manager.ready)
    assert (await say(calls, "again")).content[0].text == "all is well"


async def test_the_engine_dies_under_a_unary_request(
    running: Running, calls: anthropic.AsyncAnthropic
) -> None:
    with pytest.raises(anthropic.InternalServerError) as caught:
        await say(calls, "raise")
    assert caught.value.status_code == 529
    assert caught.value.body["error"]["type"] == "overloaded_error"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    with pytest.raises(anthropic.APIStatusError) as full:
        await say(calls, "full")
    assert full.value.body["error"]["type"] == "overloaded_error"


async def test_leaving_frees_the_engine(running: Running, calls: anthropic.AsyncAnthropic) -> None:
    stream = await say(calls, "endless", stream=True)
    async for event in stream:
        if event.type == "content_block_delta":
            break
    await stream.close()
    await eventually(lambda: running.engine.stats().running == 0)
    assert running.engine.stats().aborted == 1


async def test_the_context_ends_the_answer(calls: anthropic.AsyncAnthropic) -> None:
    answer = await say(calls, "endless", max_tokens=1000)
    assert answer.stop_reason == "model_context_window_exceeded"
    assert (await say(calls, "endless", max_tokens=3)).stop_reason == "max_tokens"
    events = [e async for e in await say(calls, "endless", max_tokens=1000, stream=True)]
    assert events[-2].delta.stop_reason == "model_context_window_exceeded"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stop_sequence_over_several_tokens(calls: anthropic.AsyncAnthropic, stream: bool) -> None:
    if stream:
        async with calls.messages.stream(
            model="m",
            max_tokens=9,
            messages=[{"role": "user", "content": "stops"}],
            stop_sequences=["two thr"],
        ) as events:
            answer = await events.get_final_message()
    else:
        answer = await say(calls, "stops", stop_sequences=["two thr"])
    assert answer.content[0].text == "one "
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "two thr")


async def test_the_conversation_reaches_the_template(calls: anthropic.AsyncAnthropic) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "mirror"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "calling"}, CALL]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "42"}]}, {"type": "text", "text": "and?"}]},
        {"role": "user", "content": [{"type": "document", "source": source, "title": "T", "context": "from 2020"} for source in DOCUMENTS]},
        {"role": "system", "content": "be quick"},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_2", "content": "bad", "is_error": True}]},
    ]  # fmt: skip
    answer = await say(calls, messages, system="sys")
    assert answer.content[0].text.split("\n") == [
        "system: sys",
        "user: mirror",
        "two",
        "assistant: calling",
        "<tool_call>",
        '{"name": "f", "arguments": {"x":1}}',
        "</tool_call>",
        "tool: 42",
        "user: and?",
        *["user: from 2020", "[File T]", "pages", "from 2020", "[File T]", "parts"],
        "system: be quick",
        "tool: Error: bad",
        "assistant:",
    ]


async def test_a_thread_of_the_client_is_the_whole_conversation(calls: anthropic.AsyncAnthropic) -> None:
    """Its second request has one message, and names only the answer before; so do those of its tool runner."""
    thread = calls.beta.messages.thread(model="m", max_tokens=200, system="sys")
    for word in ("mirror", "two", "three"):
        answer = await thread.send({"role": "user", "content": word})
        assert answer.content[0].text.startswith("system: sys\nuser: mirror\nassistant:")
        assert answer.content[0].text.endswith(f"user: {word}\nassistant:")


async def test_many_at_once(calls: anthropic.AsyncAnthropic) -> None:
    answers = await asyncio.gather(*(say(calls, f"hello {i}") for i in range(8)))
    assert {a.content[0].text for a in answers} == {"all is well"}
    assert len({a.id for a in answers}) == 8
