"""Which fields give which constraint, the same in every endpoint; and each refusal by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ovserve.api.openai import ENDPOINTS
from ovserve.errors import InvalidArgument
from ovserve.llm.chat_template import ChatTemplate
from ovserve.llm.grammar.constraint import Constraint, json_object
from ovserve.llm.grammar.rules import MAX_BYTES
from ovserve.llm.grammar.writer import compact
from ovserve.llm.model import ModelContext

MODEL = ModelContext(template=ChatTemplate("{{ messages[0].content }}"))
SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "null"}}}
BODIES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "completions": {"prompt": "hi"},
    "responses": {"input": "hi"},
}
REGEX = {"type": "regex", "pattern": "a+"}
HELD = {"type": "grammar", "grammar": "root ::= [a]+\n"}


def sent(endpoint: str = "chat/completions", **fields: Any) -> tuple[Constraint | None, tuple[str, ...]]:
    handler = ENDPOINTS[endpoint]
    body = json.dumps({"model": "m", **BODIES[endpoint], **fields}).encode()
    request = handler.to_request(handler.decode(body), MODEL)
    return request.sampling.constraint, request.presentation.ignored_params


def schema_form(schema: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": schema}


def in_one_line(schema: Any) -> dict[str, Any]:
    return compact(schema)


OBJECT = json_object()

FORMS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object"}}, OBJECT, "response_format"),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, in_one_line(SCHEMA), "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
        in_one_line(SCHEMA),
        "response_format",
    ),
    ({"response_format": {"type": "json_schema", "json_schema": SCHEMA}}, in_one_line(SCHEMA), "response_format"),
    ({"response_format": {"type": "json_schema", "schema": True}}, in_one_line(True), "response_format"),
    ({"response_format": {"type": "structural_tag", "format": REGEX}}, HELD, "response_format"),
    (
        {
            "response_format": {
                "type": "structural_tag",
                "structures": [{"begin": "<a>", "schema": SCHEMA, "end": "</a>"}],
                "triggers": ["<a"],
            }
        },
        {
            "type": "triggered_tags",
            "triggers": ["<a"],
            "tags": [{"begin": "<a>", "content": schema_form(SCHEMA), "end": "</a>"}],
        },
        "response_format",
    ),
    ({"response_format": REGEX}, HELD, "response_format"),
    ({"response_format": {"type": "or", "elements": [REGEX]}}, {"type": "or", "elements": [HELD]}, "response_format"),
    ({"structured_outputs": {"json": SCHEMA}}, in_one_line(SCHEMA), "structured_outputs.json"),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, in_one_line(SCHEMA), "structured_outputs.json"),
    ({"structured_outputs": {"json_object": True}}, OBJECT, "structured_outputs.json_object"),
    ({"structured_outputs": {"regex": "a+"}}, HELD, "structured_outputs.regex"),
    (
        {"structured_outputs": {"structural_tag": json.dumps({"type": "structural_tag", "format": REGEX})}},
        HELD,
        "structured_outputs.structural_tag",
    ),
    ({"guided_json": SCHEMA}, in_one_line(SCHEMA), "guided_json"),
    ({"guided_regex": "a+"}, HELD, "guided_regex"),
    (
        {"guided_choice": ["a", "b"]},
        {"type": "or", "elements": [{"type": "const_string", "value": "a"}, {"type": "const_string", "value": "b"}]},
        "guided_choice",
    ),
    *[
        ({name: 'root ::= "a"'}, {"type": "grammar", "grammar": 'root ::= "a"'}, name)
        for name in ("guided_grammar", "ebnf", "grammar")
    ],
    ({"json_schema": SCHEMA}, in_one_line(SCHEMA), "json_schema"),
    ({"json_schema": json.dumps(SCHEMA)}, in_one_line(SCHEMA), "json_schema"),
    ({"regex": "a+"}, HELD, "regex"),
]  # fmt: skip


@pytest.mark.parametrize("endpoint", BODIES)
def test_each_spelling(endpoint: str, subtests: pytest.Subtests) -> None:
    for fields, form, param in FORMS:
        with subtests.test(json.dumps(fields)):
            constraint, ignored = sent(endpoint, **fields)
            assert constraint is not None
            assert json.loads(constraint.format) == form
            assert constraint.param == param
            assert ignored == ()


def test_a_schema_right_under_json_schema_may_be_short() -> None:
    for schema in ({"type": "string"}, {"type": "string", "description": "d"}):
        constraint, ignored = sent(response_format={"type": "json_schema", "json_schema": schema})
        assert (constraint is not None, ignored) == (True, ())


def test_the_order_of_properties_is_kept() -> None:
    constraint, _ = sent(guided_json=SCHEMA)
    assert constraint is not None
    assert constraint.format.index('b\\\\\\":') < constraint.format.index('a\\\\\\":')


@pytest.mark.parametrize("endpoint", BODIES)
def test_none_asked(endpoint: str) -> None:
    for fields in (
        {},
        {"response_format": {"type": "text"}},
        {"response_format": None, "guided_json": None},
        {"grammar": ""},
    ):
        assert sent(endpoint, **fields) == (None, ())


def test_the_format_of_responses() -> None:
    for format_ in ({"type": "json_schema", "name": "x", "schema": SCHEMA}, {"type": "json_object"}):
        constraint, _ = sent("responses", text={"format": format_})
        assert constraint is not None
        assert constraint.param == "text.format"
    assert sent("responses", text={"format": {"type": "text"}})[0] is None


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": "json"}, "response_format", '"json"'),
    ({"response_format": {}}, "response_format.type", "null"),
    ({"response_format": {"type": "banana"}}, "response_format.type", '"banana"'),
    ({"response_format": {"type": [], "x": 1}}, "response_format.type", "[]"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema", "missing"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema", "missing"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": [1]}}}, "response_format.json_schema.schema", "[1]"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": 1}}}, "response_format.json_schema.strict", "got 1"),
    ({"response_format": {"type": "regex"}}, "response_format.pattern", "null"),
    ({"response_format": {"type": "grammar", "grammar": ""}}, "response_format.grammar", '""'),
    ({"response_format": {"type": "structural_tag"}}, "response_format", "format"),
    ({"structured_outputs": {}}, "structured_outputs", "none"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not JSON"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "[]"),
    ({"structured_outputs": {"regex": 7}}, "structured_outputs.regex", "7"),
    ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "structured_outputs.grammar", "structured_outputs.regex"),
    ({"guided_json": "[1]"}, "guided_json", "[1]"),
    ({"guided_choice": "a"}, "guided_choice", '"a"'),
    ({"guided_choice": [1]}, "guided_choice[0]", "1"),
    ({"guided_regex": ""}, "guided_regex", '""'),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "response_format"),
    ({"regex": "a", "grammar": 'root ::= "b"'}, "grammar", "regex"),
    ({"ebnf": 5}, "ebnf", "5"),
    ({"guided_regex": "a" * MAX_BYTES}, "guided_regex", "400000 steps"),
]  # fmt: skip


@pytest.mark.parametrize("endpoint", BODIES)
def test_refusals_name_field_and_value(endpoint: str, subtests: pytest.Subtests) -> None:
    for fields, param, says in REFUSALS:
        with subtests.test(json.dumps(fields)[:80]):
            with pytest.raises(InvalidArgument) as caught:
                sent(endpoint, **fields)
            assert caught.value.param == param
            assert says in str(caught.value)


def test_members_of_a_format_that_nothing_reads_are_reported() -> None:
    inner = {"name": "x", "schema": {"type": "null"}, "strict": True, "foo": 1, "bar": None}
    for format_, unread in (
        ({"type": "json_schema", "json_schema": inner, "zip": 2}, ("json_schema.foo", "zip")),
        ({"type": "json_object", "json_schema": inner}, ("json_schema",)),
        ({"type": "text", "schema": {}}, ()),
    ):
        assert sent(response_format=format_)[1] == tuple(f"response_format.{name}" for name in unread)


def test_what_is_not_enforced_is_reported_or_refused() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "not": {"multipleOf": 3}}}}
    format_: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    assert sent(response_format=format_)[1] == ("response_format:properties.n.not",)
    format_["json_schema"]["strict"] = True
    with pytest.raises(InvalidArgument, match="properties.n.not") as caught:
        sent(response_format=format_)
    assert caught.value.param == "response_format"
    assert sent(structured_outputs={"regex": "a", "disable_any_whitespace": True})[1] == (
        "structured_outputs.disable_any_whitespace",
    )
