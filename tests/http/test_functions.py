"""`functions` and `function_call`, OpenAI's form from before tools, with its own client; whole and streamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from ovserve.api.openai import ENDPOINTS
from ovserve.errors import InvalidArgument
from ovserve.llm.model import ModelContext
from ovserve.llm.parsing.registry import ParserChoice
from tests.http.test_tools import DIALECTS, OSLO, TEMPLATE, TOOLS, WEATHER, over
from tests.rendering import probed, rendered

FUNCTIONS: list[Any] = [t["function"] for t in TOOLS]
USER = {"role": "user", "content": "Oslo?"}
MODEL = ModelContext(template=probed(TEMPLATE % "<tool_call></tool_call>"), parsers=ParserChoice("hermes3"))
CHAT = ENDPOINTS["chat/completions"]


def decoded(**fields: Any) -> Any:
    return CHAT.decode(json.dumps({"model": "m", "messages": [USER], **fields}).encode())


@pytest.mark.parametrize("dialect", ["hermes3", "llama3", "mistral"])
async def test_the_answer_is_in_the_form_of_the_request(tmp_path: Path, dialect: str) -> None:
    marks, text, (content, _) = DIALECTS[dialect]
    async with over(tmp_path, text, marks) as running:
        create = running.client.chat.completions.create
        asked: Any = {"model": "m", "messages": [USER], "functions": FUNCTIONS}
        answer = await create(**asked)
        ChatCompletion.model_validate(answer.to_dict(), strict=True)
        (choice,) = answer.choices
        assert choice.finish_reason == "function_call"
        assert choice.message.tool_calls is None
        assert choice.message.content == (content or None)
        assert choice.message.function_call.name == "get_weather"
        assert json.loads(choice.message.function_call.arguments) == OSLO

        name, arguments, said, finish = "", "", "", []
        async for chunk in await create(**asked, stream=True):
            ChatCompletionChunk.model_validate(chunk.to_dict(), strict=True)
            (part,) = chunk.choices
            assert part.delta.tool_calls is None
            if call := part.delta.function_call:
                name += call.name or ""
                arguments += call.arguments or ""
            said += part.delta.content or ""
            finish += [part.finish_reason] if part.finish_reason else []
        assert (name, arguments) == ("get_weather", choice.message.function_call.arguments)
        assert (said, finish) == (content, ["function_call"])


async def test_an_answer_without_a_call_and_one_with_tools(tmp_path: Path) -> None:
    marks, text, _ = DIALECTS["hermes3"]
    async with over(tmp_path / "a", "It is cold.", marks) as running:
        asked: Any = {"model": "m", "messages": [USER], "functions": FUNCTIONS}
        (choice,) = (await running.client.chat.completions.create(**asked)).choices
        assert (choice.message.content, choice.finish_reason) == ("It is cold.", "stop")
        assert choice.message.function_call is None
    async with over(tmp_path / "b", text, marks) as running:
        asked = {"model": "m", "messages": [USER], "tools": TOOLS}
        (choice,) = (await running.client.chat.completions.create(**asked)).choices
        assert choice.message.function_call is None
        assert len(choice.message.tool_calls or ()) == 2


async def test_a_call_that_broke_off_is_not_sent(tmp_path: Path) -> None:
    text = '<tool_call>\n{"name": "now", "arguments": {"a": \n</tool_call>\nno'
    async with over(tmp_path, text, DIALECTS["hermes3"][0]) as running:
        asked: Any = {"model": "m", "messages": [USER], "functions": FUNCTIONS, "stream": True}
        chunks = [c async for c in await running.client.chat.completions.create(**asked)]
        assert all(c.choices[0].delta.function_call is None for c in chunks)
        assert chunks[-1].choices[0].finish_reason == "stop"


def test_the_prompt_is_that_of_tools() -> None:
    call = {"name": "get_weather", "arguments": json.dumps(OSLO)}
    old = [
        USER,
        {"role": "assistant", "content": None, "function_call": call},
        {"role": "function", "name": "get_weather", "content": "cold"},
    ]
    new = [
        USER,
        {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "call_1", "name": "get_weather", "content": "cold"},
    ]
    olds = decoded(messages=old, functions=FUNCTIONS)
    news = decoded(messages=new, tools=TOOLS, parallel_tool_calls=False)
    assert olds.tools == news.tools
    prompts = [rendered(CHAT.to_request(d, MODEL), MODEL).prompts for d in (olds, news)]
    assert prompts[0] == prompts[1]
    assert "calls get_weather" in str(prompts[0])
    assert "tool: cold" in str(prompts[0])


@pytest.mark.parametrize(
    ("choice", "same"),
    [
        (None, None),
        ("auto", "auto"),
        ("none", "none"),
        ({"name": "now"}, {"type": "function", "function": {"name": "now"}}),
    ],
)
def test_choices(choice: Any, same: Any) -> None:
    old = decoded(functions=FUNCTIONS, function_call=choice).tools
    assert old == decoded(tools=TOOLS, tool_choice=same, parallel_tool_calls=False).tools


@pytest.mark.parametrize(
    "fields", [{"functions": []}, {"functions": None}, {"function_call": "auto"}, {"function_call": "none"}]
)
def test_nothing_is_asked(fields: dict[str, Any]) -> None:
    assert decoded(**fields).tools is None


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"functions": [{}]}, "functions[0].name", "got None"),
        ({"functions": [{"name": "f", "parameters": 5}]}, "functions[0].parameters", "got 5"),
        ({"functions": [{"name": "f"}] * 2}, "functions", "functions: 2 functions are called 'f'"),
        ({"functions": [5]}, "functions[0]", "got 5"),
        ({"functions": FUNCTIONS, "tools": TOOLS}, "tools", "without functions"),
        ({"functions": FUNCTIONS, "tool_choice": "auto"}, "tool_choice", "without functions"),
        ({"functions": FUNCTIONS, "function_call": {"name": "g"}}, "function_call.name", "'g' is not one of the functions: get_weather, now"),
        ({"functions": FUNCTIONS, "function_call": {}}, "function_call.name", "None"),
        ({"functions": FUNCTIONS, "function_call": "any"}, "function_call", "or an object, got 'any'"),
        ({"function_call": {"name": "g"}}, "function_call.name", "functions: none"),
        ({"messages": [{"role": "function", "content": "a"}]}, "messages[0].name", "required"),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0].function_call.name", "required"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}, "tool_calls": [{"function": {"name": "f"}}]}]}, "messages[0].function_call", "without tool_calls"),
    ],
)  # fmt: skip
def test_refusals(fields: dict[str, Any], param: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decoded(**fields)
    assert caught.value.param == param
    assert says in str(caught.value)


def test_schemas_of_functions_are_enforced() -> None:
    """As those of tools: a named function is forced, with its schema."""
    body = decoded(
        functions=[{"name": "get_weather", "parameters": WEATHER}], function_call={"name": "get_weather"}
    )
    assert (body.tools.choice, body.tools.names, body.tools.parallel) == ("required", ("get_weather",), False)
    assert body.tools.schemas == {"get_weather": WEATHER}
