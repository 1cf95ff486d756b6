"""Texts at random under the masks: each that comes to its end is valid, and usual ones are admitted."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest

from ovserve.llm.grammar import constraint as c
from ovserve.llm.grammar.formats import EXPRESSIONS
from ovserve.llm.grammar.guidance import guided
from ovserve.llm.grammar.writer import compact
from ovserve.llm.request import ToolPolicy
from tests.breadth import examples
from tests.engine.paged.conftest import Masks
from tests.engine.test_genai_grammar import PIECES
from tests.engine.test_schema_grammar import LENGTHS, NUMBERS, OTHERS
from tests.engine.test_tool_grammars import AUTO, DIALECTS, NAMED, REQUIRED, check_arguments, forced, read
from tests.schemas import EXAMPLES, FEW_KEYS, SCHEMAS, distinct, obj

ODD: dict[str, dict[str, Any]] = {
    "special characters": {"enum": ['a"b\\c', "é\u2028 😀", "\x7f\t", "</tool_call>", "<|im_end|>", ""]},
    "more than 64": {"type": "string", "maxLength": 96},
    "thousands": {"type": "string", "minLength": 33, "maxLength": 1030},
    "letters": {"type": "string", "pattern": "^[à-ÿ]{2,5}$"},
    "any": {"type": "object", "maxProperties": 2},
    "nothing": {"const": ""},
}
MORE_PIECES: list[tuple[c.Format, str]] = [
    (c.tags([c.tag("<a>", c.regex("[a-z]"), "</a>")], ";"), "<a>[a-z]</a>(;<a>[a-z]</a>)*"),
    (c.literal("né 😀\n"), "né 😀\n"),
    ({**c.tag("<t>", c.any_text(["<x>"]), ""), "end": ["}", "]"]}, r"(?s)<t>((?!<x>)[^]}])*[]}]"),
]  # fmt: skip


def instances(masks: Masks, schema: Any, seeds: int, tokens: int = 200) -> int:
    judge = jsonschema_rs.validator_for(schema, validate_formats=True)
    ends = 0
    for seed in range(seeds):
        text, ended = masks.anything(compact(schema), seed, tokens)
        ends += ended
        assert not ended or judge.is_valid(json.loads(text)), text
    return ends


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas(masks: Masks, name: str) -> None:
    assert instances(masks, SCHEMAS[name], examples(2))
    assert masks.admits(compact(SCHEMAS[name]), json.dumps(EXAMPLES[name], ensure_ascii=False).encode())


@pytest.mark.parametrize("name", ODD)
def test_odd_schemas(masks: Masks, name: str) -> None:
    assert instances(masks, ODD[name], examples(2), 2000 if name == "thousands" else 200)


@pytest.mark.parametrize("value", ODD["special characters"]["enum"])
def test_special_characters_are_spelled(masks: Masks, value: str) -> None:
    form, text = compact(ODD["special characters"]), json.dumps(value, ensure_ascii=False).encode()
    assert masks.admits(form, text.replace(b"\x7f", b"\\u007f")) or masks.admits(form, text)


@pytest.mark.parametrize(("bounds", "values"), NUMBERS)
def test_numbers(masks: Masks, bounds: dict[str, Any], values: list[str]) -> None:
    schema = {"type": "number", **bounds}
    assert instances(masks, schema, examples(4))
    assert all(masks.admits(compact(schema), value.encode()) for value in values)


@pytest.mark.long
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_formats(masks: Masks, name: str) -> None:
    instances(masks, {"type": "string", "format": name}, examples(6))


@pytest.mark.long
@pytest.mark.parametrize("schema", OTHERS)
def test_other_schemas(masks: Masks, schema: dict[str, Any]) -> None:
    assert instances(masks, schema, examples(4))


@pytest.mark.parametrize(("schema", "good", "bad"), LENGTHS)
def test_lengths(masks: Masks, schema: dict[str, Any], good: tuple[int, ...], bad: tuple[int, ...]) -> None:
    form = compact({"type": "string", **schema})
    for count in (*good, *bad):
        assert masks.admits(form, b'"' + (b"lorem" * 300)[:count] + b'"') is (count in good), count


def test_a_json_object(masks: Masks) -> None:
    ends = 0
    for seed in range(examples(6)):
        text, ended = masks.anything(c.json_object(), seed)
        ends += ended
        assert not ended or isinstance(json.loads(text), dict), text
    assert ends
    assert masks.admits(c.json_object(), '{"é": [1.5e3, null, {"x": "\\u00e9\\n"}],\n  "b": ""}'.encode())
    for wrong in (b'{"a": "\n"}', b'{"a": 01}', b'["a"]', b'{"a" : 1}', b'{"a": 1,}'):
        assert not masks.admits(c.json_object(), wrong), wrong


@pytest.mark.parametrize("dialect", ["hermes3", "mistral", "llama3", "devstral", "qwen3coder", "pythonic"])
def test_maps_of_calls_have_no_key_twice(masks: Masks, dialect: str) -> None:
    """Of 16 calls, up to 5 had one."""
    tool: Any = {"type": "function", "function": {"name": "count", "parameters": obj(counts=FEW_KEYS)}}
    tools = ToolPolicy((tool,), "required", ("count",), parallel=False)
    form = json.loads(forced(tools, dialect).format)
    for seed in range(examples(16)):
        text, ended = masks.anything(form, seed)
        assert ended
        [counts] = re.findall(r'\{"[ab]+": \d[^{}]+\}', text.decode())
        assert len(json.loads(counts, object_pairs_hook=distinct)) >= 4


@pytest.mark.parametrize(("form", "pattern"), [*PIECES, *MORE_PIECES])
def test_pieces(masks: Masks, form: c.Format, pattern: str) -> None:
    ends = 0
    errors = "replace" if "any_text" in json.dumps(form) else "strict"  # free text may have half a character
    for seed in range(examples(6)):
        text, ended = masks.anything(form, seed)
        ends += ended
        assert not ended or re.fullmatch(pattern, text.decode(errors=errors)), text
    assert ends


@pytest.mark.parametrize("dialect", DIALECTS)
def test_required_tools_are_calls_only(masks: Masks, dialect: str) -> None:
    for seed in range(2):
        raw, ended = masks.anything(json.loads(forced(REQUIRED, dialect).format), seed)
        text = raw.decode(errors="replace")
        answer = read(dialect, text, cut=not ended)
        assert answer.tool_calls, text
        assert not ended or not answer.content, text
        for call in answer.tool_calls if ended else answer.tool_calls[:-1]:
            check_arguments(call)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_in_auto_a_call_that_begins_is_held(masks: Masks, dialect: str) -> None:
    made = guided(AUTO, None, tool=dialect, reasoning=None, inside_reasoning=False, guide_auto=True)
    assert made is not None
    form = json.loads(made.format)
    call, ended = masks.anything(json.loads(forced(NAMED, dialect).format), 1, 400)
    assert ended
    wrong = call.replace(b"Oslo", b"Ohio").replace(b"Rome", b"Ruhr")
    assert wrong != call
    texts = ["It rains. [1] {2} <b>(3)</b> né 😀".encode(), call, wrong]
    assert [masks.admits(form, text) for text in texts] == [True, True, False]


def test_text_may_come_before_several_calls(masks: Masks) -> None:
    made = guided(AUTO, None, tool="hermes3", reasoning=None, inside_reasoning=False, guide_auto=True)
    assert made is not None
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}\n</tool_call>'
    text = f"I look: {call}\n{call}"
    assert masks.admits(json.loads(made.format), text.encode())
    assert len(read("hermes3", text, cut=False).tool_calls) == 2


def test_thinking_is_free_and_holds_no_end(masks: Masks) -> None:
    made = guided(NAMED, None, tool="hermes3", reasoning="qwen3", inside_reasoning=True)
    assert made is not None
    matcher = masks.matcher(json.loads(made.format))
    for token in masks.tokens(b"Oslo? <tool_call> or"):
        assert matcher.accept(token)
    allowed = masks.allowed(matcher)
    for id_, text in enumerate(masks.vocabulary.texts):
        if text.isascii() and text and id_ not in masks.vocabulary.eos_ids:
            assert allowed[id_], text
    assert not any(allowed[id_] for id_ in masks.vocabulary.eos_ids)


@pytest.mark.long
@pytest.mark.parametrize("name", ["strings", "enum", "array of objects", "anyOf", "optional"])
def test_schemas_with_many_tokens(wide: Masks, name: str) -> None:
    assert instances(wide, SCHEMAS[name], examples(2))
    assert wide.admits(compact(SCHEMAS[name]), json.dumps(EXAMPLES[name], ensure_ascii=False).encode())
