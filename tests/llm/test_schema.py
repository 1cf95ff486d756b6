"""What is named as not enforced, keyword by keyword; that the compiler really passes it over is seen in
tests/engine/test_genai_grammar.py."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings

from ovserve.errors import InvalidArgument
from ovserve.llm.compact import compact
from ovserve.llm.constraint import constrain
from ovserve.llm.parsing import registry
from ovserve.llm.schema import MAX_NAMED, unenforced
from tests.breadth import examples
from tests.odd_schemas import SCHEMAS


@pytest.mark.parametrize(
    ("schema", "over"),
    [
        (True, []),
        ({}, []),
        ({"type": "object", "title": "A", "$schema": "x", "default": {}, "x-mine": 1}, []),
        ({"type": "integer", "minimum": 1, "multipleOf": 3}, ["multipleOf"]),
        ({"minimum": 1}, ["minimum"]),  # without a type it is any value
        ({"type": ["string", "null"], "maxLength": 3}, []),
        ({"type": "string", "format": "date"}, []),
        ({"type": "string", "format": "colour"}, ["format"]),
        ({"type": "string", "pattern": "a", "maxLength": 3}, ["maxLength"]),
        ({"type": "string", "format": "uuid", "pattern": "a"}, ["pattern"]),
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, ["uniqueItems"]),
        ({"items": {"multipleOf": 2}}, ["items.multipleOf"]),
        ({"properties": {"a": {"not": {}}}}, ["properties.a.not"]),
        ({"additionalProperties": {"if": True}}, ["additionalProperties.if"]),
        ({"anyOf": [{"type": "null"}], "required": ["a"]}, ["required"]),
        ({"anyOf": [{"type": "null"}, {"uniqueItems": True}]}, ["anyOf[1].uniqueItems"]),
        ({"enum": [1], "type": "integer", "minimum": 0}, ["minimum"]),
        ({"allOf": [{"type": "null"}]}, []),
        ({"allOf": [{"type": "null"}, True]}, ["allOf"]),
        ({"$ref": "#/$defs/a", "description": "d", "$defs": {"a": {"contains": 1}}}, ["$defs.a.contains"]),
        ({"$ref": "#"}, []),
        ({"$ref": "https://example.com/a.json"}, ["$ref"]),
        ({"$ref": "#anchor"}, ["$ref"]),
        ([1], []),
    ],
)
def test_what_the_compiler_passes_over(schema: Any, over: list[str]) -> None:
    assert unenforced(schema) == over


def test_a_report_has_an_end() -> None:
    assert len(unenforced({"properties": {str(i): {"multipleOf": 2} for i in range(100)}})) == MAX_NAMED


def test_depth_is_no_matter() -> None:
    schema: dict[str, Any] = {"multipleOf": 2}
    for _ in range(5000):
        schema = {"items": schema}
    assert len(unenforced(schema)) == 1


@settings(max_examples=examples(150), deadline=None)
@given(SCHEMAS)
@example({"type": "string", "format": []})
@example({"type": "object", "properties": {"a": {}}, "required": 5})
@example({"$ref": "#/$defs/a", "$defs": []})
def test_no_garbage_is_too_much(schema: Any) -> None:
    """It is the compiler that says what is wrong with a schema."""
    unenforced(schema)
    compact(schema)
    if isinstance(schema, dict):
        default_guide = registry.default().tool("qwen3coder")
        assert default_guide is not None
        assert default_guide.guide is not None
        default_guide.guide.call("f", schema)


def test_what_is_nested_too_deep_to_be_written_is_refused() -> None:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(5000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(InvalidArgument, match="cannot be written"):
        constrain(compact(schema), "response_format")
