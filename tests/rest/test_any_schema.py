"""Any JSON for a schema, garbage and odd ones, against the real engine: a valid instance, or a 400; and the
engine lives."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.breadth import examples
from tests.conftest import Server

IGNORED = "x-ovserve-ignored-params"
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


def ask(server: Server, schema: Any, seed: int) -> httpx.Response:
    body = {
        "model": "smollm2", "prompt": "{", "max_tokens": 25, "temperature": 1.5, "seed": seed,
        "guided_json": schema,
    }  # fmt: skip
    return httpx.post(f"{server.v3}/completions", content=json.dumps(body).encode(), timeout=60)


@pytest.mark.timeout(3600)
@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=SCHEMAS, seed=st.integers(0, 9))
def test_a_valid_instance_or_a_400(server: Server, schema: Any, seed: int) -> None:
    engine = server.engine_pid()
    answer = ask(server, schema, seed)
    assert server.engine_pid() == engine, schema
    if answer.status_code == 400:
        assert answer.json()["error"]["message"]
        return
    assert answer.status_code == 200, (schema, answer.text)
    [choice] = answer.json()["choices"]
    if choice["finish_reason"] == "length" or schema is None:  # null is absent
        return
    instance = json.loads(choice["text"])
    try:
        judge = jsonschema_rs.validator_for(schema, validate_formats=True)
    except ValueError:
        return  # no JSON schema at all, though the compiler makes something of it
    assert judge.is_valid(instance) or answer.headers.get(IGNORED), (schema, instance)
