"""The input of a custom tool is read from a call's arguments, wherever they are cut."""

from __future__ import annotations

import json

import pytest

from ovserve.api.openai.tools import InputReader, input_of, shown_name

TEXTS = [
    "",
    "a",
    'q"uo\\te',
    "line\nline\ttab",
    "\u00e9\U0001f600\u2028",
    "*** Begin Patch\n+x = '{\"input\": 1}'\n",
]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_the_input_is_the_same_for_every_cut(text: str, ascii_only: bool) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=ascii_only)
    for cut in range(len(arguments) + 1):
        reader = InputReader()
        parts = [reader.feed(arguments[:cut]), reader.feed(arguments[cut:]), reader.finish()]
        assert "".join(parts) == text
    reader = InputReader()
    parts = [reader.feed(character) for character in arguments]
    assert "".join(parts) == text  # all of it before the end
    assert reader.finish() == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{ "input" :\n"a"}', "a"),
        ('{"input": "a", "more": 1}', "a"),
        ('{"more": 1, "input": "a"}', "a"),
        ('{"input": {"a": 1}}', '{"a": 1}'),
        ('{"patch": "x"}', '{"patch": "x"}'),
        ("no JSON", "no JSON"),
        ("", ""),
        ('{"input": "C:\\path \\u12"}', "C:\\path \\u12"),
        ('{"input": "raw\nline', "raw\nline"),
        ('{"input": "cut \\', "cut \\"),
        ('{"a": "' + "x" * 100 + '", "input": "y"}', "y"),
    ],
)
def test_arguments_of_other_forms_lose_nothing(arguments: str, text: str) -> None:
    assert input_of(arguments) == text
    reader = InputReader()
    assert "".join([*map(reader.feed, arguments), reader.finish()]) == text


def test_names() -> None:
    assert [shown_name(*pair) for pair in (("mcp__x", "js"), ("mcp__x__", "js"), (None, "js"), ("", "js"))] == [
        "mcp__x__js", "mcp__x__js", "js", "js",
    ]  # fmt: skip
