"""Twenty-two JSON schemas, each with what is special in it, and an instance of each to show a small model.

Used by the structured output tests of the default model (tests/http) and of the one that calls tools
(tests/frameworks).
"""

from __future__ import annotations

import json
from typing import Any


def obj(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


NAME = {"type": "string", "maxLength": 12}
SCHEMAS: dict[str, dict[str, Any]] = {
    "strings": obj(name=NAME, city={"type": "string", "minLength": 2, "maxLength": 10}),
    "integers": obj(age={"type": "integer", "minimum": 0, "maximum": 120}, below={"type": "integer", "exclusiveMaximum": 10, "minimum": -10}),
    "numbers": obj(height={"type": "number", "minimum": 0.5, "maximum": 2.5}),
    "booleans and null": obj(cats={"type": "boolean"}, dog={"type": "null"}),
    "enum": obj(city={"enum": ["Oslo", "Rome/Lazio", "São Paulo"]}, size={"enum": [1, 2.5, None, "x"]}),
    "const": obj(kind={"const": "person"}, version={"const": 3}),
    "pattern": obj(code={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}),
    "date": obj(born={"type": "string", "format": "date"}),
    "time and date-time": obj(at={"type": "string", "format": "time"}, on={"type": "string", "format": "date-time"}),
    "uuid": obj(id={"type": "string", "format": "uuid"}),
    "ipv4": obj(host={"type": "string", "format": "ipv4"}),
    "array": obj(tags={"type": "array", "items": {"type": "string", "maxLength": 6}, "minItems": 2, "maxItems": 3}),
    "tuple": obj(pair={"type": "array", "prefixItems": [{"type": "integer", "minimum": 0, "maximum": 9}, NAME], "items": False}),
    "nested": obj(person=obj(name=NAME, home=obj(city=NAME, zip={"type": "string", "pattern": "^[0-9]{5}$"}))),
    "array of objects": obj(cats={"type": "array", "items": obj(name=NAME, age={"type": "integer", "minimum": 0, "maximum": 20}), "minItems": 1, "maxItems": 2}),
    "anyOf": obj(pet={"anyOf": [obj(cat=NAME), obj(dog=NAME), {"type": "null"}]}),
    "type list": obj(nick={"type": ["string", "null"], "maxLength": 8}),
    "$ref": {**obj(home={"$ref": "#/$defs/place"}, work={"$ref": "#/$defs/place"}), "$defs": {"place": obj(city=NAME)}},
    "recursion": {"$ref": "#/$defs/node", "$defs": {"node": obj(v={"type": "integer", "minimum": 0, "maximum": 9}, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]}), "leaf": obj(v={"const": 1}, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]})}},
    "optional": {"type": "object", "properties": {"a": NAME, "b": {"type": "boolean"}, "c": {"type": "null"}}, "required": ["b"], "additionalProperties": False},
    "additionalProperties": {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1, "maxProperties": 2},
    "top-level array": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 5}, "minItems": 3, "maxItems": 3},
}  # fmt: skip


# Strings and recursion have no bound, so a small model is shown an end.
EXAMPLES: dict[str, Any] = {
    'strings': {'name': 'Ann', 'city': 'Oslo'},
    'integers': {'age': 31, 'below': 5},
    'numbers': {'height': 1.5},
    'booleans and null': {'cats': True, 'dog': None},
    'enum': {'city': 'Oslo', 'size': 1},
    'const': {'kind': 'person', 'version': 3},
    'pattern': {'code': 'ABC-1234'},
    'date': {'born': '1994-05-17'},
    'time and date-time': {'at': '08:30:00Z', 'on': '1994-05-17T08:30:00Z'},
    'uuid': {'id': '123e4567-e89b-12d3-a456-426614174000'},
    'ipv4': {'host': '10.0.0.1'},
    'array': {'tags': ['cats', 'oslo']},
    'tuple': {'pair': [3, 'Ann']},
    'nested': {'person': {'name': 'Ann', 'home': {'city': 'Oslo', 'zip': '01234'}}},
    'array of objects': {'cats': [{'name': 'Tom', 'age': 3}]},
    'anyOf': {'pet': {'cat': 'Tom'}},
    'type list': {'nick': 'Annie'},
    '$ref': {'home': {'city': 'Oslo'}, 'work': {'city': 'Rome'}},
    'recursion': {'v': 5, 'next': {'v': 1, 'next': None}},
    'optional': {'a': 'x', 'b': True},
    'additionalProperties': {'cats': True},
    'top-level array': [1, 2, 3],
}  # fmt: skip


def hint(name: str) -> list[dict[str, str]]:
    example = json.dumps(EXAMPLES[name], separators=(",", ":"))
    return [{"role": "user", "content": f"Describe Ann as JSON in one line, like this: {example}"}]


FEW_KEYS: dict[str, Any] = {
    "type": "object",
    "patternProperties": {"^[ab]+$": {"type": "integer", "minimum": 0, "maximum": 9}},
    "additionalProperties": False,
    "minProperties": 4,
    "maxProperties": 6,
}


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A hook for `json.loads`, which keeps the last of equal keys."""
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)
