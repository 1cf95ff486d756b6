"""Tool calls and thinking through every API: dialects, official clients, streamed and whole, over a scripted engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from pydantic import TypeAdapter

from tests.api.openai.test_responses_writer import check_order, events
from tests.http.responses_harness import Serving, serving

ANTHROPIC_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
TEMPLATE = (
    "{%% for m in messages %%}{{ m.role }}: {{ m.content }}"
    "{%% for c in m.tool_calls or [] %%} calls {{ c.function.name }}{{ c.function.arguments }}{%% endfor %%}"
    "\n{%% endfor %%}{%% if tools %%}tools: {{ tools | tojson }}\n{%% endif %%}{# %s #}assistant:"
)
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "now"}},
]
FLAT: list[Any] = [{"type": "function", "strict": None, "parameters": None} | t["function"] for t in TOOLS]
ANTHROPIC: list[Any] = [
    {"name": t["name"], "input_schema": t["parameters"] or {"type": "object", "properties": {}}} for t in FLAT
]
OSLO = {"city": "Oslo", "days": 3}

# What shows the dialect in a template; the answer; what it says besides the two calls.
DIALECTS: dict[str, tuple[str, str, tuple[str, str]]] = {
    "hermes3": (
        "<tool_call></tool_call><think></think>",
        "<think>\nWhich city?\n</think>\n\nLet me look.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        ("Let me look.", "Which city?"),
    ),
    "llama3": (
        "<|python_tag|>",
        '<|python_tag|>{"name": "get_weather", "parameters": {"city": "Oslo", "days": 3}}; '
        '{"name": "now", "parameters": {}}',
        ("", ""),
    ),
    "mistral": (
        "[TOOL_CALLS]",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}, '
        '{"name": "now", "arguments": {}}]',
        ("", ""),
    ),
    "gptoss": (
        "<|channel|>",
        "<|channel|>analysis<|message|>Which city?<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.get_weather <|constrain|>json<|message|>{"city": "Oslo", "days": 3}<|call|>'
        "<|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>",
        ("", "Which city?"),
    ),
    "qwen3coder": (
        "<function=<parameter=</parameter>",
        "Let me look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n"
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        ("Let me look.", ""),
    ),
    "devstral": (
        "[TOOL_CALLS][ARGS]",
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo", "days": 3}[TOOL_CALLS]now[ARGS]{}',
        ("", ""),
    ),
}  # fmt: skip
BROKEN = 'First. <tool_call>{"name": "now", "arguments": {"a": }}</tool_call>'


def script(marks: str, *replies: dict[str, Any]) -> dict[str, Any]:
    return {"chat_template": TEMPLATE % marks, "replies": list(replies)}


def pieces(text: str) -> dict[str, Any]:
    return {"pieces": [text[i : i + 3] for i in range(0, len(text), 3)]}


@asynccontextmanager
async def over(
    tmp_path: Path, text: str, marks: str = DIALECTS["hermes3"][0], **more: Any
) -> AsyncIterator[Serving]:
    async with serving(tmp_path, store=None, script=script(marks, pieces(text)) | more) as running:
        yield running


@pytest.fixture(params=list(DIALECTS))
async def dialect(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Serving, Any]]:
    marks, text, expected = DIALECTS[request.param]
    async with over(tmp_path, text, marks) as running:
        models = (await running.http.get("/v3/capabilities")).json()["data"]
        assert models[0]["tool_parser"] == request.param, "found in the template"
        yield running, expected


def asked(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "Oslo?"}], "tools": TOOLS} | more


async def chat_stream(running: Serving, **more: Any) -> list[ChatCompletionChunk]:
    chunks = []
    stream = await running.client.chat.completions.create(
        **asked(stream=True, stream_options={"include_usage": True}, **more)
    )
    async for chunk in stream:
        ChatCompletionChunk.model_validate(chunk.to_dict(), strict=True)
        chunks.append(chunk)
    return chunks


def gathered(chunks: list[ChatCompletionChunk]) -> dict[str, Any]:
    """As clients do it: by index; ids and names come once."""
    seen: dict[str, Any] = {"content": "", "reasoning": "", "calls": [], "finish": None}
    for chunk in chunks:
        for choice in chunk.choices:
            seen["content"] += choice.delta.content or ""
            seen["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                if call.index == len(seen["calls"]):
                    assert call.id
                    assert call.type == "function"
                    seen["calls"].append([call.function.name, ""])
                else:
                    assert (call.id, call.function.name) == (None, None)
                seen["calls"][call.index][1] += call.function.arguments or ""
            seen["finish"] = choice.finish_reason or seen["finish"]
    return seen


async def test_chat(dialect: tuple[Serving, tuple[str, str]]) -> None:
    running, (content, reasoning) = dialect
    answer = await running.client.chat.completions.create(**asked())
    ChatCompletion.model_validate(answer.to_dict(), strict=True)
    message = answer.choices[0].message
    assert message.content == (content or None)
    assert getattr(message, "reasoning_content", "") == reasoning
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = [call for call in message.tool_calls or () if call.type == "function"]
    assert [(c.function.name, json.loads(c.function.arguments)) for c in calls] == [
        ("get_weather", OSLO),
        ("now", {}),
    ]
    assert len({c.id for c in calls}) == 2
    assert answer.usage is not None
    assert answer.usage.completion_tokens_details is not None
    thought = answer.usage.completion_tokens_details.reasoning_tokens or 0
    assert (thought > 0) == bool(reasoning)
    assert thought < answer.usage.completion_tokens

    chunks = await chat_stream(running)
    assert chunks[0].choices[0].delta.content is None  # the AI SDK would begin a text part
    assert chunks[-1].usage == answer.usage
    seen = gathered(chunks)
    assert seen == {
        "content": content,
        "reasoning": reasoning,
        "calls": [[c.function.name, c.function.arguments] for c in calls],
        "finish": "tool_calls",
    }


async def test_responses(dialect: tuple[Serving, tuple[str, str]]) -> None:
    running, (content, reasoning) = dialect
    response = await running.create("Oslo?", tools=FLAT, store=False)
    Response.model_validate(response.to_dict(), strict=True)
    kinds = ["reasoning"] * bool(reasoning) + ["message"] * bool(content) + ["function_call"] * 2
    assert [item.type for item in response.output] == kinds
    assert response.output_text == content
    first, second = response.output[-2:]
    assert (first.name, json.loads(first.arguments)) == ("get_weather", OSLO)
    assert (second.name, second.arguments, second.status) == ("now", "{}", "completed")
    assert (response.usage.output_tokens_details.reasoning_tokens > 0) == bool(reasoning)

    stream = events((await running.post("Oslo?", tools=FLAT, store=False, stream=True)).content)
    last = check_order(stream)
    plain = [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in last["output"]]
    unary = [
        {k: v for k, v in item.to_dict().items() if k not in ("id", "call_id")} for item in response.output
    ]
    assert plain == unary
    types = [e["type"].removeprefix("response.") for e in stream]
    order = [t for t in types if t.startswith("output_item") or t.startswith("function_call_arguments.done")]
    call = ["output_item.added", "function_call_arguments.done", "output_item.done"]
    before = ["output_item.added", "output_item.done"] * (len(kinds) - 2)
    assert order == before + call * 2, "each item is closed before the next opens"


async def test_anthropic(dialect: tuple[Serving, tuple[str, str]]) -> None:
    running, (content, reasoning) = dialect
    body: dict[str, Any] = {"model": "m", "max_tokens": 500, "tools": ANTHROPIC}
    body |= {"messages": [{"role": "user", "content": "Oslo?"}]}
    async with anthropic.AsyncAnthropic(base_url=running.url, api_key="none", max_retries=0) as client:
        message = await client.messages.create(**body)
        Message.model_validate(message.to_dict(), strict=True)
        kinds = ["thinking"] * bool(reasoning) + ["text"] * bool(content) + ["tool_use"] * 2
        assert [block.type for block in message.content] == kinds
        assert [(b.name, b.input) for b in message.content[-2:]] == [("get_weather", OSLO), ("now", {})]
        assert message.stop_reason == "tool_use"
        async with client.messages.stream(**body) as stream:
            async for event in stream:
                if event.type in ("content_block_delta", "message_delta", "message_start"):
                    ANTHROPIC_EVENT.validate_python(event.to_dict())
            final = await stream.get_final_message()
    drop = {"id", "parsed_output", "caller", "citations"}
    assert [{k: v for k, v in b.to_dict().items() if k not in drop} for b in final.content] == [
        {k: v for k, v in b.to_dict().items() if k not in drop} for b in message.content
    ]
    assert (final.stop_reason, final.usage.output_tokens) == ("tool_use", message.usage.output_tokens)


async def test_azure(dialect: tuple[Serving, tuple[str, str]]) -> None:
    running, _ = dialect
    for mode in ("pass-through", "error"):
        answer = await running.http.post(
            "/chat/completions?api-version=2024-05-01-preview",
            json=asked(tool_choice="auto"),
            headers={"extra-parameters": mode},
        )
        calls = answer.json()["choices"][0]["message"]["tool_calls"]
        assert [c["function"]["name"] for c in calls] == ["get_weather", "now"]


async def test_a_call_that_breaks_off(tmp_path: Path) -> None:
    """The same words in every API, and in none a call that could be carried out."""
    async with over(tmp_path, BROKEN, step_seconds=0.01) as running:  # so that deltas come one by one
        answer = await running.client.chat.completions.create(**asked())
        assert answer.choices[0].message.content == BROKEN
        assert answer.choices[0].message.tool_calls is None
        assert answer.choices[0].finish_reason == "stop"
        seen = gathered(await chat_stream(running))
        assert (seen["content"], seen["finish"]) == (BROKEN, "stop")
        ((name, arguments),) = seen["calls"]
        assert name == "now"
        with pytest.raises(ValueError, match="Expecting"):
            json.loads(arguments)

        response = await running.create("x", tools=FLAT, store=False)
        assert [item.type for item in response.output] == ["message", "message"]
        text = "".join(item.content[0].text for item in response.output)
        assert text == BROKEN
        stream = events((await running.post("x", tools=FLAT, store=False, stream=True)).content)
        last = stream[-1]["response"]
        assert [i["content"][0]["text"] for i in last["output"]] == [
            item.content[0].text for item in response.output
        ]
        closed = [e["item"] for e in stream if e["type"] == "response.output_item.done"]
        assert [(i["type"], i["status"]) for i in closed] == [
            ("message", "completed"), ("function_call", "incomplete"), ("message", "completed"),
        ]  # fmt: skip

        async with anthropic.AsyncAnthropic(base_url=running.url, api_key="none") as client:
            asks: dict[str, Any] = {"model": "m", "max_tokens": 500, "tools": ANTHROPIC}
            asks |= {"messages": [{"role": "user", "content": "x"}]}
            async with client.messages.stream(**asks) as streamed:
                final = await streamed.get_final_message()
            whole = await client.messages.create(**asks)
        for message in (final, whole):
            assert {b.type for b in message.content} == {"text"}
            assert "".join(b.text for b in message.content) == BROKEN  # type: ignore[union-attr]
            assert message.stop_reason == "end_turn"


FAULTY = ("{'city': 'Oslo', days: 3,}", '{"city": "Oslo", "days": 3', '{"days": 3, "city": "Oslo}')


@pytest.mark.parametrize("name", [name for name in DIALECTS if name != "qwen3coder"])
async def test_faulty_arguments_are_repaired_in_every_api(tmp_path: Path, name: str) -> None:
    marks, text, _ = DIALECTS[name]
    for at, fault in enumerate(FAULTY):
        faulty = text.replace('{"city": "Oslo", "days": 3}', fault)
        (tmp_path / str(at)).mkdir()
        async with over(tmp_path / str(at), faulty, marks) as running:
            answer = await running.client.chat.completions.create(**asked())
            calls = [call.function for call in answer.choices[0].message.tool_calls or ()]  # type: ignore[union-attr]
            whole = [(call.name, json.loads(call.arguments)) for call in calls]
            assert whole == [("get_weather", OSLO), ("now", {})], fault
            seen = gathered(await chat_stream(running))
            assert [(called, json.loads(arguments)) for called, arguments in seen["calls"]] == whole
            assert seen["finish"] == answer.choices[0].finish_reason == "tool_calls"
            response = await running.create("x", tools=FLAT, store=False)
            made = [i for i in response.output if i.type == "function_call"]
            assert [(i.name, json.loads(i.arguments)) for i in made] == whole
            async with anthropic.AsyncAnthropic(base_url=running.url, api_key="none") as client:
                message = await client.messages.create(
                    model="m", max_tokens=500, tools=ANTHROPIC, messages=[{"role": "user", "content": "x"}]
                )
            assert [(b.name, b.input) for b in message.content if b.type == "tool_use"] == whole


async def test_choice_none_hides_the_tools_and_leaves_the_text(tmp_path: Path) -> None:
    text = DIALECTS["qwen3coder"][1]
    async with serving(
        tmp_path, store=None, script=script("<function=<parameter=</parameter>", {"match": "tools:", "text": "shown"}, pieces(text))
    ) as running:  # fmt: skip
        none = await running.client.chat.completions.create(**asked(tool_choice="none"))
        assert none.choices[0].message.content == text
        assert (none.choices[0].message.tool_calls, none.choices[0].finish_reason) == (None, "stop")
        shown = await running.client.chat.completions.create(**asked())
        assert shown.choices[0].message.content == "shown"
        flat = await running.create("x", tools=FLAT, tool_choice="none", store=False)
        assert flat.output_text == text
        assert flat.tool_choice == "none"


async def test_only_allowed_tools_are_shown(tmp_path: Path) -> None:
    echo = script(DIALECTS["llama3"][0], {"echo": True})
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "now"}}]}
    async with serving(tmp_path, store=None, script=echo) as running:
        answer = await running.client.chat.completions.create(
            **asked(tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
        )
        assert '"now"' in str(answer.choices[0].message.content)
        assert "get_weather" not in str(answer.choices[0].message.content)
        response = await running.create(
            "x", tools=FLAT, store=False,
            tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "now"}]},
        )  # fmt: skip
        assert "get_weather" not in response.output_text
        assert response.tool_choice.mode == "auto"


async def test_one_call_when_calls_are_not_parallel(tmp_path: Path) -> None:
    async with over(tmp_path, DIALECTS["hermes3"][1]) as running:
        answer = await running.client.chat.completions.create(**asked(parallel_tool_calls=False))
        assert len(answer.choices[0].message.tool_calls or ()) == 1
        assert len(gathered(await chat_stream(running, parallel_tool_calls=False))["calls"]) == 1
        response = await running.create("x", tools=FLAT, parallel_tool_calls=False, store=False)
        assert [i.type for i in response.output].count("function_call") == 1
        assert response.parallel_tool_calls is False


async def test_special_tokens_kept_means_raw_text(tmp_path: Path) -> None:
    text = DIALECTS["hermes3"][1]
    async with over(tmp_path, text) as running:
        raw = await running.client.chat.completions.create(**asked(extra_body={"skip_special_tokens": False}))
        assert raw.choices[0].message.content == text


async def test_a_prompt_that_opened_the_thinking(tmp_path: Path) -> None:
    marks = "<think></think> #}{% if enable_thinking %}<think>{% endif %}{#"
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{# " + marks + " #}"
    made = {"chat_template": template, "replies": [pieces("It is Oslo.\n</think>\n\nOslo.")]}
    async with serving(tmp_path, store=None, script=made) as running:
        on = await running.client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "x"}], reasoning_effort="low"
        )
        assert on.choices[0].message.content == "Oslo."
        assert on.choices[0].message.reasoning_content == "It is Oslo."  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("marks", "change", "param", "says"),
    [
        ("<tool_call></tool_call>", {"tools": [*TOOLS, TOOLS[0]]}, "tools", "called 'get_weather'"),
        ("<tool_call></tool_call>", {"tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice.function.name", "'no' is not one of the tools"),
        ("", {}, "tools", "does not support tools: no tool parser is known"),
    ],
)  # fmt: skip
async def test_refusals(tmp_path: Path, marks: str, change: Any, param: str, says: str) -> None:
    async with over(tmp_path, "x", marks) as running:
        answer = await running.http.post("/v3/chat/completions", json=asked(**change))
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == param
        assert says in error["message"]


async def test_a_conversation_of_calls_and_results_reaches_the_template_alike(tmp_path: Path) -> None:
    """Chat, responses and Anthropic's messages make the same prompt of the same turns."""
    marks = DIALECTS["llama3"][0]
    async with serving(tmp_path, store=None, script=script(marks, {"echo": True})) as running:
        arguments = json.dumps(OSLO)
        call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}
        chat = await running.client.chat.completions.create(
            model="m", tools=TOOLS,
            messages=[
                {"role": "user", "content": "Oslo?"},
                {"role": "assistant", "content": None, "tool_calls": [call]},  # type: ignore[list-item]
                {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            ],
        )  # fmt: skip
        response = await running.create(
            [
                {"role": "user", "content": "Oslo?"},
                {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": arguments},
                {"type": "function_call_output", "call_id": "c1", "output": "rain"},
            ],
            tools=FLAT, store=False,
        )  # fmt: skip
        said = chat.choices[0].message.content or ""
        assert "calls get_weather" in said
        assert "rain" in said
        assert response.output_text == said
        async with anthropic.AsyncAnthropic(base_url=running.url, api_key="none") as client:
            message = await client.messages.create(
                model="m", max_tokens=500, tools=ANTHROPIC[:1],
                messages=[
                    {"role": "user", "content": "Oslo?"},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "get_weather", "input": OSLO}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "rain"}]},
                ],
            )  # fmt: skip
        assert message.content[0].text.split("tools:")[0].replace(" ", "") == said.split("tools:")[0].replace(
            " ", ""
        )  # type: ignore[union-attr]


async def test_a_stored_call_is_answered_in_the_next_response(tmp_path: Path) -> None:
    replies = [{"match": "tool: rain", "echo": True}, pieces(DIALECTS["hermes3"][1])]
    made = script(DIALECTS["hermes3"][0], *replies)
    async with serving(tmp_path, store="its own", script=made) as running:
        whole = (await running.create("Oslo?", tools=FLAT)).to_dict()
        data = (await running.post("Oslo?", tools=FLAT, stream=True)).content
        for first in (whole, events(data)[-1]["response"]):
            call = next(item for item in first["output"] if item["type"] == "function_call")
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "rain"}
            second = await running.create([result], tools=FLAT, previous_response_id=first["id"])
            assert "Let me look. calls get_weather" in second.output_text
            stored = (await running.http.get(f"/v3/responses/{first['id']}")).json()
            assert stored["output"] == first["output"]
            replayed = (await running.http.get(f"/v3/responses/{first['id']}?stream=true")).content
            assert check_order(events(replayed))["output"] == first["output"]


async def test_text_between_calls_stays_there(tmp_path: Path) -> None:
    """In one delta or many, whole or streamed, where an answer has an order."""
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    text = f"One. {call} Two. {call}"
    for reply in ({"pieces": [text]}, pieces(text)):
        made = script(DIALECTS["hermes3"][0], reply)
        async with serving(tmp_path, store=None, script=made) as running:
            response = (await running.create("x", tools=FLAT, store=False)).to_dict()
            stream = events((await running.post("x", tools=FLAT, store=False, stream=True)).content)
            for output in (response["output"], check_order(stream)["output"]):
                assert [i["type"] for i in output] == ["message", "function_call"] * 2
                assert [i["content"][0]["text"].strip() for i in output[::2]] == ["One.", "Two."]
            asks: dict[str, Any] = {"model": "m", "max_tokens": 500, "tools": ANTHROPIC}
            asks |= {"messages": [{"role": "user", "content": "x"}]}
            async with anthropic.AsyncAnthropic(base_url=running.url, api_key="none") as client:
                whole = await client.messages.create(**asks)
                async with client.messages.stream(**asks) as streamed:
                    final = await streamed.get_final_message()
            for message in (whole, final):
                assert [b.type for b in message.content] == ["text", "tool_use"] * 2
                assert [b.text.strip() for b in message.content[::2]] == ["One.", "Two."]  # type: ignore[union-attr]
