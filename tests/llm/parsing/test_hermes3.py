"""Calls as Qwen2.5-Coder writes them: without tags, in a code fence, with doubled braces. And JSON that is none."""

from __future__ import annotations

import pytest

from tests.llm.parsing.cuts import result, tool

TOOLS = [tool("f", a="integer"), tool("g")]
F, G = '{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "arguments": {}}'
CALL_F, CALL_G = ("f", '{"a": 1}'), ("g", "{}")


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (F, "", [CALL_F]),
        (f"\n{F}\n{G}", "", [CALL_F, CALL_G]),
        (f"[{F}, {G}]", "", [CALL_F, CALL_G]),
        (f"```json\n{F}\n```", "", [CALL_F]),
        (f"```\n{F}\n```\n\n```json\n{G}\n```", "", [CALL_F, CALL_G]),
        (f"```json\n{F}\n```\nDone.", "\nDone.", [CALL_F]),
        (f"<think>a</think>\n{F}", "", [CALL_F]),
        ("{" + F + "}", "", [CALL_F]),
        ("<tool_call>\n{" + F + "}\n</tool_call>\n<tool_call>\n{" + G + "}\n</tool_call>", "", [CALL_F, CALL_G]),
        ('{"name": "Ann", "arguments": {}}', '{"name": "Ann", "arguments": {}}', []),
        ('{"name": "f", "arguments": {}, "age": 3}', '{"name": "f", "arguments": {}, "age": 3}', []),
        ('{"name": "f"}', '{"name": "f"}', []),
        (f"Like this: {F}", f"Like this: {F}", []),
        ("```python\nf()\n```", "```python\nf()\n```", []),
        ("`f` and [g](x)", "`f` and [g](x)", []),
        ("<tool_call>{{}}</tool_call>", "<tool_call>{{}}</tool_call>", []),
    ],
)  # fmt: skip
def test_what_is_a_call(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    for pieces in ([text], list(text)):
        assert result(pieces, "hermes3", "qwen3", TOOLS) == (content, "a" if "think" in text else "", calls)


def test_without_tools_in_the_request_no_bare_json_is_a_call() -> None:
    assert result([F], "hermes3", None, []) == (F, "", [])
