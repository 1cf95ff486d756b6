"""Strings without quotes in forced calls: each that the grammar admits is what the dialect's parser reads."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovserve.errors import InvalidArgument
from ovserve.llm.grammar.constraint import Format
from ovserve.llm.parsing.dialect import Form
from ovserve.llm.parsing.guide import Guide
from ovserve.llm.parsing.registry import default
from ovserve.llm.parsing.tools import recipients, tagged_xml
from tests.bytewise import Language
from tests.llm.parsing.cuts import completion, packets
from tests.llm.parsing.test_roundtrip import BARE_TEXT

DIALECTS = sorted(BARE_TEXT - {"gemma4", "minimax_m3"})
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["a"],
}
TOOLS: Any = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
KEYS = ("a", "b", "n", "other")


def guide_of(dialect: str) -> Guide:
    found = default().tool(dialect)
    assert found is not None
    assert found.guide is not None
    return found.guide


def form_of(dialect: str) -> Form:
    own = {"glm45": tagged_xml._GLM_FORM, "onyx": recipients._FORM}
    tool: Any = default().tool(dialect)
    form: Form = own[dialect] if dialect in own else tool.forms[0] if hasattr(tool, "forms") else tool.form
    return form


@cache
def grammar(dialect: str) -> tuple[Format, Language]:
    call = guide_of(dialect).call("f", SCHEMA)
    return call, Language(call)


def fragments(dialect: str) -> list[str]:
    """What the dialect writes around values, and what may stand between it."""
    form = form_of(dialect)
    opened = [
        f"{form.parameter}{key}{quote}" + form.tag_end for key in KEYS for quote in ('"' * form.quoted,)
    ]
    begin = guide_of(dialect).begin.replace("NAME", "f")
    return [
        *form.tags, *opened, form.tag_end, form.value, begin, "<![CDATA[", "]]>", "</parameter", "<",
        "\n", " ", "\t", "\r", "\r\n", "\u00a0", "\u2003", "\x0b", "\x1c", "\u0085", "x", "a", "<b>", "{}", '"',
    ]  # fmt: skip


def read(dialect: str, text: str) -> list[dict[str, Any]]:
    answer = completion(packets([text], dialect, None, TOOLS))
    assert not answer.content, text
    return [json.loads(call.arguments) for call in answer.tool_calls]


def trimmed(form: Form, begin: str, value: str, end: str) -> str:
    """The value without the newlines that belong to the format."""
    text = begin[-1:].strip('>"') * form.trim + value + "\n" * (form.trim and end.startswith("\n"))
    if form.trim:
        text = text[2:] if text.startswith("\r\n") else text.removeprefix("\n")
        text = text.removesuffix("\r\n") if text.endswith("\r\n") else text.removesuffix("\n")
    return text


@pytest.mark.parametrize("dialect", DIALECTS)
@settings(deadline=None)
@given(st.data())
def test_the_parser_reads_each_value_that_the_grammar_admits(dialect: str, data: st.DataObject) -> None:
    values = st.lists(st.sampled_from(fragments(dialect)), max_size=8).map("".join)
    calls = st.lists(st.tuples(values, st.sampled_from(["", "y", "<"])), min_size=1, max_size=2)
    check(dialect, *data.draw(calls))


def check(dialect: str, *calls: tuple[str, str]) -> bool:
    """Return whether calls with these values of `a` and `b` are admitted; "" leaves `b` out.

    A text with the grammar's end of a value is never one as a whole. Nor is the end of a value, where the value
    of a call before has begun markup: the end is taken for that of the markup.
    """
    form = form_of(dialect)
    begun = any(tag in calls[0][0] for tag in form.tags if not tag.startswith("</"))
    if begun and any(form.parameter_end in value for value, _ in calls[1:]):
        return False
    call, language = grammar(dialect)
    guide = guide_of(dialect)
    first, second = call["content"]["elements"][0], call["content"]["elements"][1]["elements"][0]
    begin, end = first["begin"], first["end"]
    texts, expected = [], []
    for value, other in calls[: 1 if guide.single else None]:
        inner = begin + value + end + (second["begin"] + other + end if other else "")
        texts.append(call["begin"] + inner + call["end"])
        if (value + end).index(end) < len(value) or texts[-1] not in language:
            return False
        shown = trimmed(form, begin, value, end)
        expected.append({"a": shown} | ({"b": other} if other else {}))
    before, after = guide.block
    text = before + guide.separator.join(texts) + after
    assert read(dialect, text) == expected, text
    return True


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_value_may_hold_what_is_no_markup_and_not_what_could_be(dialect: str) -> None:
    form = form_of(dialect)
    quote = '"' * form.quoted
    closed = (
        form.parameter_end
        if grammar(dialect)[0]["content"]["elements"][0]["end"] != form.parameter_end
        else ""
    )
    for value in ("", "x < y", "<b>\n</b>\n", f"x{form.call_end}y", f"x{form.call_end}", f"x{closed}y"):
        assert check(dialect, (value, "")), value
        assert check(dialect, (value, "y"), (value, "")), value
    opened = f"{form.parameter}b{quote}{form.tag_end}"
    for value in (f"x{form.parameter_end}{opened}y", f"x{form.parameter_end} \n{opened}y", f"x{opened}y"):
        assert not check(dialect, (value, "")), value
    assert not check(dialect, (f"x{form.call_end}{form.call}", ""))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_patterns_formats_and_lengths_hold_between_tags(dialect: str) -> None:
    """As a custom tool with a regex has them; a call is read back as it was written."""
    end = form_of(dialect).parameter_end
    for schema, right, wrong in (
        ({"pattern": "^[a-z]+ [0-9]{2}$"}, ["ab 12"], ["ab 1", "AB 12"]),
        ({"pattern": "^(?s:a.*z)$"}, ["a<b>\nz"], ["a", f"a{end}<z"]),
        ({"maxLength": 300, "minLength": 2}, ["ab", "c" * 300], ["a", "c" * 301]),
        ({"format": "date"}, ["2026-11-27"], ["2026-13-01", "x"]),
    ):
        part = {"type": "string", **schema}
        call = guide_of(dialect).call("f", {"type": "object", "properties": {"a": part}, "required": ["a"]})
        language, inner = Language(call), call["content"]
        while inner["type"] != "tag":
            inner = inner["elements"][0]
        texts = {
            value: call["begin"] + inner["begin"] + value + inner["end"] + call["end"]
            for value in right + wrong
        }
        assert [value for value in right if texts[value] not in language] == []
        assert [value for value in wrong if texts[value] in language] == []
        begin, end_of_calls = guide_of(dialect).block
        answers = [read(dialect, begin + texts[value] + end_of_calls) for value in right]
        assert answers == [[{"a": value}] for value in right]


def test_a_strict_string_that_cannot_be_held_between_tags_is_refused() -> None:
    either = {"anyOf": [{"type": "string", "pattern": "^a$"}, {"type": "null"}]}
    schema = {"type": "object", "properties": {"a": either}, "required": ["a"]}
    with pytest.raises(InvalidArgument, match="parameters of f: a string with a pattern"):
        guide_of("qwen3coder").call("f", schema, exact=True)
    guide_of("qwen3coder").call("f", schema)
