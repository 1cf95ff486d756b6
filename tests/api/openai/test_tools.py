"""tools, tool_choice and parallel_tool_calls: what each spelling means, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ovserve.api.anthropic.messages import Messages
from ovserve.api.openai.chat import ChatCompletions
from ovserve.api.openai.responses.endpoint import Responses
from ovserve.api.openai.responses.tools import clean_tools
from ovserve.api.openai.tools import check_model, function_tool, narrow_tools, tool_policy
from ovserve.errors import InvalidArgument, UnsupportedParameter
from ovserve.llm.arrangement import Expectations
from ovserve.llm.chat_template import ChatTemplate
from ovserve.llm.model import ModelContext
from ovserve.llm.parsing.registry import ParserChoice
from ovserve.llm.request import ToolPolicy

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
F = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
G = {"type": "function", "name": "g", "description": "flat, as in responses"}
READS_TOOLS = ChatTemplate("x", expects=Expectations(tools=True))


def policy(choice: Any = None, parallel: bool | None = None, tools: Any = (F, G)) -> ToolPolicy | None:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    body |= {"tools": tools, "tool_choice": choice, "parallel_tool_calls": parallel}
    return ChatCompletions().decode(json.dumps(body).encode()).tools


def listed(*names: str, mode: str = "auto") -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize(
    ("choice", "parallel", "expected"),
    [
        (None, None, ("auto", ("f", "g"), True)),
        ("auto", False, ("auto", ("f", "g"), False)),
        ("none", None, ("none", (), True)),
        ("required", None, ("required", ("f", "g"), True)),
        ({"type": "function", "function": {"name": "g"}}, True, ("required", ("g",), False)),
        ({"type": "function", "name": "g"}, None, ("required", ("g",), False)),
        ({"function": {"name": "f"}}, None, ("required", ("f",), False)),
        (listed("g"), None, ("auto", ("g",), True)),
        (listed("g", "f", mode="required"), False, ("required", ("f", "g"), False)),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"name": "f"}]}, None, ("required", ("f",), True)),
    ],
)  # fmt: skip
def test_every_spelling_of_a_choice(choice: Any, parallel: bool | None, expected: Any) -> None:
    made = policy(choice, parallel)
    assert made is not None
    assert (made.choice, made.names, made.parallel) == expected
    assert [t["function"]["name"] for t in made.tools] == ["f", "g"]


def test_a_schema_whose_type_is_null_is_one_without() -> None:
    function = {"name": "f", "parameters": {"type": None, "properties": {}}}
    made = policy("required", tools=[{"type": "function", "function": function}])
    assert made is not None
    assert made.tools[0]["function"] == {"name": "f", "parameters": {"properties": {}}}


@pytest.mark.parametrize("type_", ["mcp_toolset", "web_search_20260209"])
def test_tools_of_the_vendor_need_no_name(type_: str) -> None:
    body: dict[str, Any] = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}
    own = {"name": "f", "input_schema": SCHEMA}
    body["tools"] = [{"type": type_, "mcp_server_name": "s"}, own]
    decoded = Messages().decode(json.dumps(body).encode())
    assert decoded.tools.policy is not None
    assert decoded.tools.policy.names == ("f",)
    assert f"tools.{type_}" in decoded.ignored
    body["tools"] = [{"input_schema": SCHEMA}]
    with pytest.raises(InvalidArgument, match=r"tools\[0\].name: required"):
        Messages().decode(json.dumps(body).encode())


@pytest.mark.parametrize("choice", [None, "auto", "none"])
@pytest.mark.parametrize("tools", [None, []])
def test_no_tools_no_policy(choice: Any, tools: Any) -> None:
    assert policy(choice, tools=tools) is None


@pytest.mark.parametrize(
    ("tools", "param", "says"),
    [
        ([{"type": "web_search"}], "tools[0].type", "'web_search'"),
        ([F, {"name": "x"}], "tools[1].type", "None"),
        ([{"type": "function"}], "tools[0].name", "None"),
        ([{"type": "function", "function": 1}], "tools[0].function", "got 1"),
        ([{"type": "function", "function": {"name": ""}}], "tools[0].function.name", "''"),
        ([{"type": "function", "name": "two words"}], "tools[0].name", "'two words'"),
        ([{"type": "function", "name": 'a"b'}], "tools[0].name", "letters"),
        ([{"type": "function", "name": "a" * 129}], "tools[0].name", "128"),
        ([{"type": "function", "name": "f", "parameters": []}], "tools[0].parameters", "[]"),
        ([{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}], "tools[0].function.parameters.type", "'array'"),
        ([{"type": "function", "name": "f", "parameters": {"type": ["array", "null"]}}], "tools[0].parameters.type", "'array'"),
        ([{"type": "function", "name": "f", "description": 1}], "tools[0].description", "got 1"),
        ([{"type": "function", "name": "f", "strict": "yes"}], "tools[0].strict", "'yes'"),
        ([F, G, F], "tools", "2 functions are called 'f'"),
        ([1], "tools[0]", "got 1"),
        ("f", "tools", "expected `array"),
    ],
)  # fmt: skip
def test_malformed_tools(tools: Any, param: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        policy(tools=tools)
    assert caught.value.param == param
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("written", "read"),
    [("object", "object"), (["object"], "object"), (["null", "object"], "object"), ("", None), (None, None)],
)
def test_arguments_are_an_object_alone(written: Any, read: str | None) -> None:
    given = policy(tools=[{"type": "function", "name": "f", "parameters": SCHEMA | {"type": written}}])
    assert given is not None
    assert given.schemas["f"].get("type") == read
    assert given.schemas["f"]["properties"] == SCHEMA["properties"]


@pytest.mark.parametrize(
    ("choice", "param", "says"),
    [
        ("any", "tool_choice", "'any'"),
        (5, "tool_choice", "got 5"),
        ({"type": "mcp", "name": "f"}, "tool_choice.type", "'mcp'"),
        ({"type": "function", "function": {"name": "h"}}, "tool_choice.function.name", "'h' is not one of the tools: f, g"),
        ({"type": "function", "name": None}, "tool_choice.name", "None"),
        ({"type": "function"}, "tool_choice.name", "None"),
        (listed("h"), "tool_choice.allowed_tools.tools[0].function.name", "'h'"),
        (listed(), "tool_choice.allowed_tools.tools", "non-empty"),
        (listed("f", mode="none"), "tool_choice.allowed_tools.mode", "'none'"),
        ({"type": "allowed_tools", "allowed_tools": 1}, "tool_choice.allowed_tools", "got 1"),
        ({"type": "allowed_tools"}, "tool_choice.tools", "None"),
    ],
)  # fmt: skip
def test_malformed_choices(choice: Any, param: str, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        policy(choice)
    assert caught.value.param == param
    assert says in str(caught.value)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "f"}, listed("f")])
def test_a_choice_without_tools(choice: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        policy(choice, tools=None)
    assert (caught.value.param or "").startswith("tool_choice")


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (ModelContext(template=ChatTemplate("x")), "no place for tools"),
        (ModelContext(template=READS_TOOLS), "no tool parser is known"),
        (ModelContext(template=READS_TOOLS, parsers=ParserChoice("hermes3", None, "template")), None),
        (ModelContext(template=READS_TOOLS, parsers=ParserChoice(None, None, "off")), None),
    ],
)
def test_a_model_that_cannot_be_given_tools(model: ModelContext, why: str | None) -> None:
    tools = [function_tool(F, "tools[0]")]
    check_model(None, model)
    check_model(tool_policy(tools, "none", None), model)
    auto = tool_policy(tools, None, None)
    if why is None:
        check_model(auto, model)
        assert narrow_tools(model) == {}
        return
    with pytest.raises(UnsupportedParameter, match=why) as caught:
        check_model(auto, model)
    assert caught.value.param == "tools"
    assert {c.status for c in narrow_tools(model).values()} == {"rejected"}


@pytest.mark.parametrize("strict", [True, False])
def test_formats_without_a_meaning_are_reported_of_functions_that_are_held(strict: bool) -> None:
    """In every dialect, as of an answer's format; not of a function whose arguments are free."""
    schema = {
        "type": "object",
        "properties": {"c": {"type": "string", "format": "colour"}},
        "required": ["c"],
        "additionalProperties": False,
    }
    messages = [{"role": "user", "content": "hi"}]
    choice = "auto" if strict else "required"
    flat = {"type": "function", "name": "f", "parameters": schema, "strict": strict}
    name = "tools:f:format: colour"
    body = {"model": "m", "messages": messages, "tools": [flat], "tool_choice": choice}
    assert name in ChatCompletions().decode(json.dumps(body).encode()).ignored
    assert name in clean_tools([flat], choice).ignored
    tool = {"name": "f", "input_schema": schema, "strict": strict}
    anthropic = {"model": "m", "max_tokens": 5, "messages": messages, "tools": [tool]}
    anthropic["tool_choice"] = {"type": "auto" if strict else "any"}
    assert name in Messages().decode(json.dumps(anthropic).encode()).ignored
    free = {**body, "tools": [{**flat, "strict": False}], "tool_choice": "auto"}
    assert name not in ChatCompletions().decode(json.dumps(free).encode()).ignored


@pytest.mark.parametrize(
    ("more", "lost"),
    [
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, ["anyOf"]),
        ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, ["oneOf"]),
        ({"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"minProperties": 1}}}, ["minProperties"]),
        (
            {
                "allOf": [{"$ref": "#/$defs/x"}],
                "$defs": {"x": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}},
            },
            ["anyOf"],
        ),
        ({"minProperties": 1, "maxProperties": 1}, ["minProperties", "maxProperties"]),
        ({"dependentRequired": {"a": ["b"]}}, ["dependentRequired"]),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, ["if"]),
        ({"enum": [{"a": True}]}, ["enum"]),
        ({"minProperties": 0, "maxProperties": 2}, []),
        ({"not": {"required": ["a"]}}, []),
        ({}, []),
    ],
)
def test_what_a_dialect_cannot_hold_of_required_functions_is_reported(
    more: dict[str, Any], lost: list[str], subtests: pytest.Subtests
) -> None:
    """By those that write each parameter by itself; the others hold it."""
    boolean = {"type": "boolean"}
    schema = {
        "type": "object",
        "properties": {"a": boolean, "b": boolean},
        "additionalProperties": False,
    } | more
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
    flat = {"type": "function", "name": "f", "parameters": schema}
    bodies: list[tuple[Any, dict[str, Any]]] = [
        (ChatCompletions(), {**chat, "tools": [flat], "tool_choice": "required"}),
        (Responses(), {"model": "m", "input": "hi", "tools": [flat], "tool_choice": "required"}),
        (
            Messages(),
            {**chat, "tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "any"}},
        ),
    ]
    for dialect in ("hermes3", "qwen3coder", "glm45", "pythonic", "gemma4"):
        model = ModelContext(template=READS_TOOLS, parsers=ParserChoice(dialect, None, "graph"))
        expected = [f"tools:f:{key}" for key in lost] if dialect != "hermes3" else []
        for endpoint, body in bodies:
            with subtests.test(f"{dialect} {endpoint.name}"):
                decoded = endpoint.decode(json.dumps(body).encode())
                assert sorted(endpoint.to_request(decoded, model).presentation.ignored_params) == sorted(
                    expected
                )
                body = {**body, "tool_choice": {"type": "auto"} if endpoint.name == "messages" else "auto"}
                decoded = endpoint.decode(json.dumps(body).encode())
                assert not endpoint.to_request(decoded, model).presentation.ignored_params
