"""The fields that constrain an answer's text, in OpenAI's and vLLM's spelling; shared by all endpoints.

`response_format` (or what the API style has in its place, see `SamplingFields.formats`),
`structured_outputs`, the older `guided_*`, and the names of SGLang and llama.cpp (`FIELDS`): each gives one
format of llm/grammar/constraint.py, and a request may have one of them. What a schema asks beyond the
compiler is rejected with `strict`, otherwise reported like an unknown field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from ovserve.api.openai.operation import doc
from ovserve.errors import InvalidArgument
from ovserve.llm.grammar.conjunction import show
from ovserve.llm.grammar.constraint import (
    PLAIN_TYPES,
    Constraint,
    Format,
    constrain,
    ebnf,
    either,
    json_object,
    json_schema,
    literal,
)
from ovserve.llm.grammar.whole_text import regex, without_regex
from ovserve.llm.grammar.writer import strictly, write

MAX_CHOICES = 4096
IDLE = ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern")
WRAPPER = frozenset(("type", "name", "description", "strict", "schema"))
MEMBERS = {"text": {"type"}, "json_object": WRAPPER, "json_schema": WRAPPER | {"json_schema"}}  # by type

Choices = Annotated[list[str], Meta(min_length=1, max_length=MAX_CHOICES)]


class StructuredOutputs(msgspec.Struct):
    json: Annotated[str | dict[str, Any] | None, doc("a JSON schema, or its text")] = None
    regex: Annotated[str | None, doc("the whole answer matches it")] = None
    choice: Annotated[Choices | None, doc("the answer is one of these texts")] = None
    grammar: Annotated[str | None, doc("EBNF; the rule root is the answer")] = None
    json_object: Annotated[bool | None, doc("true: any JSON object")] = None
    structural_tag: Annotated[
        str | dict[str, Any] | None, doc("a structural tag of XGrammar, or its JSON text")
    ] = None
    disable_any_whitespace: Annotated[bool | None, doc("ignored")] = None
    disable_additional_properties: Annotated[bool | None, doc("ignored")] = None
    whitespace_pattern: Annotated[str | None, doc("ignored")] = None


class AnswerFormat(NamedTuple):
    constraint: Constraint | None
    unenforced: list[str]


def read_constraint(
    formats: Sequence[tuple[str, dict[str, Any] | None]],
    options: StructuredOutputs | None,
    values: Mapping[str, Any],
) -> AnswerFormat:
    """Read the fields of a request that constrain the answer's text. The schema is walked once.

    `formats` are fields for a format in OpenAI's form, `values` those of FIELDS. Raises InvalidArgument
    naming field and value.
    """
    constraints = list(_constraints(formats, options, values))
    unused = [f"structured_outputs.{name}" for name in IDLE if options and getattr(options, name)]
    if len(constraints) > 1:
        first, second = constraints[0][0], constraints[1][0]
        raise InvalidArgument.at(
            second, f"an answer has one constraint at most, and there is {first} already"
        )
    unused += [name for field in formats for name in _unread(*field)]
    if not constraints:
        return AnswerFormat(None, unused)
    where, form = constraints[0]
    if form.get("type") == "json_schema":
        schema = form["json_schema"]
        strict = _is_strict(dict(formats).get(where), where)
        result = strictly(schema, where) if strict else write(schema, what=where, exact=False)
        unused += [f"{where}:{path}" for path in (*result.unenforced, *result.noted)]
        form = ebnf(result.grammar)
    return AnswerFormat(constrain(form, where), unused)


def _unread(where: str, value: dict[str, Any] | None) -> Iterator[str]:
    """Yield the members of a format in OpenAI's form that nothing reads and that ask for something."""
    form = value if value and value.get("type") in MEMBERS else {}
    yield from (f"{where}.{name}" for name in form if name not in MEMBERS[form["type"]] and form[name])
    inner = form.get("json_schema")
    if form.get("type") == "json_schema" and isinstance(inner, dict) and "schema" in inner:
        yield from (f"{where}.json_schema.{name}" for name in inner if name not in WRAPPER and inner[name])


def _constraints(
    formats: Sequence[tuple[str, dict[str, Any] | None]],
    options: StructuredOutputs | None,
    values: Mapping[str, Any],
) -> Iterator[tuple[str, Format]]:
    """Every constraint of the request: where it stands, and its format."""
    for where, value in formats:
        if value is not None and (form := _response_format(value, where)) is not None:
            yield where, form
    if options is not None:
        yield from _structured_outputs(options)
    for where, format_of in FIELDS.items():
        value = values[where]
        if value is not None and (where, value) != ("grammar", ""):  # llama.cpp's default
            yield where, format_of(value, where)


def _structured_outputs(options: StructuredOutputs) -> Iterator[tuple[str, Format]]:
    at = "structured_outputs"
    values = {name: getattr(options, name) for name in STRUCTURED}
    present = {name: value for name, value in values.items() if value is not None and value is not False}
    if not present:
        raise InvalidArgument.at(at, f"expected one of {', '.join(STRUCTURED)}, got none")
    # All are read first: what is wrong with one comes before what is wrong with two.
    yield from [(f"{at}.{name}", STRUCTURED[name](value, f"{at}.{name}")) for name, value in present.items()]


def _response_format(value: dict[str, Any], where: str) -> Format | None:
    type_ = value.get("type")
    if type_ == "text":
        return None
    if type_ == "json_object":
        if value.get("schema") is not None:  # llama.cpp's way to say json_schema
            return json_schema(_schema(value["schema"], f"{where}.schema"))
        return json_object()
    if type_ == "json_schema":
        return json_schema(_openai_schema(value, where))
    if type_ == "structural_tag":
        return _structural_tag(value, where)
    if type_ == "regex":
        return _regex(value.get("pattern"), f"{where}.pattern")
    if type_ == "grammar":
        return _grammar(value.get("grammar"), f"{where}.grammar")
    if type_ in PLAIN_TYPES:
        form: Format = without_regex(value, where)
        return form
    types = ", ".join(("text", "json_object", "structural_tag", *PLAIN_TYPES))
    raise InvalidArgument.at(f"{where}.type", f"expected one of {types}, got {show(type_)}")


def _openai_schema(value: dict[str, Any], where: str) -> dict[str, Any] | bool:
    """Chat nests the schema, responses does not, and XGrammar puts it right under `json_schema`."""
    if "schema" in value:
        return _schema(value["schema"], f"{where}.schema")
    inner = value.get("json_schema")
    if isinstance(inner, dict) and "schema" in inner:
        return _schema(inner["schema"], f"{where}.json_schema.schema")
    is_wrapper = isinstance(inner, dict) and inner.keys() <= WRAPPER - {"type", "schema"}
    if inner is None or (is_wrapper and inner):
        raise InvalidArgument.at(
            f"{where}.schema" if inner is None and where == "text.format" else f"{where}.json_schema.schema",
            "required, but missing",
        )
    return _schema(inner, f"{where}.json_schema")


def _is_strict(value: dict[str, Any] | None, where: str) -> bool:
    if value is None:
        return False
    inner = value.get("json_schema")
    for strict, at in (
        (value.get("strict"), f"{where}.strict"),
        (inner.get("strict") if isinstance(inner, dict) else None, f"{where}.json_schema.strict"),
    ):
        if strict is not None and not isinstance(strict, bool):
            raise InvalidArgument.at(at, f"expected a boolean, got {show(strict)}")
        if strict:
            return True
    return False


def _schema(value: Any, where: str) -> dict[str, Any] | bool:
    if isinstance(value, bool):
        return value
    return _object(value, where)


def _object(value: Any, where: str) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidArgument.at(where, f"not JSON: {error}, got {show(value)}") from None
    if not isinstance(value, dict):
        raise InvalidArgument.at(where, f"expected an object, got {show(value)}")
    return value


def _regex(value: Any, where: str) -> Format:
    return regex(_text(value, where), where)


def _grammar(value: Any, where: str) -> Format:
    return ebnf(_text(value, where))


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidArgument.at(where, f"expected a non-empty string, got {show(value)}")
    return value


def _choice(texts: list[str], where: str) -> Format:
    return either(literal(text) for text in texts)


def _json(value: Any, where: str) -> Format:
    return json_schema(_schema(value, where))


STRUCTURED: dict[str, Callable[[Any, str], Format]] = {
    "json": _json,
    "regex": _regex,
    "choice": _choice,
    "grammar": _grammar,
    "json_object": lambda value, where: json_object(),
    "structural_tag": lambda value, where: _structural_tag(_object(value, where), where),
}
FIELDS: dict[str, Callable[[Any, str], Format]] = {
    "guided_json": _json,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _grammar,
    "json_schema": _json,
    "regex": _regex,
    "ebnf": _grammar,
    "grammar": _grammar,
}


def _structural_tag(value: dict[str, Any], where: str) -> Format:
    """Either form: `format`, or the older `structures` with `triggers`."""
    if value.get("type", "structural_tag") != "structural_tag":
        raise InvalidArgument.at(f"{where}.type", f"expected structural_tag, got {show(value['type'])}")
    if "format" in value:
        form: Format = without_regex(_object(value["format"], f"{where}.format"), f"{where}.format")
        return form
    structures, triggers = value.get("structures"), value.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list):
        raise InvalidArgument.at(
            where, f"expected format, or structures and triggers, got {', '.join(value) or 'nothing'}"
        )
    tags = []
    for i, one in enumerate(structures):
        at = f"{where}.structures[{i}]"
        one = _object(one, at)
        schema = _schema(one.get("schema"), f"{at}.schema")
        tags.append({"begin": one.get("begin"), "content": json_schema(schema), "end": one.get("end")})
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}
