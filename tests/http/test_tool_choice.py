"""tool_choice over HTTP, enforced: the default model, which was never taught tools, calls them when it must."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.conftest import Server

ASK: Any = [{"role": "user", "content": "What is the weather in Oslo?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
        },
    },
}  # fmt: skip
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"tools": [CLOCK, WEATHER], "temperature": 0, "max_tokens": 150, **fields}
    return client.chat.completions.create(model="smollm2", messages=ASK, **fields)


NAMED = {"type": "function", "function": {"name": "weather"}}


def test_a_named_function_is_called(client: openai.OpenAI) -> None:
    [choice] = ask(client, tool_choice=NAMED).choices
    [call] = choice.message.tool_calls
    assert (choice.finish_reason, call.function.name) == ("tool_calls", "weather")
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in ("Oslo", "Rome")
    assert 1 <= arguments["days"] <= 9
    assert not choice.message.content


def test_streamed_it_is_the_same(client: openai.OpenAI) -> None:
    whole = ask(client, tool_choice=NAMED).choices[0].message.tool_calls[0].function
    name = arguments = ""
    for chunk in ask(client, tool_choice=NAMED, stream=True):
        for piece in chunk.choices[0].delta.tool_calls or [] if chunk.choices else []:
            name += piece.function.name or ""
            arguments += piece.function.arguments or ""
    assert (name, arguments) == (whole.name, whole.arguments)


def test_required_calls_one_of_them(client: openai.OpenAI) -> None:
    for parallel in (True, False):
        [choice] = ask(client, tool_choice="required", parallel_tool_calls=parallel).choices
        calls = choice.message.tool_calls
        assert calls
        assert {call.function.name for call in calls} <= {"weather", "clock"}
        assert parallel or len(calls) == 1


def test_in_responses_too(client: openai.OpenAI) -> None:
    flat = {"type": "function", **WEATHER["function"]}
    response = client.responses.create(
        model="smollm2",
        input="What is the weather in Oslo?",
        temperature=0,
        tools=[flat],
        tool_choice={"type": "function", "name": "weather"},
    )
    [item] = response.output
    assert item.type == "function_call"
    assert json.loads(item.arguments)["city"] in ("Oslo", "Rome")


def test_a_schema_that_does_not_compile_is_400(client: openai.OpenAI) -> None:
    bad = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "banana"}}}}}  # fmt: skip
    with pytest.raises(openai.BadRequestError, match="banana"):
        ask(client, tools=[bad], tool_choice="required")
    assert ask(client, tools=[bad]).choices, "nobody holds it to the schema in auto"


def test_text_or_a_call_beside_a_format(client: openai.OpenAI) -> None:
    format_ = {"type": "regex", "pattern": "[0-9]{3}"}
    [choice] = ask(client, response_format=format_).choices
    assert choice.message.tool_calls or re.fullmatch("[0-9]{3}", choice.message.content)
