"""What is named as not enforced, keyword by keyword; what is enforced is seen in test_json_grammar.py."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings

from ovserve.errors import InvalidArgument
from ovserve.llm.grammar.compact import compact
from ovserve.llm.grammar.conjunction import MAX_NAMED
from ovserve.llm.grammar.writer import write
from ovserve.llm.parsing.core import registry
from tests.breadth import examples
from tests.odd_schemas import SCHEMAS


@pytest.mark.parametrize(
    ("schema", "over"),
    [
        (True, []),
        ({}, []),
        ({"type": "object", "title": "A", "$schema": "x", "default": {}, "x-mine": 1}, []),
        ({"type": "integer", "minimum": 1, "multipleOf": 3}, []),
        ({"minimum": 1}, []),
        ({"type": "string", "minimum": 1, "uniqueItems": True}, []),  # says nothing of strings
        ({"type": "number", "minimum": 1e41}, ["minimum"]),
        ({"type": "integer", "multipleOf": 100003}, ["multipleOf"]),
        ({"type": "string", "pattern": "(?=a)b"}, ["pattern"]),
        ({"type": ["string", "null"], "maxLength": 3}, []),
        ({"type": "string", "format": "date"}, []),
        ({"type": "string", "format": "colour"}, ["format"]),
        ({"type": "string", "pattern": "a", "maxLength": 3}, ["maxLength"]),
        ({"type": "string", "format": "uuid", "pattern": "a"}, ["pattern"]),
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, ["uniqueItems"]),
        ({"items": {"uniqueItems": True, "type": "array"}}, ["items.uniqueItems"]),
        ({"properties": {"a": {"not": {}}}}, ["properties.a.not"]),
        ({"additionalProperties": {"if": True}}, ["additionalProperties.if"]),
        ({"anyOf": [{"type": "null"}], "required": ["a"]}, []),
        ({"anyOf": [{"type": "null"}, {"not": {}}]}, ["anyOf[1].not"]),
        ({"enum": [1], "type": "integer", "minimum": 0}, []),
        ({"enum": ["a"], "pattern": "b"}, ["pattern"]),
        ({"allOf": [{"type": "null"}]}, []),
        ({"allOf": [{"type": "null"}, True]}, []),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, []),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["oneOf"]),
        ({"$ref": "#/$defs/a", "description": "d", "$defs": {"a": {"if": 1}}}, ["$defs.a.if"]),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, []),
        ({"$ref": "https://example.com/a.json"}, ["$ref"]),
        ({"$ref": "#anchor"}, ["$ref"]),
    ],
)
def test_what_the_compiler_passes_over(schema: Any, over: list[str]) -> None:
    assert write(schema).unenforced == over


def test_a_report_has_an_end() -> None:
    assert len(write({"properties": {str(i): {"not": {}} for i in range(100)}}).unenforced) == MAX_NAMED


def test_depth_is_no_matter() -> None:
    schema: dict[str, Any] = {"not": {}}
    for _ in range(2000):
        schema = {"items": schema}
    assert len(write(schema).unenforced) == 1


@settings(max_examples=examples(150), deadline=None)
@given(SCHEMAS)
@example({"type": "string", "format": []})
@example({"type": "object", "properties": {"a": {}}, "required": 5})
@example({"$ref": "#/$defs/a", "$defs": []})
def test_no_garbage_is_too_much(schema: Any) -> None:
    """It is written, or rejected by name."""
    guide = registry.default().tool("qwen3coder")
    assert guide is not None
    assert guide.guide is not None
    for read in (write, compact, partial(guide.guide.call, "f")):
        with contextlib.suppress(InvalidArgument):
            read(schema)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ([1], "expected a schema, an object or a boolean, got [1]"),
        (False, "no value is valid"),
        ({"$ref": "#"}, "$ref: refers to nothing but itself"),
        ({"properties": {"a": {"type": "banana"}}}, "properties.a.type: expected one of object"),
        ({"properties": {"a": {"type": "banana"}}}, 'got "banana"'),
        ({"properties": []}, "properties: expected an object, got []"),
        ({"anyOf": []}, "anyOf: expected a non-empty array, got []"),
        ({"$ref": "#/$defs/none"}, '$ref: points to no schema, got "#/$defs/none"'),
        ({"type": "string", "pattern": "[a"}, "pattern: not a regular expression: missing ]"),
        ({"minimum": "1"}, 'minimum: expected a number, got "1"'),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "no value is valid"),
        ({"required": ["b"], "additionalProperties": False}, 'properties lack this name, got "b"'),
    ],
)
def test_what_is_no_schema_is_named(schema: Any, says: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        compact(schema, what="guided_json")
    assert says in str(caught.value)
    assert caught.value.param == "guided_json"
