"""The body of POST responses: what is honoured, reported, refused; items to messages; tools."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from ovserve.api.openai.logprobs import Pictures
from ovserve.api.openai.responses import Responses, tools
from ovserve.api.openai.responses.items import Item, listed, to_messages
from ovserve.api.openai.responses.request import DecodedResponses
from ovserve.errors import InvalidArgument, UnsupportedParameter
from ovserve.llm.chat_template import ChatTemplate
from ovserve.llm.model import ModelContext
from ovserve.llm.parsing.registry import ParserChoice
from ovserve.llm.request import GenerateRequest
from tests.rendering import probed, rendered

TEMPLATE = "{% for m in messages %}{{ m | tojson }}\n{% endfor %}"
MODEL = ModelContext(template=ChatTemplate(TEMPLATE), max_length=4096, max_tokens_limit=1000)


def decode(**fields: Any) -> DecodedResponses:
    return Responses().decode(json.dumps({"model": "m", "input": "hi"} | fields).encode())


def request(model: ModelContext = MODEL, **fields: Any) -> GenerateRequest:
    return rendered(Responses().to_request(decode(**fields), model), model)


def messages(*items: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    prompt = request(input=list(items), **fields).prompts[0]
    assert isinstance(prompt, str)
    return [json.loads(line) for line in prompt.splitlines()]


def call(name: str = "f", arguments: str = "{}", call_id: str = "c1") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


OPTIONAL = [
    "instructions", "previous_response_id", "store", "background", "max_output_tokens", "max_tool_calls",
    "metadata", "user", "safety_identifier", "prompt_cache_key", "service_tier", "truncation", "include",
    "reasoning", "text", "tools", "tool_choice", "parallel_tool_calls", "logprobs", "top_logprobs",
    "stream_options", "chat_template_kwargs", "temperature", "top_p", "stop", "seed", "stream",
    "conversation", "prompt", "response_format", "logit_bias", "n", "best_of",
]  # fmt: skip


@pytest.mark.parametrize("name", OPTIONAL)
def test_null_is_absent(name: str) -> None:
    absent: dict[str, Any] = {name: None}
    with_null, without = request(**absent), request()
    assert with_null.prompts == without.prompts
    assert name not in with_null.presentation.ignored_params or name in ("conversation", "prompt")


# ---- items


def test_a_text_is_a_user_message() -> None:
    assert json.loads(str(request(input="hello").prompts[0])) == {"role": "user", "content": "hello"}
    assert json.loads(str(request(input="").prompts[0])) == {"role": "user", "content": ""}


def test_instructions_come_first() -> None:
    got = messages({"role": "user", "content": "a"}, instructions="be brief")
    assert got == [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a"}]


def test_every_role_in_every_form() -> None:
    parts = [{"type": "input_text", "text": "x"}, {"type": "input_text", "text": "y"}]
    got = messages(
        {"role": "system", "content": "s"},
        {"type": "message", "role": "user", "content": parts},
        said("z"),
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "user", "content": "end"},
    )
    assert [(m["role"], m["content"]) for m in got] == [
        ("system", "s"), ("user", "x\ny"), ("assistant", "z"), ("assistant", "no"), ("user", "end"),
    ]  # fmt: skip


def test_calls_text_and_reasoning_of_one_turn_are_one_message() -> None:
    got = messages(
        {"role": "user", "content": "go"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        said("I look"),
        call("f", '{"a":1}', "c1"),
        call("g", "{}", "c2"),
        {"type": "function_call_output", "call_id": "c1", "output": "one"},
        {"type": "function_call_output", "call_id": "c2", "output": "two"},
        said("done"),
    )
    assert [m["role"] for m in got] == ["user", "assistant", "tool", "tool", "assistant"]
    turn = got[1]
    assert (turn["content"], turn["reasoning_content"]) == ("I look", "hm")
    assert [c["id"] for c in turn["tool_calls"]] == ["c1", "c2"]
    assert got[2]["content"] == "one"
    assert got[2]["tool_call_id"] == "c1"


def test_a_message_after_a_call_joins_its_turn_and_new_reasoning_begins_another() -> None:
    got = messages(
        call(),
        said("after"),
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}]},
        call(),
    )
    assert [m["role"] for m in got] == ["assistant", "assistant"]
    assert got[0]["content"] == "after"
    assert got[1]["reasoning_content"] == "r"


def test_reasoning_content_wins_over_its_summary() -> None:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]}
    item["content"] = [{"type": "reasoning_text", "text": "long"}]
    assert messages(item, said("x"))[0]["reasoning_content"] == "long"
    assert messages(item, {"role": "user", "content": "x"})[0] == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "long",
    }


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("plain", "plain"),
        ([{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}], "a\nb"),
        ({"degrees": 21.5}, '{"degrees":21.5}'),
        ([1, 2], "[1,2]"),
        (7, "7"),
        (None, ""),
    ],
)
def test_what_a_tool_gave_back(output: Any, text: str) -> None:
    got = messages(call(), {"type": "function_call_output", "call_id": "c1", "output": output})
    assert got[-1] == {"role": "tool", "content": text, "tool_call_id": "c1"}


SHELL = {"commands": ["ls -1", "git status"], "timeout_ms": 5000}
RAN = [{"stdout": "a.py\n", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]
EXEC = {"type": "exec", "command": ["bash", "-lc", "ls"], "working_directory": "/src"}
PATCH = {"type": "update_file", "path": "a.py", "diff": "@@\n-x\n+y\n"}
FOUND = [{"type": "function", "name": "grep", "parameters": {"type": "object"}}]


@pytest.mark.parametrize(
    ("called", "result", "name", "arguments", "text"),
    [
        ({"type": "shell_call", "call_id": "c1", "action": SHELL, "status": "completed"},
         {"type": "shell_call_output", "call_id": "c1", "output": RAN}, "shell", SHELL, json.dumps(RAN)),
        ({"type": "local_shell_call", "id": "c1", "call_id": None, "action": EXEC, "status": "completed"},
         {"type": "local_shell_call_output", "id": "c1", "output": "a.py"}, "local_shell", EXEC, "a.py"),
        ({"type": "local_shell_call", "call_id": "c1", "action": EXEC},
         {"type": "function_call_output", "call_id": "c1", "output": "a.py"}, "local_shell", EXEC, "a.py"),
        ({"type": "apply_patch_call", "call_id": "c1", "operation": PATCH, "status": "completed"},
         {"type": "apply_patch_call_output", "call_id": "c1", "status": "completed"},
         "apply_patch", PATCH, "completed"),
        ({"type": "apply_patch_call", "call_id": "c1", "operation": PATCH, "status": "completed"},
         {"type": "apply_patch_call_output", "call_id": "c1", "status": "failed", "output": "no such file"},
         "apply_patch", PATCH, "failed: no such file"),
        ({"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch"},
         {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done"},
         "apply_patch", {"input": "*** Begin Patch"}, "Done"),
        ({"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {"query": "grep"}},
         {"type": "tool_search_output", "call_id": "c1", "execution": "client", "tools": FOUND},
         "tool_search", {"query": "grep"}, json.dumps(FOUND)),
    ],
)  # fmt: skip
def test_what_an_agent_ran_is_shown_as_a_call_and_its_result(
    called: Any, result: Any, name: str, arguments: Any, text: str
) -> None:
    items = [
        {"role": "user", "content": "go"},
        {"type": "reasoning", "summary": []},
        said("I look."),
        called,
        result,
    ]
    made = request(input=items)
    user, turn, answer = [json.loads(line) for line in str(made.prompts[0]).splitlines()]
    assert not [entry for entry in made.presentation.ignored_params if ".type=" in entry]
    (one,) = turn["tool_calls"]
    assert (user["content"], turn["content"], one["id"], one["function"]["name"]) == (
        "go",
        "I look.",
        "c1",
        name,
    )
    assert json.loads(one["function"]["arguments"]) == arguments
    assert (answer["role"], answer["tool_call_id"]) == ("tool", "c1")
    assert answer["content"] == text or json.loads(answer["content"]) == json.loads(text)
    stored = msgspec.convert(listed(decode(input=items).items), list[Item])
    assert to_messages(stored, None, Pictures()) == to_messages(decode(input=items).items, None, Pictures())


@pytest.mark.parametrize("more", [{}, {"action": None}, {"action": SHELL, "call_id": 5}])
def test_a_call_of_an_agent_in_another_form_is_dropped_and_reported(more: dict[str, Any]) -> None:
    made = request(input=[{"type": "shell_call", **more}, {"role": "user", "content": "x"}])
    assert "input[0].type=shell_call" in made.presentation.ignored_params
    assert json.loads(str(made.prompts[0])) == {"role": "user", "content": "x"}


def test_items_of_tools_at_openai_are_dropped_and_reported() -> None:
    made = request(input=[{"type": "web_search_call", "id": "ws"}, {"role": "user", "content": "x"}])
    assert "input[0].type=web_search_call" in made.presentation.ignored_params
    assert json.loads(str(made.prompts[0])) == {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([], "input"),
        ([{"type": "web_search_call"}], "input"),
        ([{"role": "narrator", "content": "x"}], "input[0].role"),
        ([{"role": "user"}], "input[0].content"),
        ([{"type": "message", "content": "x"}], "input[0].role"),
        ([{"content": "x"}], "input[0].type"),
        ([{"type": "mesage", "role": "user", "content": "x"}], "input[0].type"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "input[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        ([{"role": "user", "content": 5}], "input[0].content"),
        ([{"role": "user", "content": "x"}, {"type": "function_call", "call_id": "c", "arguments": "{}"}], "input[1].name"),
        ([{"type": "function_call", "name": "f", "arguments": "{}"}], "input[0].call_id"),
        ([{"type": "function_call", "call_id": "c", "name": "f"}], "input[0].arguments"),
        ([{"type": "function_call", "call_id": "c", "name": "f", "arguments": [1]}], "input[0].arguments"),
        ([{"type": "function_call_output", "output": "x"}], "input[0].call_id"),
        ([{"type": "item_reference", "id": "msg_1"}], "input[0].id"),
        ([{"id": "msg_1"}], "input[0].id"),
        ([{"id": "msg_1", "content": "x"}], "input[0].type"),
        ("nothing else", None),
    ],
)  # fmt: skip
def test_refused_items_name_their_index(items: Any, param: str | None) -> None:
    if param is None:
        request(input=items)
        return
    with pytest.raises(InvalidArgument) as caught:
        request(input=items)
    assert caught.value.param == param


def test_listed_items_have_ids_and_give_the_same_prompt_again() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "q"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "r"}]},
        call(),
        {"type": "function_call_output", "call_id": "c1", "output": {"x": 1}},
        said("a"),
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
    ]
    listed = json.loads(decode(input=items).stored_input.json)
    assert all(item["id"] for item in listed)
    assert len({item["id"] for item in listed}) == len(items)
    assert messages(*listed) == messages(*items)
    assert json.loads(decode(input=listed).stored_input.json) == listed


# ---- fields


def test_limits_are_inclusive_and_named() -> None:
    assert request(max_output_tokens=1000).sampling.max_tokens == 1000
    with pytest.raises(InvalidArgument, match="1001 is above max_tokens_limit 1000") as caught:
        request(max_output_tokens=1001)
    assert caught.value.param == "max_output_tokens"
    for bad in (0, -1, 1.5, "5"):
        with pytest.raises(InvalidArgument) as caught:
            request(max_output_tokens=bad)
        assert caught.value.param == "max_output_tokens"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
    ],
)
def test_known_but_unsupported(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        decode(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True, "store": False}, "background"),
        ({"truncation": "middle"}, "truncation"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"store": "yes"}, "store"),
        ({"stream": 1}, "stream"),
        ({"include": "x"}, "include"),
        ({"input": 5}, "input"),
        ({"temperature": 3}, "temperature"),
        ({"best_of": 2, "stream": True}, "best_of"),
    ],
)
def test_refused_values(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode(**fields)
    assert caught.value.param == param


def test_what_has_no_effect_is_reported() -> None:
    made = request(
        include=["reasoning.encrypted_content", "message.output_text.logprobs"],
        prompt_cache_key="k",
        service_tier="flex",
        text={"format": {"type": "text"}, "verbosity": "low"},
        reasoning={"effort": "high"},
        stream_options={"include_obfuscation": True, "include_usage": True},
        client_metadata={"a": 1},
        tools=[{"type": "web_search"}, {"type": "namespace", "name": "x", "tools": []}],
        tool_choice={"type": "web_search"},
    )
    assert set(made.presentation.ignored_params) == {
        "include[0]=reasoning.encrypted_content",
        "prompt_cache_key",
        "service_tier=flex",
        "text.verbosity=low",
        "reasoning.effort",
        "stream_options.include_obfuscation",
        "client_metadata",
        "tools[0].type=web_search",
        "tools[1].type=namespace",
        "tool_choice.type=web_search",
    }
    assert made.sampling.logprobs


def test_effort_turns_thinking_on_unless_the_client_set_it() -> None:
    model = ModelContext(template=ChatTemplate("{{ enable_thinking }} {{ reasoning_effort }}"))
    assert request(model, reasoning={"effort": "low"}).prompts[0] == "True low"
    assert request(model, reasoning={"effort": "none"}).prompts[0] == "False none"
    chosen = request(model, reasoning={"effort": "low"}, chat_template_kwargs={"enable_thinking": False})
    assert chosen.prompts[0] == "False low"
    assert chosen.presentation.ignored_params == ()
    ignored = request(model, chat_template_kwargs={"thinking": False, "reasoning_effort": "low"})
    assert ignored.presentation.ignored_params == ("chat_template_kwargs.thinking",)
    many = request(
        model, chat_template_kwargs={f"thinking{i}": 1 for i in range(100)} | {"enable_thinking": 1}
    )
    assert len(many.presentation.ignored_params) == 100


# ---- tools

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
NESTED = {"type": "function", "function": {"name": "g", "description": "d"}}


EXEC: dict[str, Any] = {"type": "custom", "name": "exec", "description": "Run JavaScript"}
# As of Codex 0.144 and later, which sends no `tools`.
ADDITIONAL = {
    "type": "additional_tools",
    "role": "developer",
    "tools": [
        {"type": "namespace", "name": "functions", "tools": [EXEC, FUNCTION]},
        {"type": "namespace", "name": "mcp__x", "tools": [FUNCTION]},
        {"type": "web_search"},
    ],
}


def test_tools_of_an_input_item_can_be_called() -> None:
    decoded = decode(input=[ADDITIONAL, {"role": "user", "content": "x"}], tool_choice="required")
    policy = decoded.tools.policy
    assert policy is not None
    assert policy.names == ("exec", "f", "mcp__x__f")
    assert decoded.tools.names["exec"] == ("exec", "functions", "custom_tool_call", "", False)
    assert decoded.tools.names["mcp__x__f"][:2] == ("f", "mcp__x")
    assert decoded.tools.listed == ()  # those of the request's own field
    assert decoded.ignored == ("input[0].tools[2].type=web_search",)
    item = json.loads(decoded.stored_input.json)[0]
    assert item == ADDITIONAL | {"id": item["id"]}


def test_a_tool_of_an_input_item_replaces_one_of_its_name() -> None:
    newer = {"type": "function", "name": "exec", "description": "new"}
    items = [ADDITIONAL, {"role": "user", "content": "x"}, {"type": "additional_tools", "tools": [newer]}]
    decoded = decode(input=items, tools=[FUNCTION | {"description": "old"}, NESTED | {"name": "g"}])
    policy = decoded.tools.policy
    assert policy is not None
    assert [t["function"]["name"] for t in policy.tools] == ["g", "exec", "f", "mcp__x__f"]
    assert policy.tools[1]["function"]["description"] == "new"
    assert "exec" not in decoded.tools.names  # no longer a custom tool


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({}, "input[0].tools"),
        ({"tools": 5}, "input[0].tools"),
        ({"tools": [{"type": "function"}]}, "input[0].tools[0].name"),
        ({"tools": [{}]}, "input[0].tools[0].type"),
    ],
)
def test_wrong_tools_of_an_input_item_are_named(item: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode(input=[{"type": "additional_tools", "role": "developer", **item}])
    assert caught.value.param == param


def test_tools_reach_the_template() -> None:
    source = "{{ messages[0].content }}{% if tools %}{{ tools | tojson }}{% endif %}"
    model = ModelContext(template=probed(source), parsers=ParserChoice("hermes3"))
    made = request(model, tools=[FUNCTION, {"type": "web_search"}])
    shown = {"name": "f", "parameters": {"type": "object"}}
    assert json.loads(str(made.prompts[0])[2:]) == [{"type": "function", "function": shown}]
    assert made.tools is not None
    assert made.tools.strict == {"f"}
    assert request(model, tools=[FUNCTION], tool_choice="none").prompts[0] == "hi"


def test_a_template_that_refuses_names_the_input() -> None:
    model = ModelContext(
        template=ChatTemplate(
            "{{ messages[0].content }}{% if messages[1] %}{{ raise_exception('one only') }}{% endif %}"
        )
    )
    with pytest.raises(InvalidArgument, match="one only") as caught:
        request(model, instructions="be kind")
    assert caught.value.param == "input"


def test_tools_in_both_forms_are_one_list() -> None:
    clean = tools.clean_tools([FUNCTION, {"type": "mcp"}, NESTED], None)
    assert [f["name"] for f in clean.listed] == ["f", "g"]
    assert clean.listed[0] == FUNCTION | {"description": None}
    assert clean.policy is not None
    assert clean.policy.prompt_tools[1] == {"type": "function", "function": {"name": "g", "description": "d"}}
    assert clean.ignored == ("tools[1].type=mcp",)
    for choice in ({"type": "function", "name": "g"}, {"type": "function", "function": {"name": "g"}}):
        chosen = tools.clean_tools([FUNCTION, NESTED], choice)
        assert chosen.choice == {"type": "function", "name": "g"}
        assert chosen.policy is not None
        assert (chosen.policy.choice, chosen.policy.names) == ("required", ("g",))


@pytest.mark.parametrize(
    ("given", "choice", "names", "ignored"),
    [
        ([{"type": "mcp"}], "required", None, ("tools[0].type=mcp", "tool_choice=required")),
        ([FUNCTION], {"type": "mcp"}, ("f",), ("tool_choice.type=mcp",)),
        (
            [FUNCTION, {"type": "mcp"}],
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}, {"type": "mcp"}]},
            ("f",),
            ("tools[1].type=mcp", "tool_choice.tools"),
        ),
        (
            [FUNCTION, {"type": "mcp"}],
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]},
            (),
            ("tools[1].type=mcp", "tool_choice.tools"),
        ),
    ],
)  # fmt: skip
def test_a_choice_of_tools_that_run_at_openai(given: Any, choice: Any, names: Any, ignored: Any) -> None:
    clean = tools.clean_tools(given, choice)
    assert (clean.policy.names if clean.policy else None) == names
    assert clean.ignored == ignored


@pytest.mark.parametrize(
    ("given", "choice", "param"),
    [
        ([{"name": "f"}], None, "tools[0].type"),
        ([{"type": "function"}], None, "tools[0].name"),
        ([FUNCTION, {"type": "function", "name": "g", "parameters": []}], None, "tools[1].parameters"),
        ([{"type": "function", "function": "f"}], None, "tools[0].function"),
        ([{"type": "function", "name": "f", "strict": "yes"}], None, "tools[0].strict"),
        ([FUNCTION], "sometimes", "tool_choice"),
        ([], "required", "tool_choice"),
        ([FUNCTION], {"type": "function", "name": "h"}, "tool_choice.name"),
    ],
)
def test_refused_tools(given: Any, choice: Any, param: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        tools.clean_tools(given, choice)
    assert caught.value.param == param
