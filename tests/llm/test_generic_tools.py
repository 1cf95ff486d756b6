"""Tools as text, for chat templates that have no place for them (ovserve.llm.chat_template)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ovserve.errors import InvalidArgument
from ovserve.llm.chat_template import GENERIC_PARSER, ChatTemplate, describe_tools
from tests.llm.parsing.cuts import result
from tests.rendering import probed, render

PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
TOOL = {"type": "function", "function": {"name": "wetter", "description": "für <Orte>", "parameters": {}}}
CALL = {"id": "c1", "type": "function", "function": {"name": 'we"tter', "arguments": '{"ort": "Köln"}'}}
HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL, CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "12 C"},
    {"role": "tool", "tool_call_id": "c1", "content": "sun"},
]


def test_tools_stand_in_the_system_message_as_json() -> None:
    first, *rest = describe_tools(HISTORY, [TOOL])
    assert first["content"].startswith("Be brief.\n\n# Tools")
    lines = first["content"].split("<tools>\n")[1].split("\n</tools>")[0].split("\n")
    assert [json.loads(line) for line in lines] == [TOOL]
    assert "für <Orte>" in first["content"]
    assert [m["role"] for m in rest] == ["user", "assistant", "user"]
    assert describe_tools(HISTORY[1:], [TOOL])[0]["role"] == "system"
    assert HISTORY[0]["content"] == "Be brief.", "the original is left alone"


def test_a_call_of_the_history_is_what_the_parser_reads() -> None:
    said = describe_tools(HISTORY, None)[2]
    content, _, calls = result([said["content"]], GENERIC_PARSER, None, [TOOL])
    assert content.strip() == "I look."
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [('we"tter', {"ort": "Köln"})] * 2


def test_results_of_one_turn_are_one_turn_of_the_user() -> None:
    told = describe_tools([*HISTORY, {"role": "user", "content": "thanks"}], None)
    assert told[3]["content"].count("<tool_response>") == 2
    assert told[4] == {"role": "user", "content": "thanks"}


def test_a_template_without_tools_refuses_them_or_tells_them_by_option() -> None:
    with pytest.raises(InvalidArgument, match="no place for tools, and 1 are given") as error:
        render(PLAIN, HISTORY, tools=[TOOL])
    assert error.value.param == "tools"
    prompt = render(ChatTemplate(PLAIN, generic_tools=True), HISTORY, tools=[TOOL])
    assert prompt.startswith("[system] Be brief.\n\n# Tools")
    assert "[user] <tool_response>\n12 C\n</tool_response>\n<tool_response>" in prompt


def test_a_template_with_tools_is_left_alone() -> None:
    source = PLAIN + "{{ tools | tojson if tools }}"
    with_option = ChatTemplate(source, generic_tools=True)
    assert probed(with_option).tool_prompt == "template"
    assert render(with_option, HISTORY, tools=[TOOL]) == render(source, HISTORY, tools=[TOOL])


FUNCTION: dict[str, Any] = TOOL["function"]  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("source", "tool_prompt", "shown"),
    [
        ("{{ tools | tojson }}", "template", json.dumps([TOOL], ensure_ascii=False)),
        ("{% for t in tools %}{{ t.function.name }}{% endfor %}", "template", "wetter"),
        ("{% for t in tools or [] %}{{ t.name }}={{ t.description }}{% endfor %}", "template", "wetter=für <Orte>"),
        ("{{ raise_exception('no') if messages[0].role == 'system' }}{{ tools[0].function.name }}", "template", "wetter"),
        ("{% if tools %}{{ raise_exception('no tools here') }}{% endif %}x", "template", None),
        ("{% if tools %}tools are not shown{% endif %}x", None, None),
        ("{# tools #}{{ messages[0].content }}", None, None),
        (PLAIN, None, None),
    ],
)  # fmt: skip
def test_whether_tools_come_out_is_probed(source: str, tool_prompt: str | None, shown: str | None) -> None:
    template = probed(source)
    assert template.tool_prompt == tool_prompt
    if shown is not None:
        assert render(template, [{"role": "user", "content": "q"}], tools=[TOOL]) == shown
