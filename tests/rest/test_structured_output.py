"""Structured output over HTTP: the real engine and model, the official client, every answer judged by a
JSON schema validator that knows formats; and a scripted engine for what must not hurt a neighbour."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import openai
import pydantic
import pytest

from tests.conftest import Server

# As docs/structured-output.md recommends against white space without end.
PENALTY = {"frequency_penalty": 0.6}
ANN = [{"role": "user", "content": "Ann is 31 and lives in Oslo with two cats. Describe her."}]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as made:
        yield made


def ask(server: Server, **fields: Any) -> httpx.Response:
    body = {"model": "smollm2", "messages": ANN, "temperature": 0, "max_tokens": 200, **PENALTY, **fields}
    return httpx.post(f"{server.v3}/chat/completions", json=body, timeout=60)


def content(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    assert choice["finish_reason"] == "stop", choice
    text: str = choice["message"]["content"]
    return text


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
    "nested": obj(person=obj(name=NAME, home=obj(city=NAME, zip={"type": "string", "pattern": "[0-9]{5}"}))),
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


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_instance_is_valid(server: Server, name: str) -> None:
    schema = SCHEMAS[name]
    jsonschema_rs.validator_for(schema, validate_formats=True).validate(EXAMPLES[name])
    format_ = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    instance = json.loads(content(ask(server, messages=hint(name), response_format=format_)))
    jsonschema_rs.validator_for(schema, validate_formats=True).validate(instance)


class Cat(pydantic.BaseModel):
    name: str = pydantic.Field(max_length=10)


class Person(pydantic.BaseModel):
    age: int = pydantic.Field(ge=0, le=120)
    cats: list[Cat] = pydantic.Field(min_length=1, max_length=2)


def test_parse_gives_typed_objects(client: openai.OpenAI) -> None:
    chat = client.chat.completions.parse(
        model="smollm2",
        messages=ANN,
        temperature=0,
        frequency_penalty=0.6,
        max_tokens=200,
        response_format=Person,  # type: ignore[arg-type]
    )
    person = chat.choices[0].message.parsed
    assert isinstance(person, Person)
    assert isinstance(person.cats[0], Cat)
    response = client.responses.parse(
        model="smollm2", input="Describe Ann.", temperature=0, max_output_tokens=300, text_format=Person
    )
    assert isinstance(response.output_parsed, Person)


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"structured_outputs": {"regex": "[A-Z][a-z]{3,7}"}}, "[A-Z][a-z]{3,7}"),
        ({"structured_outputs": {"choice": ["cats", "dogs", ""]}}, "cats|dogs|"),
        ({"guided_grammar": 'root ::= "Ann" rest\nrest ::= " " [a-z]{2,5}'}, "Ann [a-z]{2,5}"),
        ({"guided_json": {"type": "integer", "minimum": 10, "maximum": 99}}, "[1-9][0-9]"),
    ],
)  # fmt: skip
def test_the_other_spellings(server: Server, fields: dict[str, Any], pattern: str) -> None:
    assert re.fullmatch(pattern, content(ask(server, **fields)))


def test_each_of_several_choices_and_prompts_is_constrained(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model="smollm2",
        prompt=["Ann is", "Her cat is"],
        n=2,
        temperature=1.5,
        max_tokens=20,
        extra_body={"guided_regex": "[0-9]{3}"},
    )
    texts = [choice.text for choice in answer.choices]
    assert len(texts) == 4
    assert all(re.fullmatch("[0-9]{3}", text) for text in texts), texts


def test_a_stream_is_constrained_too(client: openai.OpenAI) -> None:
    chunks = client.chat.completions.create(
        model="smollm2",
        messages=hint("enum"),  # type: ignore[arg-type]
        stream=True,
        temperature=0,
        max_tokens=200,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMAS["enum"]}},
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    jsonschema_rs.validate(SCHEMAS["enum"], json.loads(text))


def test_a_cut_answer_says_so(server: Server) -> None:
    """A JSON object that has no end yet is told by its finish reason, and nobody takes it for whole."""
    answer = ask(server, response_format={"type": "json_object"}, max_tokens=6)
    [choice] = answer.json()["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith("{")
    with pytest.raises(json.JSONDecodeError):
        json.loads(choice["message"]["content"])
    body = {
        "model": "smollm2",
        "input": "Describe Ann.",
        "max_output_tokens": 6,
        "text": {"format": {"type": "regex", "pattern": "[0-9]{50}"}},
    }
    response = httpx.post(f"{server.v3}/responses", json=body, timeout=60).json()
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["text"]["format"]["pattern"] == "[0-9]{50}"


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"guided_json": {"type": "banana"}}, "guided_json", 'Unsupported type "banana"'),
    ({"guided_json": {"$ref": "#"}}, "guided_json", "no text matches it"),
    ({"guided_regex": "[a"}, "guided_regex", "Unclosed '['"),
    ({"guided_grammar": "root ::= nope"}, "guided_grammar", '"nope" is not defined'),
    ({"response_format": {"type": "sequence", "elements": []}}, "response_format", "at least one element"),
    ({"guided_regex": "a", "best_of": 2}, "guided_regex", "beam search"),
    ({"guided_regex": "a", "ignore_eos": True}, "guided_regex", "ignore_eos"),
]  # fmt: skip


def test_bad_ones_are_refused_and_a_running_neighbour_goes_on(server: Server, client: openai.OpenAI) -> None:
    alone = ask(server, max_tokens=60, frequency_penalty=0).json()["choices"][0]["message"]["content"]
    stream = client.chat.completions.create(
        model="smollm2",
        messages=ANN,
        temperature=0,
        max_tokens=60,
        stream=True,  # type: ignore[arg-type]
    )
    chunks = iter(stream)
    text = next(chunks).choices[0].delta.content or ""
    engine = server.engine_pid()
    for fields, param, says in BAD:
        answer = ask(server, frequency_penalty=0, **fields)
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert (error["param"], error["type"]) == (param, "invalid_request_error")
        assert says in error["message"]
    text += "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == alone
    assert server.engine_pid() == engine
