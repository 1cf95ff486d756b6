"""Keywords under the real compiler: a value is admitted if and only if jsonschema-rs finds it valid."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest

from ovserve.errors import InvalidArgument
from ovserve.llm.grammar.constraint import ebnf
from ovserve.llm.grammar.writer import write
from tests.bytewise import Language, instances
from tests.engine.test_schema_suite import forms

A: dict[str, Any] = {"properties": {"a": {"type": "boolean"}}, "required": ["a"]}
B: dict[str, Any] = {"properties": {"b": {"type": "integer"}}}
COLOURS = {"type": "string", "enum": ["red", "green"]}
SHAPE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["circle", "square"]},
        "r": {"type": "integer"},
        "w": {"type": "integer"},
    },
    "required": ["kind"],
    "if": {"properties": {"kind": {"const": "circle"}}},
    "then": {"required": ["r"]},
    "else": {"required": ["w"]},
}

CASES: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "unevaluated, two of anyOf": (
        {"anyOf": [A, {**B, "required": ["b"]}], "unevaluatedProperties": False},
        [{"a": True, "b": 1}, {"a": True, "b": "x"}, {"a": True, "b": 1, "c": 1}],
    ),
    "unevaluated, if alone": (
        {"if": A, "unevaluatedProperties": False},
        [{"a": True}, {"a": 1}, {}, {"b": 1}],
    ),
    "not items": (
        {"type": "array", "not": {"items": {"type": "integer"}}},
        [[], [1], [1, "a"], ["a"], [1.5]],
    ),
    "not oneOf": (
        {"type": "integer", "not": {"oneOf": [{"minimum": 3}, {"maximum": 5}]}},
        [1, 3, 4, 5, 6],
    ),
    "not not a multiple": (
        {"type": "integer", "not": {"not": {"multipleOf": 3, "minimum": 9}}},
        [9, 12, 10, 3],
    ),
    "not if": (
        {"not": {"if": {"type": "integer"}, "then": {"minimum": 3}, "else": {"type": "string"}}},
        [1, 3, "a", None, [1]],
    ),
    "not dependent": (
        {"type": "object", "not": {"dependentRequired": {"a": ["b", "c"]}}},
        [{"a": 1}, {"a": 1, "b": 1}, {"a": 1, "b": 1, "c": 1}, {}, {"b": 1}],
    ),
    "oneOf of an integer and a bound": (
        {"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 2}]},
        [1, 2.5, 3, 1.5, -7, -7.5],
    ),
    "two contains": (
        {"type": "array", "allOf": [{"contains": {"type": "integer"}}, {"contains": {"type": "string"}}]},
        [[1, "a"], ["a", 1], [1], ["a"], [None, 1, "a"], []],
    ),
    "identifiers": (
        {"$id": "https://example.com/root", "$ref": "leaf#/$defs/n",
         "$defs": {"leaf": {"$id": "leaf", "$defs": {"n": {"$ref": "#at"}, "m": {"$anchor": "at", "type": "null"}}}}},
        [None, 1],
    ),
    "dynamic reference": (
        {"$defs": {"n": {"$dynamicAnchor": "node", "type": "array", "items": {"$dynamicRef": "#node"}}},
         "$ref": "#/$defs/n"},
        [[], [[]], [[1]], 1],
    ),
    "dynamic reference to the outermost": (
        {"$id": "https://example.com/strict", "$dynamicAnchor": "node", "$ref": "tree", "required": ["c"],
         "$defs": {"tree": {"$id": "tree", "$dynamicAnchor": "node", "type": "object",
                            "properties": {"c": {"type": "array", "items": {"$dynamicRef": "#node"}}}}}},
        [{"c": []}, {"c": [{"c": []}]}, {"c": [{}]}, {}, {"c": [1]}],
    ),
    "recursive reference": (
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveAnchor": True,
         "anyOf": [{"type": "null"}, {"type": "array", "items": {"$recursiveRef": "#"}}]},
        [None, [], [None, [[]]], [1], 1],
    ),
    "unevaluated, allOf": (
        {"type": "object", "allOf": [A, B], "unevaluatedProperties": False},
        [{"a": True}, {"a": True, "b": 1}, {"a": True, "c": 1}, {"b": 1}, {}],
    ),
    "unevaluated, anyOf": (
        {"anyOf": [A, {**B, "required": ["b"]}], "unevaluatedProperties": False},
        [{"a": True}, {"b": 1}, {"b": 1, "c": 2}, {}, 5],
    ),
    "unevaluated, reference": (
        {"$ref": "#/$defs/a", "properties": {"c": {}}, "unevaluatedProperties": False, "$defs": {"a": A}},
        [{"a": True}, {"a": True, "c": [1]}, {"a": True, "d": 1}],
    ),
    "unevaluated, cousins": (
        {"allOf": [{"properties": {"a": {}}}, {"unevaluatedProperties": False}]},
        [{}, {"a": 1}],
    ),
    "unevaluated, uncle": (
        {"properties": {"o": {"properties": {"b": {}}, "unevaluatedProperties": False}},
         "anyOf": [{"properties": {"o": {"properties": {"f": {}}}}}]},
        [{"o": {"b": 1}}, {"o": {"f": 1}}, {"o": {"b": 1, "f": 1}}],
    ),
    "unevaluated schema": (
        {"allOf": [A], "unevaluatedProperties": {"type": "string"}},
        [{"a": True, "x": "y"}, {"a": True, "x": 1}],
    ),
    "unevaluated, if": (
        {"if": A, "then": {"properties": {"b": {"type": "null"}}}, "unevaluatedProperties": False},
        [{"a": True, "b": None}, {"a": True}, {"a": True, "b": 1}, {"b": None}, {}],
    ),
    "unevaluated items": (
        {"type": "array", "allOf": [{"prefixItems": [{"type": "string"}]}], "unevaluatedItems": False},
        [[], ["a"], ["a", 1], [1]],
    ),
    "unevaluated items, anyOf": (
        {"anyOf": [{"prefixItems": [{"const": 1}]}, {"items": {"type": "string"}}], "unevaluatedItems": False},
        [[1], ["a", "b"], [1, 2], []],
    ),
    "keys of an enum": (
        {"type": "object", "propertyNames": COLOURS, "additionalProperties": {"type": "integer"}},
        [{}, {"red": 1}, {"red": 1, "green": 2}, {"blue": 1}, {"red": "x"}],
    ),
    "keys of an enum, required": (
        {"type": "object", "propertyNames": COLOURS, "additionalProperties": {"type": "null"},
         "required": ["red", "green"]},
        [{"red": None, "green": None}, {"red": None}, {"red": None, "green": None, "blue": None}],
    ),
    "keys of a union": (
        {"type": "object", "propertyNames": {"anyOf": [COLOURS, {"const": "blue"}]}},
        [{"blue": 1}, {"red": 1, "blue": 1}, {"grey": 1}],
    ),
    "keys by length beside a name": (
        {"type": "object", "properties": {"abc": {"type": "null"}}, "propertyNames": {"maxLength": 3},
         "additionalProperties": False},
        [{"abc": None}, {}, {"abc": 1}],
    ),
    "no key fits": (
        {"type": "object", "properties": {"abcd": {"type": "null"}}, "propertyNames": {"maxLength": 3},
         "additionalProperties": False},
        [{}, {"abcd": None}],
    ),
    "not a type": ({"not": {"type": ["string", "object", "array"]}}, ["a", 1, 1.5, None, True, {}, []]),
    "not constants": (
        {"not": {"enum": ["a", "ab", 1, True, None, {"k": 1}, [1]]}},
        ["a", "ab", "abc", "", "b", 1, 2, 0.5, 1.5, True, False, None, {"k": 1}, {"k": 2}, {}, [1], [], [1, 2]],
    ),
    "not required": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "not": {"required": ["a", "b"]},
         "additionalProperties": False},
        [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
    ),
    "not a value of a property": (
        {"type": "object", "not": {"properties": {"a": {"const": 1}}, "required": ["a"]}},
        [{}, {"a": 1}, {"a": 2}, {"b": 1}],
    ),
    "not bounds": ({"type": "integer", "not": {"minimum": 3, "maximum": 5}}, [2, 3, 5, 6]),
    "not not": ({"not": {"not": {"type": "string"}}}, ["a", 1]),
    "not any": ({"not": {"anyOf": [{"type": "string"}, {"const": 1}]}}, ["a", 1, 2, None]),
    "oneOf required": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
    ),
    "oneOf overlapping ranges": (
        {"type": "integer", "oneOf": [{"minimum": 1, "maximum": 4}, {"minimum": 3, "maximum": 8}]},
        [0, 1, 2, 3, 4, 5, 8, 9],
    ),
    "oneOf closed objects": (
        {"oneOf": [{**A, "additionalProperties": False}, {**B, "required": ["b"], "additionalProperties": False}]},
        [{"a": True}, {"b": 1}, {"a": True, "b": 1}, {}],
    ),
    "oneOf, discriminator of the parent": (
        {"type": "object", "required": ["t"], "properties": {"t": {"enum": ["x", "y"]}},
         "oneOf": [{"properties": {"t": {"const": "x"}, "v": {"type": "integer"}}},
                   {"properties": {"t": {"const": "y"}, "v": {"type": "string"}}}]},
        [{"t": "x", "v": 1}, {"t": "y", "v": "s"}, {"t": "x", "v": "s"}, {"t": "z"}],
    ),
    "if, then, else": (
        SHAPE,
        [{"kind": "circle", "r": 1}, {"kind": "circle", "w": 1}, {"kind": "square", "w": 1}, {"kind": "square"}],
    ),
    "dependentRequired": (
        {"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": {}, "b": {}}},
        [{}, {"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
    ),
    "dependencies": (
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
         "dependencies": {"a": ["b"], "c": {"properties": {"b": {"type": "null"}}}}},
        [{}, {"a": 1}, {"a": 1, "b": 1}, {"c": 1, "b": 1}, {"c": 1, "b": None}],
    ),
    "dependentSchemas": (
        {"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}},
        [{}, {"a": 1}, {"a": 1, "b": 1}],
    ),
    "types are not implied": (
        {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
        [{"a": 1}, {"a": "x"}, {}, "text", 5, [], {"a": 1, "b": 2}],
    ),
    "first items": (
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 1},
        [[], [1], [1, "a"], [1, 2], [1, "a", None]],
    ),
    "contains": (
        {"type": "array", "contains": {"type": "null"}, "maxItems": 3},
        [[], [1], [None], [1, None], [1, 2, None], [None, 1, None], [1, 2, 3], [1, 2, 3, None]],
    ),
    "contains, without an end": (
        {"type": "array", "items": {"type": ["integer", "null"]}, "contains": {"type": "null"}, "minItems": 2},
        [[None], [1, None], [1, 2, 3, None, 4], [1, 2, 3], ["a", None]],
    ),
    "contains a number of times": (
        {"type": "array", "contains": {"const": 1}, "minContains": 2, "maxContains": 3},
        [[1], [1, 1], [1, 2, 1, 1], [1, 1, 1, 1], [2, 1, 2, 1, 2]],
    ),
    "not contains anything": ({"type": "array", "not": {"contains": True}}, [[], [1]]),
    "not contains, where none is enough": (
        {"oneOf": [{"type": "array", "contains": {"type": "integer"}, "minContains": 0}, True]}, [None, [], [1], ["a"]],
    ),
    "not contains a number of times": (
        {"type": "array", "items": {"enum": [1, "a"]}, "maxItems": 4,
         "not": {"contains": {"const": 1}, "minContains": 2, "maxContains": 3}},
        [[], [1], [1, "a"], [1, 1], [1, "a", 1, 1], [1, 1, 1, 1], ["a"]],
    ),
    "not contains at most": (
        {"type": "array", "not": {"contains": {"const": 1}, "minContains": 0, "maxContains": 1}},
        [[], [1], ["a"], [1, 1], [1, "a", 1]],
    ),
    "contains none": (
        {"type": "array", "contains": {"type": "integer"}, "minContains": 0, "maxContains": 0},
        [[], [1], ["a"], [0.5, None]],
    ),
    "not contains": ({"type": "array", "not": {"contains": {"const": 1}}}, [[], [1], [2], [2, 1]]),
    "unique constants": (
        {"type": "array", "items": {"enum": ["a", "b", 1, 1.0]}, "uniqueItems": True, "minItems": 1},
        [[], ["a"], ["b", "a"], [1, "b", "a"], ["a", "a"], ["a", "b", 1, "a"]],
    ),
    "unique booleans": (
        {"type": "array", "items": {"type": ["boolean", "null"]}, "uniqueItems": True, "maxItems": 2},
        [[], [True], [True, False], [None, True], [True, True], [True, False, None]],
    ),
    "not a pattern": ({"type": "string", "not": {"pattern": "^a|b$"}}, ["", "a", "xb", "bx", "ba", "c"]),
    "not constants, with a length": (
        {"type": "string", "minLength": 1, "maxLength": 3, "not": {"enum": ["abc", "x"]}},
        ["", "abc", "abd", "x", "xy", "abcd"],
    ),
    "keys by patterns": (
        {"type": "object", "properties": {"ab": {"type": "null"}},
         "patternProperties": {"^a": {"type": ["integer", "null"]}, "b$": {"minimum": 5}},
         "additionalProperties": {"type": "string"}},
        [{"ab": None}, {"ab": 1}, {"ax": 1}, {"ax": "s"}, {"axb": 4}, {"axb": 6}, {"b": 4}, {"b": "s"}, {"c": "s"},
         {"c": 1}, {}],
    ),
    "keys by one pattern": (
        {"type": "object", "patternProperties": {"^x-": {}}, "properties": {"a": {"type": "null"}},
         "additionalProperties": False},
        [{"x-a": 1}, {"a": None, "x-a": 1}, {"a": 1}, {"b": 1}],
    ),
    "keys by many patterns": (
        {"type": "object", "patternProperties": {f"^{c}": {"const": c} for c in "abcde"} | {"1$": {"minLength": 1}},
         "additionalProperties": False},
        [{"a": "a"}, {"e1": "e"}, {"a": "b"}, {"e": "e", "x1": "x"}, {"a1": "x"}, {"x": "x"}, {}],
    ),
    "a branch with too few properties": (
        {"anyOf": [{"type": "object", "minProperties": 2, "maxProperties": 1, "additionalProperties": {"const": 1}},
                   {"type": "null"}]},
        [None, {}, {"a": 1}, {"a": 1, "b": 1}],
    ),
    "keys by pattern are evaluated": (
        {"allOf": [{"patternProperties": {"^x": {}}}], "unevaluatedProperties": False},
        [{"x": 1}, {"y": 1}, {}, {"xy": [1]}],
    ),
    "constants by other keywords": (
        {"enum": ["a", "abc", 5, {"k": 1}, {"k": "x"}, [1, 2]], "maxLength": 2, "maximum": 4,
         "properties": {"k": {"type": "integer"}}, "maxItems": 1},
        ["a", "abc", 5, {"k": 1}, {"k": "x"}, [1, 2]],
    ),
}  # fmt: skip


def test_a_value_is_admitted_if_it_is_valid(subtests: pytest.Subtests) -> None:
    for name, (schema, values) in CASES.items():
        with subtests.test(name):
            judge, admitted = jsonschema_rs.validator_for(schema), instances(schema)
            for value in values:
                assert any(text in admitted for text in forms(value)) == judge.is_valid(value), value


NULLS: list[dict[str, Any]] = [
    {"required": None},
    {"enum": None},
    {"allOf": None, "anyOf": None, "oneOf": None, "not": None, "if": None, "then": None},
    {"additionalProperties": None, "patternProperties": None, "propertyNames": None},
    {"$ref": None, "$defs": None, "minProperties": None, "maxProperties": None, "dependentRequired": None},
]


@pytest.mark.parametrize("nulls", NULLS, ids=str)
def test_a_keyword_that_is_null_is_absent(nulls: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}}
    assert write({**schema, **nulls}) == write(schema)


def test_nulls_and_empty_lists_in_the_place_of_maps() -> None:
    assert write({"type": "object", "properties": []}) == write({"type": "object", "properties": {}})
    with_null = {"type": "object", "properties": {"a": None, "b": {"type": "null"}}}
    assert write(with_null) == write({"type": "object", "properties": {"b": {"type": "null"}}})
    limits = {"type": "integer", "minimum": None, "maximum": None, "multipleOf": None}
    assert write(limits) == write({"type": "integer"})
    assert write({"type": ["string", None]}) == write({"type": ["string", "null"]})
    assert "null" in instances({"const": None})
    with pytest.raises(InvalidArgument, match="type: expected a type"):
        write({"type": None})


def test_branches_share_the_order_of_their_properties() -> None:
    kinds = [
        {"properties": {"a": {}, "kind": {"const": 1}, "b": {}}, "required": ["kind"]},
        {"properties": {"c": {}, "b": {}, "kind": {"const": 2.0}}, "required": ["kind"]},
    ]
    either = instances({"type": "object", "oneOf": kinds})
    assert '{"kind": 2, "b": 1, "c": 1}' in either
    assert '{"kind": 2.0, "b": 1, "c": 1}' in either
    assert '{"b": 1, "kind": 2}' not in either


def test_many_unique_constants_come_in_their_order() -> None:
    unique = instances({"type": "array", "items": {"enum": list("abcdefghij")}, "uniqueItems": True})
    assert '["a", "c", "j"]' in unique
    assert "[]" in unique
    assert '["c", "a"]' not in unique
    assert '["a", "a"]' not in unique


def test_no_key_comes_twice() -> None:
    named = instances({"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": {}})
    assert '{"a": null, "b": 1}' in named
    assert '{"a": null, "a": 1}' not in named
    assert '{"b": 1, "a": null}' not in named
    assert '{"a": null, "\\u0061": 1}' not in named
    maps = instances({"type": "object", "propertyNames": COLOURS})
    assert '{"red": 1, "green": 1}' in maps
    assert '{"red": 1, "red": 1}' not in maps
    for schema in (
        {"patternProperties": {"^(de|en|fr)$": {"type": "integer"}}, "additionalProperties": False},
        {
            "patternProperties": {"^[d-f][en]r?$": {"type": "integer"}},
            "additionalProperties": {"type": "null"},
        },
        {"propertyNames": {"pattern": "^(de|en|fr)$"}, "additionalProperties": {"type": "integer"}},
    ):
        few = instances({"type": "object", **schema})
        assert '{"de": 1, "en": 2}' in few
        assert '{"en": 2}' in few
        assert '{"de": 1, "de": 2}' not in few
        assert '{"en": "a"}' not in few
        assert ('{"x": null}' in few) is (schema.get("additionalProperties") == {"type": "null"})
    required = instances({"type": "object", "propertyNames": COLOURS, "required": ["green"]})
    assert '{"green": 1, "green": 1}' not in required


def test_without_strict_only_what_a_schema_names_is_written() -> None:
    schema = {"properties": {"a": {"type": "null"}}}
    assert write(schema, exact=False) == write({"type": "object", **schema, "additionalProperties": False})


def test_keys_of_too_many_patterns_may_still_be_written() -> None:
    patterns = {key: {"minLength": 1} for key in "abcdefgh"}
    closed = write({"type": "object", "patternProperties": patterns, "additionalProperties": False})
    assert closed.unenforced == ["patternProperties"]
    assert '{"abcdefgh": "x", "h": 1}' in Language(ebnf(closed.grammar))


def test_keywords_that_the_draft_lacks_are_annotations() -> None:
    schema = {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "type": "object",
        "properties": {"a": {"const": 1}},
        "if": {"required": ["a"]},
        "then": {"required": ["b"]},
        "not": {"required": ["d"]},
    }
    written = write(schema)
    assert not written.unenforced
    assert sorted(written.noted) == [f"{name}: not in draft-04" for name in ("const", "if", "then")]
    language = instances(schema)
    assert '{"a": 2}' in language
    assert '{"a": 2, "d": 1}' not in language


def test_contradictions_are_reported_without_strict() -> None:
    both = {"type": "object", "required": ["a", "b"], "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert write(both, exact=False).unenforced == ["oneOf"]
    with pytest.raises(InvalidArgument, match="no value is valid"):
        write(both)
