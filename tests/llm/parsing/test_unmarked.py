"""Calls without a marker: as Qwen2.5-Coder writes them, and JSON answers that are no calls in any dialect."""

from __future__ import annotations

import pytest

from ovserve.llm.parsing import detect
from ovserve.llm.parsing.registry import choose
from tests.llm.parsing.cuts import result, tool

TOOLS = [tool("f", a="integer"), tool("g")]
F, G = '{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "arguments": {}}'


def test_without_tools_in_the_request_no_bare_json_is_a_call() -> None:
    assert result([F], "qwen25coder", None, []) == (F, "", [])


TEMPLATE = '<tool_call></tool_call> XML tags:\\n<tool_call>\\n%s\\"name\\": <function-name>}\\n</tool_call>'


@pytest.mark.parametrize(
    ("template", "model", "dialect"),
    [
        (TEMPLATE % "{", "", "hermes3"),
        (TEMPLATE % "{{", "", "qwen25coder"),
        ('<tool_call>\n{{"name": ...}}\n</tool_call>', "", "qwen25coder"),
        (TEMPLATE % "{", "models/Qwen2.5-Coder-7B-Instruct-int4-ov", "qwen25coder"),
        (TEMPLATE % "{", "qwen2.5-coder-1.5b/qwen2.5-coder-1.5b-instruct-q4_k_m.gguf", "qwen25coder"),
        (TEMPLATE % "{", "Qwen2.5-7B-Instruct", "hermes3"),
        ("<|python_tag|>", "a-llama-named-qwen2.5-coder", "llama3"),
    ],
)
def test_the_template_or_the_name_tells_which_it_is(template: str, model: str, dialect: str) -> None:
    assert detect(template, model)[0] == dialect
    assert choose("", "", template, model=model).tool == dialect


BARE = [
    ("llama3", '{"name": "%s", "parameters": {}}'),
    ("llama3", '{"name": "%s", "parameters": {}}; {"name": "%s", "parameters": {}}'),
    ("mistral", '[{"name": "%s", "arguments": {}}]'),
    ("xlam", '[{"name": "%s", "arguments": {}}]'),
    ("xlam", '```json\n[{"name": "%s", "arguments": {}}]\n```'),
    ("pythonic", "[%s(a=1)]"),
    ("lfm2", "[%s(a=1)]"),
    ("lfm2", "[%s(a=1), %s()]"),
    ("qwen25coder", '{"name": "%s", "arguments": {}}'),
]


@pytest.mark.parametrize(("dialect", "form"), BARE)
def test_without_a_marker_only_a_tool_of_the_request_is_called(dialect: str, form: str) -> None:
    strange = form.replace("%s", "get_capital")
    for pieces in ([strange], list(strange)):
        assert result(pieces, dialect, None, TOOLS) == (strange, "", [])
    known = form.replace("%s", "f")
    for pieces in ([known], list(known)):
        content, _, calls = result(pieces, dialect, None, TOOLS)
        assert (content, {name for name, _ in calls}) == ("", {"f"})


@pytest.mark.parametrize("dialect", sorted({dialect for dialect, _ in BARE}))
def test_what_a_user_asked_for_as_json_is_content(dialect: str) -> None:
    for text in (
        '{"name": "Ann", "parameters": {"age": 3}}',
        '[{"name": "Ann", "arguments": {}}]',
        "[ann(1)]",
    ):
        assert result([text], dialect, None, TOOLS) == (text, "", [])
