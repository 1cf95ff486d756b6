"""JSON by a schema, without the white space that the compiler would allow between its tokens.

The compiler lets a schema's instance have any amount of white space, and a small model fills answers with it
until their limit. So objects and short arrays are spelled out here, in one line, and only what has no inner
white space is left to the compiler as a schema; so is everything whose meaning is not plain: recursion,
patterns of names, bounds on the number of properties. Called for formats and for arguments of tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ovserve.llm.constraint import Format, either, json_schema, literal, optional, sequence, tag, tags

Schema = Mapping[str, Any]
Value = Callable[[str, Schema, str, str], Format]  # key, its schema, what comes before and after: as text

MAX_UNROLLED = 8  # items of an array
MAX_DEPTH = 8  # references within references
MAX_GROWTH = 16 * 1024  # bytes
SHARED = ("$defs", "definitions")  # what references of a part of a schema may point to
_NOTES = frozenset(("title", "description", "default", "examples", "$schema", "$id", "$comment", *SHARED))
_OBJECT = _NOTES | {"type", "properties", "required", "additionalProperties"}
_ARRAY = _NOTES | {"type", "items", "minItems", "maxItems"}


def compact(schema: Any) -> Format:
    """In one line, with a blank after commas and colons; as the compiler does it if that is much longer."""
    try:
        form = _compact(schema, frozenset())
        if len(msgspec.json.encode(form)) > MAX_GROWTH + 2 * len(msgspec.json.encode(schema)):
            return json_schema(schema)
    except RecursionError:  # nested so deep that it cannot be written, which `constrain` says
        return json_schema(schema)
    return form


def _compact(schema: Any, seen: frozenset[str]) -> Format:
    """`seen`: the references that led here; one that comes again is left to the compiler."""
    if not isinstance(schema, Mapping) or len(seen) > MAX_DEPTH:
        return json_schema(schema)
    kind, keys = schema.get("type"), schema.keys()
    closed = schema.get("additionalProperties", False) is False and kind in ("object", None)
    named = isinstance(schema.get("required", []), list)  # else the compiler says what is wrong
    if properties(schema) and keys <= _OBJECT and closed and named:
        return _object(schema, seen)
    if kind == "array" and isinstance(schema.get("items"), Mapping) and keys <= _ARRAY:
        return _array(schema, seen) or json_schema(dict(schema))
    for union in ("anyOf", "oneOf"):
        if keys <= _NOTES | {union} and isinstance(schema.get(union), list) and schema[union]:
            return either([_compact(shared(one, schema), seen) for one in schema[union]])
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref not in seen and keys <= _NOTES | {"$ref"}:
        place, _, name = ref.removeprefix("#/").partition("/")
        places = schema.get(place) if place in SHARED else None
        found = places.get(name) if isinstance(places, Mapping) else None
        if isinstance(found, Mapping):
            return _compact(shared(found, schema), seen | {ref})
    return json_schema(dict(schema))


def _object(schema: Schema, seen: frozenset[str]) -> Format:
    def value(key: str, one: Schema, before: str, after: str) -> Format:
        begin = f"{before}{msgspec.json.encode(key).decode()}: "
        inner = _compact(one, seen)
        return sequence(literal(begin), inner, *([literal(after)] if after else []))

    return sequence(literal("{"), members(schema, ", ", value), literal("}"))


def _array(schema: Schema, seen: frozenset[str]) -> Format | None:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    item = _compact(shared(schema["items"], schema), seen)
    if most is None and least in (0, 1):
        repeated = tags([tag("", item, "")], ", ")
        full = tag("[", repeated, "]")
        return full if least else either([literal("[]"), full])
    if not (isinstance(least, int) and isinstance(most, int) and 0 <= least <= most <= MAX_UNROLLED and most):
        return None
    rest: Format | None = None
    for i in reversed(range(most)):
        one = item if i == 0 else sequence(literal(", "), item)
        rest = one if rest is None else sequence(one, rest)
        if i >= least and i:
            rest = optional(rest)
    assert rest is not None, "there is one item at least"
    full = sequence(literal("["), rest, literal("]"))
    return full if least else either([literal("[]"), full])


def members(schema: Schema, separator: str, value: Value) -> Format:
    """The properties in their order, those not required where they like, parted by the separator."""
    required = required_names(schema)
    found = [(key, shared(one, schema)) for key, one in properties(schema).items()]
    first = next((i for i, (key, _) in enumerate(found) if key in required), None)
    if first is None:
        others = [optional(value(key, one, separator, "")) for key, one in found]
        starts = [sequence(value(key, one, "", ""), *others[i + 1 :]) for i, (key, one) in enumerate(found)]
        return optional(either(starts)) if starts else literal("")
    before = [optional(value(key, one, "", separator)) for key, one in found[:first]]
    after = [(key, value(key, one, separator, "")) for key, one in found[first + 1 :]]
    follows = [form if key in required else optional(form) for key, form in after]
    return sequence(*before, value(*found[first], "", ""), *follows)


def required_names(schema: Schema) -> frozenset[str]:
    found = schema.get("required")
    return frozenset(n for n in found if isinstance(n, str)) if isinstance(found, list) else frozenset()


def properties(schema: Schema) -> dict[str, Any]:
    found = schema.get("properties")
    return dict(found) if isinstance(found, Mapping) else {}


def shared(part: Any, whole: Schema) -> Any:
    """A part of a schema with what its references may point to."""
    if not isinstance(part, Mapping):
        return part
    return {**part, **{name: whole[name] for name in SHARED if name in whole}}
