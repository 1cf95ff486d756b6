"""What is named as not enforced, keyword by keyword; what is enforced is seen in test_json_grammar.py."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings

from ovserve.errors import InvalidArgument
from ovserve.llm.grammar.conjunction import MAX_NAMED
from ovserve.llm.grammar.writer import compact, write
from ovserve.llm.parsing import registry
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
        ({"type": "number", "minimum": -sys.float_info.max, "maximum": sys.float_info.max}, []),
        ({"type": "integer", "exclusiveMaximum": int(sys.float_info.max)}, []),
        ({"type": "integer", "minimum": -(10**400), "maximum": 5}, []),
        ({"type": "integer", "minimum": 10**400}, ["minimum"]),
        ({"type": "string", "maxLength": 10**400}, []),
        ({"type": "integer", "not": {"minimum": 10**400}}, []),
        ({"type": "integer", "not": {"maximum": 10**400}}, ["not.maximum"]),
        ({"type": "integer", "not": {"const": 10**400}}, ["not.const"]),
        ({"type": "number", "exclusiveMinimum": sys.float_info.max}, ["exclusiveMinimum"]),
        ({"type": "integer", "multipleOf": 100003}, ["multipleOf"]),
        ({"type": "string", "pattern": "(?>a)b"}, ["pattern"]),
        ({"type": ["string", "null"], "maxLength": 3}, []),
        ({"type": "string", "format": "date"}, []),
        ({"type": "string", "format": "colour"}, []),
        ({"type": "string", "pattern": "a", "maxLength": 3}, []),
        ({"type": "string", "format": "uuid", "pattern": "a"}, []),
        ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, ["uniqueItems"]),
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, []),
        ({"items": {"uniqueItems": True, "type": "array"}}, ["items.uniqueItems"]),
        ({"properties": {"a": {"not": {"multipleOf": 3}}}}, ["properties.a.not"]),
        ({"properties": {"a": {"not": {"type": "string"}}}}, []),
        (
            {"additionalProperties": {"if": {"multipleOf": 3}, "then": {"type": "null"}}},
            ["additionalProperties.if"],
        ),
        ({"additionalProperties": {"if": {"const": 3}, "then": {"type": "null"}}}, []),
        ({"anyOf": [{"type": "null"}], "required": ["a"]}, []),
        ({"anyOf": [{"type": "null"}, {"not": {"multipleOf": 3}}]}, ["anyOf[1].not"]),
        ({"enum": [1], "type": "integer", "minimum": 0}, []),
        ({"enum": ["a"], "pattern": "(?>a)"}, ["pattern"]),
        ({"enum": ["a", "b"], "pattern": "b"}, []),
        ({"allOf": []}, []),
        ({"allOf": [{"type": "null"}]}, []),
        ({"allOf": [{"type": "null"}, True]}, []),
        ({"oneOf": [{"type": "null"}, {"type": "string"}]}, []),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, []),
        ({"oneOf": [{"multipleOf": 2}, {"multipleOf": 3}]}, ["oneOf"]),
        ({"oneOf": [{"const": i} for i in range(64)]}, []),
        ({"oneOf": [{"const": i} for i in range(65)]}, ["oneOf"]),
        (
            {"$ref": "#/$defs/a", "description": "d", "$defs": {"a": {"$dynamicRef": "#b"}}},
            ["$defs.a.$dynamicRef"],
        ),
        ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, []),
        ({"$ref": "https://example.com/a.json"}, ["$ref"]),
        ({"$ref": "#anchor"}, ["$ref"]),
    ],
)
def test_what_the_compiler_passes_over(schema: Any, over: list[str]) -> None:
    assert write(schema).unenforced == over


@pytest.mark.parametrize(
    ("schema", "paths"),
    [
        ({"type": "string", "minLength": 5, "maxLength": 3}, "type, minLength, maxLength"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "allOf[0].type, allOf[1].type"),
        ({"enum": ["b"], "pattern": "^a$"}, "enum, pattern"),
        ({"not": {}}, "not"),
        ({"if": True, "then": False}, "if, then"),
        ({"type": "array", "items": {"enum": []}, "minItems": 1}, "items.enum"),
        (
            {"required": ["a"], "properties": {"a": {"anyOf": [False, {"enum": []}]}}, "type": "object"},
            "properties.a.anyOf",
        ),
        (
            {"type": "object", "required": ["a", "b"], "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
            "oneOf",
        ),
    ],
)
def test_a_contradiction_is_named(schema: Any, paths: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        write(schema)
    assert str(caught.value).endswith(f"no value is valid under the schema because of {paths}")


DEPENDENT = """
from ovserve.llm.grammar.writer import write
at = lambda name, schema: {"required": [name], "properties": {name: schema}}
text = [{"type": "object", **at("k", {"type": "string", **one})} for one in ({"minLength": 4}, {"maxLength": 3})]
some = [at("a", at("b", at("c", {"minimum": i}))) for i in range(60)]
print(write({"type": "object", "properties": {"x": {"oneOf": text}, "z": {"oneOf": some}}}).grammar)
"""


def test_a_grammar_is_the_same_in_every_process() -> None:
    """The comparisons of branches are counted, so their order decides which ones are made."""
    texts = {
        subprocess.run(
            [sys.executable, "-c", DEPENDENT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in "05"
    }
    assert len(texts) == 1


@pytest.mark.parametrize("most", [2**31, 2**53 - 1, 1e300, 10**400])
def test_a_count_that_no_answer_can_exceed_is_none(most: float) -> None:
    for schema, keyword in (
        ({"type": "string"}, "maxLength"),
        ({"type": "array", "items": {"type": "null"}}, "maxItems"),
        ({"type": "object", "additionalProperties": {"type": "null"}}, "maxProperties"),
    ):
        assert write({**schema, keyword: most}) == write(schema)


def test_a_report_has_an_end() -> None:
    assert (
        len(write({"properties": {str(i): {"not": {"multipleOf": 3}} for i in range(100)}}).unenforced)
        == MAX_NAMED
    )


def test_depth_is_no_matter() -> None:
    schema: dict[str, Any] = {"type": "number", "not": {"multipleOf": 3}}
    for _ in range(2000):
        schema = {"type": "array", "items": schema}
    assert len(write(schema).unenforced) == 1


@settings(max_examples=examples(60), deadline=None)
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
        ({"properties": [1]}, "properties: expected an object, got [1]"),
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


ODD_VALUES = ([], {}, [[]], [{}], [None], None, True, -1, 1.5, "", "(", {"a": []}, {"a": 1})
KEYWORDS = [
    "type",
    "enum",
    "const",
    "format",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "exclusiveMaximum",
    "multipleOf",
    "items",
    "prefixItems",
    "additionalItems",
    "contains",
    "minContains",
    "uniqueItems",
    "properties",
    "required",
    "additionalProperties",
    "propertyNames",
    "patternProperties",
    "minProperties",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "not",
    "if",
    "then",
    "else",
    "oneOf",
    "anyOf",
    "allOf",
    "$ref",
    "$id",
    "$anchor",
    "$defs",
    "$schema",
    "$dynamicRef",
    "unevaluatedProperties",
    "unevaluatedItems",
    "nullable",
]
BESIDE: list[dict[str, Any]] = [
    {"enum": ["", 1, None, [], [1], {}, {"a": 1}]},
    {"type": "object", "properties": {"a": {}}, "required": ["a"]},
]


def test_a_keyword_with_a_value_of_the_wrong_kind_is_for_the_client() -> None:
    """Also where a schema is only compared with values, or negated: these had faults of ours, which is a 500."""
    faults = []
    for keyword, value, beside in itertools.product(KEYWORDS, ODD_VALUES, BESIDE):
        part = {**beside, keyword: value}
        for schema in (
            part,
            {"not": part},
            {"allOf": [{keyword: value}, beside]},
            {"if": part, "else": False},
        ):
            try:
                write(schema)
            except InvalidArgument:
                pass
            except Exception as error:  # noqa: BLE001  each is listed
                faults.append(f"{schema}: {error!r}")
    assert faults == []
