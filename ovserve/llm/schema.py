"""What of a JSON schema the grammar compiler does not enforce; called where a request's schema is decoded.

XGrammar 0.1.31 reads the first of $ref, const, enum, anyOf, oneOf, allOf, type that a schema has, and of the
rest what belongs to it; everything else is passed over without a word. A schema that asks for more is either
refused (strict) or served and reported, so that nobody takes a hint for a promise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

FORMATS = frozenset(
    [
        "email",
        "date",
        "time",
        "date-time",
        "duration",
        "ipv4",
        "ipv6",
        "hostname",
        "uuid",
        "uri",
        "uri-reference",
        "uri-template",
        "json-pointer",
        "relative-json-pointer",
    ]
)
NUMBER = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"))
STRING = frozenset(("format", "pattern", "minLength", "maxLength"))
ARRAY = frozenset(("items", "prefixItems", "unevaluatedItems", "minItems", "maxItems"))
OBJECT = frozenset(
    [
        "properties",
        "required",
        "additionalProperties",
        "unevaluatedProperties",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
    ]
)
OBJECT_SIGNS = frozenset(("properties", "additionalProperties", "unevaluatedProperties"))
ARRAY_SIGNS = frozenset(("items", "prefixItems", "unevaluatedItems"))
BY_TYPE = {"integer": NUMBER, "number": NUMBER, "string": STRING, "array": ARRAY, "object": OBJECT}
UNKNOWN = frozenset(
    [
        "not",
        "if",
        "then",
        "else",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
        "multipleOf",
        "uniqueItems",
        "contains",
        "minContains",
        "maxContains",
        "$dynamicRef",
        "$recursiveRef",
    ]
)
WINNERS = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
ASSERTING = UNKNOWN.union(NUMBER, STRING, ARRAY, OBJECT, WINNERS)  # all else is a note, or means nothing
MAX_NAMED = 20  # in one report


def unenforced(schema: Any) -> list[str]:
    """Paths of keywords without effect, such as "properties.age.multipleOf"; at most MAX_NAMED of them."""
    found: list[str] = []
    for path in _walk(schema, ""):
        found.append(path)
        if len(found) == MAX_NAMED:
            break
    return found


def _walk(schema: Any, path: str) -> Iterator[str]:
    todo = [(schema, path)]
    while todo:  # no recursion: schemas nest as deep as the client likes
        node, at = todo.pop()
        if not isinstance(node, Mapping):
            continue
        yield from (f"{at}{keyword}" for keyword in _passed_over(node))
        for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
            if isinstance(node.get(keyword), list):
                todo += [(one, f"{at}{keyword}[{i}].") for i, one in enumerate(node[keyword])]
        for keyword in ("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"):
            todo.append((node.get(keyword), f"{at}{keyword}."))
        for keyword in ("properties", "patternProperties", "$defs", "definitions"):
            if isinstance(node.get(keyword), Mapping):
                todo += [(one, f"{at}{keyword}.{name}.") for name, one in node[keyword].items()]


def _passed_over(node: Mapping[str, Any]) -> list[str]:
    asked = [name for name in node if name in ASSERTING]
    winner = next((name for name in WINNERS if name in node), None)
    if winner is not None:
        value = node[winner]
        foreign = winner == "$ref" and not (isinstance(value, str) and (value + "/").startswith("#/"))
        merged = winner == "allOf" and isinstance(value, list) and len(value) > 1
        return [name for name in asked if name != winner or foreign or merged]
    kinds = node.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    if not kinds:  # then its keywords tell, or it is any value
        kinds = ["object"] if node.keys() & OBJECT_SIGNS else ["array"] if node.keys() & ARRAY_SIGNS else []
    read: frozenset[str] = frozenset().union(*(BY_TYPE.get(k, ()) for k in kinds if isinstance(k, str)))
    return [name for name in asked if name not in read] + (_strings(node) if "string" in kinds else [])


def _strings(node: Mapping[str, Any]) -> list[str]:
    """Of format, pattern and lengths only the first is read."""
    format_ = node.get("format")
    if isinstance(format_, str) and format_ in FORMATS:
        return [name for name in ("pattern", "minLength", "maxLength") if name in node]
    unknown = ["format"] if format_ is not None else []
    if "pattern" in node:
        return unknown + [name for name in ("minLength", "maxLength") if name in node]
    return unknown
