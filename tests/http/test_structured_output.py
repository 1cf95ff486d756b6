"""Structured output over HTTP: the real engine and model, the official client, every answer judged by a
JSON schema validator that knows formats; and a scripted engine for what must not hurt a neighbour."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema_rs
import openai
import pydantic
import pytest

from tests.conftest import Server
from tests.schemas import EXAMPLES, SCHEMAS, hint

# As docs/structured-output.md recommends against white space without end.
PENALTY = {"frequency_penalty": 0.6}
ANN = [{"role": "user", "content": "Ann is 31 and lives in Oslo with two cats. Describe her."}]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.v3, api_key="none", max_retries=0) as made:
        yield made


def ask(server: Server, **fields: Any) -> httpx.Response:
    body = {"model": "smollm2", "messages": ANN, "temperature": 0, "max_tokens": 200, **PENALTY, **fields}
    return httpx.post(f"{server.v3}/chat/completions", json=body, timeout=230)


def content(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    assert choice["finish_reason"] == "stop", choice
    text: str = choice["message"]["content"]
    return text


def as_format(name: str) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": SCHEMAS[name], "strict": True},
    }


@pytest.fixture(scope="module")
def answers(server: Server) -> dict[str, httpx.Response]:
    """By schema. All are asked at once: it is faster, and no answer may suffer from its neighbours."""
    with ThreadPoolExecutor(len(SCHEMAS)) as pool:
        found = pool.map(
            lambda name: ask(server, messages=hint(name), response_format=as_format(name)), SCHEMAS
        )
        return dict(zip(SCHEMAS, found, strict=True))


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_instance_is_valid(answers: dict[str, httpx.Response], name: str) -> None:
    judge = jsonschema_rs.validator_for(SCHEMAS[name], validate_formats=True)
    judge.validate(EXAMPLES[name])
    judge.validate(json.loads(content(answers[name])))


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
        ({"guided_regex": "[\\^a]{2}"}, "[\\^a]{2}"),
        ({"response_format": {"type": "regex", "pattern": "(?=.*[0-9])[a-z0-9]{4}"}}, "(?=.*[0-9])[a-z0-9]{4}"),
        ({"guided_json": {"type": "string", "pattern": "^[.a]{2}$", "maxLength": 9}}, '"[.a]{2}"'),
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
    response = httpx.post(f"{server.v3}/responses", json=body, timeout=230).json()
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["text"]["format"]["pattern"] == "[0-9]{50}"


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"guided_json": {"type": "banana"}}, "guided_json", 'type: expected one of object, array'),
    ({"guided_json": {"$ref": "#"}}, "guided_json", "refers to nothing but itself"),
    ({"guided_regex": "[a"}, "guided_regex", "not a regular expression: missing ]"),
    ({"guided_grammar": "root ::= nope"}, "guided_grammar", '"nope" is not defined'),
    ({"response_format": {"type": "sequence", "elements": []}}, "response_format", "at least one element"),
    ({"guided_regex": "([a-z]{1,50} ?){1,50}"}, "guided_regex", "too many states"),
    ({"response_format": {"type": "regex", "pattern": "(?<=a)b"}}, "response_format.pattern", "no text matches"),
    ({"guided_regex": "a", "best_of": 2}, "guided_regex", "beam search"),
    ({"guided_regex": "a", "ignore_eos": True}, "guided_regex", "ignore_eos"),
]  # fmt: skip


def test_bad_ones_are_refused_and_a_running_neighbour_goes_on(server: Server, client: openai.OpenAI) -> None:
    """Its pattern allows one text: other rounding in another company cannot change it."""
    whole = "Ann has two cats in Oslo. " * 20
    stream = client.chat.completions.create(
        model="smollm2",
        messages=ANN,
        temperature=0,
        max_tokens=400,
        stream=True,  # type: ignore[arg-type]
        extra_body={"guided_regex": r"(Ann has two cats in Oslo\. ){20}"},
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
    assert text == whole
    assert server.engine_pid() == engine


NOT_HELD = {"type": "object", "properties": {"n": {"type": "integer", "not": {"multipleOf": 3}}}}


def called(path: str, schema: dict[str, Any], *, strict: bool, required: bool = False) -> dict[str, Any]:
    """Return a body in the form of an endpoint, with a function of this schema."""
    function: dict[str, Any] = {"name": "f", "parameters": schema, "strict": strict}
    body: dict[str, Any] = {"model": "smollm2", "max_tokens": 8}
    tool: dict[str, Any]
    if path == "messages":
        tool = {"name": "f", "input_schema": schema, "strict": strict}
        return {
            **body,
            "messages": ANN,
            "tools": [tool],
            **({"tool_choice": {"type": "any"}} if required else {}),
        }
    choice: dict[str, Any] = {"tool_choice": "required"} if required else {}
    if path == "responses":
        tool = {"type": "function", **function}
        return {"model": "smollm2", "max_output_tokens": 16, "input": ANN, "tools": [tool], **choice}
    return {**body, "messages": ANN, "tools": [{"type": "function", "function": function}], **choice}


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
def test_a_strict_function_may_ask_only_for_what_is_enforced(server: Server, path: str) -> None:
    url = f"{server.v3}/{path}"
    for required in (True, False):
        answer = httpx.post(url, json=called(path, NOT_HELD, strict=True, required=required), timeout=230)
        assert answer.status_code == 400, answer.text
        assert "parameters of f: with strict: true" in answer.text
        assert "properties.n.not" in answer.text
    assert httpx.post(url, json=called(path, NOT_HELD, strict=False), timeout=230).status_code == 200


def test_keywords_that_are_null_in_a_function(server: Server) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": None}
    body = called("chat/completions", schema, strict=False, required=True)
    body |= {"max_tokens": 40, "parallel_tool_calls": False}
    answer = httpx.post(f"{server.v3}/chat/completions", json=body, timeout=230)
    assert answer.status_code == 200, answer.text
    [call] = answer.json()["choices"][0]["message"]["tool_calls"]
    assert jsonschema_rs.is_valid({**schema, "required": []}, json.loads(call["function"]["arguments"]))


def as_strict(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


def test_unevaluated_properties_with_all_of(server: Server) -> None:
    part = {"properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    schema: dict[str, Any] = {"type": "object", "allOf": [part], "unevaluatedProperties": False}
    assert json.loads(content(ask(server, response_format=as_strict(schema)))).keys() == {"a"}


def test_a_required_name_that_no_key_may_have(server: Server) -> None:
    keys = {"propertyNames": {"pattern": "^[a-z]+$"}}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"Bad": {"type": "boolean"}},
        "required": ["Bad"],
        **keys,
    }
    answer = ask(server, response_format=as_strict(schema))
    assert answer.status_code == 400
    assert "no value is valid" in answer.text


def test_a_map_of_enum_keys_has_each_once(server: Server) -> None:
    schema = {
        "type": "object",
        "propertyNames": {"type": "string", "enum": ["name", "city"]},
        "additionalProperties": {"type": "string", "maxLength": 20},
        "required": ["name", "city"],
    }
    pairs = json.loads(content(ask(server, response_format=as_strict(schema))), object_pairs_hook=list)
    assert [name for name, _ in pairs] == ["name", "city"]


# ---- the beginning of an answer in a format

CITY = {
    "type": "object",
    "properties": {name: {"type": "string", "maxLength": 20} for name in ("city", "country")},
    "required": ["city", "country"],
    "additionalProperties": False,
}
BEGUN = {"start": "{", "key": '{"city":', "string": '{"city": "Pa', "no spaces": '{"city":"Pa',
         "lines": '{\n  "city" : "Paris" ,\n', "escape": '  {"city": "Pari\\u0073", "coun',
         "whole": '{"city": "Paris", "country": "France"}'}  # fmt: skip


def continued(server: Server, style: str, begun: str) -> tuple[httpx.Response, str]:
    turns = [
        {"role": "user", "content": "The capital of France as JSON with city and country"},
        {"role": "assistant", "content": begun},
    ]
    body = {"model": "smollm2", "messages": turns, "temperature": 0, "max_tokens": 60}
    if style == "chat":
        form = {"type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": CITY}}
        more = {"continue_final_message": True, "response_format": form}
        answer = httpx.post(f"{server.v3}/chat/completions", json=body | more, timeout=230)
        return answer, answer.json()["choices"][0]["message"]["content"] if answer.is_success else ""
    if style == "messages":
        more = {"output_config": {"format": {"type": "json_schema", "schema": CITY}}}
        answer = httpx.post(f"{server.url}/v1/messages", json=body | more, timeout=230)
        return answer, "".join(block["text"] for block in answer.json().get("content", ()))
    more = {"format": CITY, "stream": False, "options": {"temperature": 0, "num_predict": 60}}
    answer = httpx.post(f"{server.url}/api/chat", json=body | more, timeout=230)
    return answer, answer.json()["message"]["content"] if answer.is_success else ""


@pytest.mark.parametrize("style", ["chat", "messages", "ollama"])
def test_an_answer_in_a_format_goes_on_where_the_client_left_it(
    server: Server, style: str, subtests: pytest.Subtests
) -> None:
    for name, begun in BEGUN.items():
        with subtests.test(name):
            answer, text = continued(server, style, begun)
            assert answer.status_code == 200, answer.text
            value = json.loads(begun + text)
            assert list(value) == ["city", "country"]
            assert name in ("start", "key") or value["city"].startswith("Pa")
            assert (text == "") is (name == "whole")
    answer, _ = continued(server, style, "Sure: {")
    assert answer.status_code == 400
    assert "begins with the last message, 'Sure: {'" in answer.text
