"""Any JSON for a schema: odd ones, with garbage in some, and garbage alone. Used by tests/llm and tests/http."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

NAMES = st.sampled_from(["a", "b", "", "\u00e4 /~", "$ref", "type"])
GARBAGE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
KINDS = ["string", "integer", "number", "boolean", "null", "array", "object"]
COUNTS = st.integers(0, 4)
KEYWORDS: dict[str, st.SearchStrategy[Any]] = {
    "type": st.sampled_from(KINDS) | st.lists(st.sampled_from(KINDS), min_size=1, max_size=3, unique=True),
    "enum": st.lists(st.none() | st.booleans() | st.integers() | st.text(max_size=5), min_size=1, max_size=3),
    "const": st.none() | st.booleans() | st.text(max_size=5),
    "minimum": st.integers(-5, 5),
    "exclusiveMaximum": st.integers(-5, 9),
    "multipleOf": st.integers(1, 3),
    "minLength": COUNTS,
    "maxLength": COUNTS,
    "pattern": st.sampled_from(["^a{2}$", "[0-9]", "", "(", "(?=a)", "\\d+", "^\u00e9|b$", "[^\\x00]"]),
    "format": st.sampled_from(["date", "uuid", "ipv4", "email", "nonsense"]),
    "minItems": COUNTS,
    "maxItems": COUNTS,
    "uniqueItems": st.booleans(),
    "required": st.lists(NAMES, max_size=2, unique=True),
    "minProperties": COUNTS,
    "$ref": st.sampled_from(["#", "#/$defs/a", "#/$defs/none", "https://example.com/x", "#/properties/a"]),
}
INNER = ("items", "additionalProperties", "not")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
MAPS = ("properties", "$defs", "patternProperties")


@st.composite
def odd(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    """A schema of a few keywords, most of them sound, some with garbage in them."""
    schema: dict[str, Any] = {}
    for key in draw(st.lists(st.sampled_from([*KEYWORDS, *INNER, *LISTS, *MAPS, "type"]), max_size=4)):
        if draw(st.integers(0, 19)) == 0:
            schema[key] = draw(GARBAGE)
        elif key in KEYWORDS:
            schema[key] = draw(KEYWORDS[key])
        elif key in INNER:
            schema[key] = draw(inner | st.booleans())
        elif key in LISTS:
            schema[key] = draw(st.lists(inner, min_size=1, max_size=3))
        else:
            schema[key] = draw(st.dictionaries(NAMES, inner, max_size=3))
    return schema


SCHEMAS = st.recursive(odd(st.just({})), odd, max_leaves=4) | GARBAGE
