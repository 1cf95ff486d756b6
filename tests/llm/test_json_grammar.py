"""Texts of the grammar that a schema becomes, judged by a validator of JSON schema; and that none is missing."""

from __future__ import annotations

import datetime
import json
import math
import random
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ovserve.errors import InvalidArgument
from ovserve.llm.grammar.constraint import ebnf
from ovserve.llm.grammar.formats import EXPRESSIONS
from ovserve.llm.grammar.writer import Written, compact, write
from tests.breadth import examples
from tests.bytewise import Language, instances
from tests.ebnf import Sampler
from tests.odd_schemas import SCHEMAS


def check(schema: Any, count: int = 60) -> Written:
    """Every text is an instance, if nothing is reported."""
    written = write(schema)
    judge = jsonschema_rs.validator_for(schema, validate_formats=True)
    sampler = Sampler(written.grammar)
    seen = 0
    for _ in range(count):
        if (text := sampler.text()) is not None:
            seen += 1
            assert judge.is_valid(json.loads(text)) or written.unenforced, (schema, text)
    assert seen
    return written


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(SCHEMAS)
@example({"oneOf": [{}, {}]})
@example({"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "integer"}})
def test_any_schema(schema: Any) -> None:
    try:
        write(schema)
        jsonschema_rs.validator_for(schema)
    except (InvalidArgument, ValueError):
        return
    check(schema, 10)


# ---- numbers


LIMITS = st.one_of(
    st.integers(-20, 20),
    st.floats(-3, 3).map(lambda x: round(x, 3)),
    st.floats(-1000, 1000),
    st.sampled_from(
        [0.30000000000000004, 1e-20, 1e20, 1e300, -1.7976931348623157e308, 5e-324, 2**53 + 1, -(2**63)]
    ),
)


@settings(max_examples=examples(100), deadline=None)
@given(
    kind=st.sampled_from(["number", "integer"]),
    low=st.none() | st.tuples(st.sampled_from(["minimum", "exclusiveMinimum"]), LIMITS),
    high=st.none() | st.tuples(st.sampled_from(["maximum", "exclusiveMaximum"]), LIMITS),
    multiple=st.none() | st.sampled_from([1, 2, 3, 7, 10, 12, 0.5, 0.25, 0.1, 0.01, 0.3, 1.5]),
    seed=st.integers(0, 1000),
)
@example("number", ("exclusiveMinimum", 0.1), ("maximum", 0.2), None, 0)
@example("number", ("minimum", 0.5), ("maximum", 2.5), None, 0)
@example("number", ("minimum", 0), ("maximum", 1), None, 0)
@example("number", ("exclusiveMinimum", 0), None, None, 0)
@example("integer", ("minimum", -5), ("maximum", 120), None, 0)
@example("number", ("minimum", 0), ("maximum", 1.7976931348623157e308), None, 0)
@example("number", None, ("exclusiveMaximum", 0.30000000000000004), None, 24)
@example("number", ("minimum", 2**53 + 1), ("maximum", 2**53 + 1), None, 0)
@example("number", ("minimum", 2**53 + 1), None, None, 0)
@example("number", None, ("maximum", 2**53 + 3), None, 0)
@example("integer", ("minimum", 2**53 + 1), ("maximum", 2**53 + 1), None, 0)
def test_numbers_are_within_bounds_and_none_is_missing(
    kind: str, low: Any, high: Any, multiple: Any, seed: int
) -> None:
    schema = {"type": kind, **dict([low] if low else []), **dict([high] if high else [])}
    if multiple is not None:
        schema["multipleOf"] = multiple
    judge = jsonschema_rs.validator_for(schema)
    chance = random.Random(seed)
    values = [round(chance.uniform(-3, 3), chance.randint(0, 5)) for _ in range(40)]
    values += [chance.randint(-30, 30) for _ in range(20)] + [
        chance.randint(-(10**6), 10**6) for _ in range(20)
    ]
    texts = [
        f"{value:.6f}".rstrip("0").rstrip(".") if kind == "number" else str(int(value)) for value in values
    ]
    good = [text for text in texts if text != "-0" and judge.is_valid(json.loads(text))]
    # The grammar leaves out the double next to a bound, which a reader may round to the other side of it.
    limits = [limit for _, limit in filter(None, (low, high))]
    good = [t for t in good if not any(0 < abs(float(t) - limit) <= math.ulp(limit) for limit in limits)]
    try:
        written = check(schema)
    except InvalidArgument:
        assert not good, schema
        return
    if not written.unenforced:
        found = Language(ebnf(written.grammar))
        assert not [text for text in good if text not in found], schema


def test_a_bound_that_cannot_be_written_is_reported() -> None:
    assert write({"type": "number", "minimum": 1e50}).unenforced == ["minimum"]
    assert write({"type": "number", "exclusiveMinimum": 0, "maximum": 1e-60}).unenforced


# ---- formats and patterns


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_each_format(name: str) -> None:
    assert not check({"type": "string", "format": name}, examples(100)).unenforced


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("ipv4", ["10.0.0.1", "255.255.255.255", "0.0.0.0"]),
        ("ipv6", ["::", "::1", "fe80::1", "1:2:3:4:5:6:7:8", "1::8", "1:2:3:4:5:6:7::"]),
        ("date", ["2024-02-29", "2000-02-29", "1999-12-31"]),
        ("time", ["08:30:00Z", "23:59:59.5+01:00"]),
        ("date-time", ["1994-05-17T08:30:00Z"]),
        ("duration", ["P3Y6M4DT12H30M5S", "PT1H", "P2W"]),
        ("email", ["joe.bloggs@example.com"]),
        ("hostname", ["localhost", "www.example-site.org"]),
        ("uuid", ["123e4567-e89b-12d3-a456-426614174000"]),
        ("uri", ["https://example.com/a?b=c#d", "mailto:a@example.com", "urn:isbn:12"]),
        ("uri-reference", ["/a/b", "a?b", "#c"]),
        ("json-pointer", ["", "/a~1b/0"]),
        ("relative-json-pointer", ["0#", "1/a"]),
    ],
)
def test_a_format_admits_what_people_write(name: str, texts: list[str]) -> None:
    found = instances({"type": "string", "format": name})
    assert [text for text in texts if json.dumps(text) not in found] == []


def test_a_format_rejects_what_looks_like_it() -> None:
    for name, text in (
        ("ipv4", "46.095.54.55"),
        ("ipv4", "256.1.1.1"),
        ("time", "24:00:00Z"),
    ):
        assert json.dumps(text) not in instances({"type": "string", "format": name})


def test_dates_are_those_of_a_calendar() -> None:
    """Also without the year 0, which clients in Python and other languages cannot read."""
    found = instances({"type": "string", "format": "date"})
    for year in (0, 1, 4, 10, 96, 99, 100, 104, 400, 999, 1000, 1900, 2000, 2023, 2024, 9996, 9999):
        for day in ("01-01", "02-28", "02-29", "02-30", "04-30", "04-31", "12-31", "13-01"):
            text = f"{year:04}-{day}"
            try:
                is_date = bool(datetime.date.fromisoformat(text))
            except ValueError:
                is_date = False
            assert (json.dumps(text) in found) == is_date, text


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        ("^[A-Z]{3}-[0-9]{4}$", ["ABC-1234"], ["ABC-123", "xABC-1234"]),
        ("^(a|b+)$", ["a", "bbb"], ["ab"]),
        ('^[^a]"?$', ['"', "\n", "\\", 'x"', "\x01"], ["a"]),
        ("^(?:ab){2,}?$", ["abab", "ababab"], ["ab"]),
        (r"^\d+\.\w\s$", ["12.a ", "1.a\xa0"], ["12xa "]),
        (r"\u00e9[\]\-x]", ["\u00e9]", "a\u00e9-b"], ["\u00e9a"]),
        ("", ["", "a"], []),
    ],
)
def test_patterns(pattern: str, good: list[str], bad: list[str]) -> None:
    schema = {"type": "string", "pattern": pattern}
    check(schema)
    found = instances(schema)
    assert [text for text in good if json.dumps(text, ensure_ascii=False) not in found] == []
    assert [text for text in bad if json.dumps(text, ensure_ascii=False) in found] == []


# ---- objects


def test_required_names_without_a_schema_take_that_of_other_properties() -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a", "b"]}
    assert '\\"b\\": ' in check(schema).grammar
    schema["additionalProperties"] = {"type": "boolean"}
    assert '{"a": 1, "b": ' in Sampler(check(schema).grammar).text().__str__()
    with pytest.raises(InvalidArgument, match='required: .*got "b"'):
        compact({**schema, "additionalProperties": False})


OPTIONAL = {
    "type": "object",
    "properties": {name: {"const": 1} for name in "abcd"},
    "additionalProperties": False,
}


@pytest.mark.parametrize("required", ["", "a", "c", "bd", "abcd"])
def test_optional_properties_come_in_their_order_with_commas_between(required: str) -> None:
    schema = {**OPTIONAL, "required": list(required)}
    found = instances(schema)
    for chosen in range(16):
        names = [name for i, name in enumerate("abcd") if chosen >> i & 1]
        text = json.dumps(dict.fromkeys(names, 1))
        assert (text in found) == (set(required) <= set(names)), text
    assert '{"b": 1, "a": 1}' not in found


def test_the_number_of_properties() -> None:
    schema = {**OPTIONAL, "minProperties": 2, "maxProperties": 3}
    assert not check(schema).unenforced
    assert [n for n in range(5) if json.dumps(dict.fromkeys("abcd"[:n], 1)) in instances(schema)] == [2, 3]


def test_another_key_is_none_of_the_named_ones() -> None:
    schema = {"properties": {"ab": {"const": "x"}}, "additionalProperties": {"const": 1}}
    check(schema)
    grammar = write(schema).grammar
    assert not any('"ab": 1' in (Sampler(grammar, seed).text() or "") for seed in range(300))


def test_references_and_conjunctions() -> None:
    schema = {
        "$ref": "#/$defs/a~1b",
        "unevaluatedProperties": False,
        "$defs": {
            "a/b": {
                "allOf": [{"$ref": "#/$defs/c%25"}, {"properties": {"n": {"maximum": 3}}, "required": ["n"]}]
            },
            "c%": {
                "type": "object",
                "properties": {"n": {"type": "integer", "minimum": 2}, "m": {"type": "null"}},
            },
        },
    }
    assert not check(schema).unenforced
    found = instances(schema)
    assert '{"n": 2, "m": null}' in found
    assert [text for text in ('{"n": 4}', '{"m": null}') if text in found] == []
