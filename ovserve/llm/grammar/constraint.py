"""A constraint on an answer's text, and the parts from which it is built.

A constraint is one *format* of XGrammar's structural tags, which the engine's library takes as JSON text:
JSON schemas, regular expressions, EBNF, literal text, and sequences and choices of those. So only
one string crosses the process border and needs validation (engine/client/grammars.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from ovserve.errors import InvalidArgument
from ovserve.llm.grammar.rules import MAX_BYTES
from ovserve.llm.grammar.text import ESCAPE, PLAIN

Format = dict[str, Any]

# Formats that the compiler supports; only the compiler reads those with members.
PLAIN_TYPES = (
    "const_string",
    "json_schema",
    "any_text",
    "sequence",
    "or",
    "tag",
    "triggered_tags",
    "tags_with_separator",
    "qwen_xml_parameter",
    "grammar",
    "regex",
)

JSON_MARK = "# JSON\n"  # a comment before the EBNF of JSON, in which the paged engine keeps keys apart

# The rest of a string is a rule of its own. With a star over nearly all characters instead, a mask of 151,936
# tokens takes 100 ms and not 0.1.
JSON_OBJECT = rf"""{JSON_MARK}root ::= object
object ::= "{{" ws (pair ("," ws pair)*)? "}}"
pair ::= string ":" ws value
value ::= (object | array | string | number | "true" | "false" | "null") ws
array ::= "[" ws (value ("," ws value)*)? "]"
string ::= "\"" rest
rest ::= "\"" | {PLAIN} rest | "\\" escape rest
escape ::= {ESCAPE}
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9]+)?
ws ::= " "? ("\n" [ \t]{{0,24}})?
"""


class Constraint(msgspec.Struct, frozen=True):
    format: str  # JSON text of one structural-tag format
    param: str  # the field of the request that asked for it, for errors
    begun: str = ""  # what the prompt has of the text already


def digest(text: str) -> bytes:
    """Return the key of a grammar in the tables of validated and compiled ones."""
    return hashlib.sha256(text.encode()).digest()


def structural_tag(form: str) -> str:
    """Return the library's form of a constraint's format."""
    return f'{{"type":"structural_tag","format":{form}}}'


def constrain(form: Format, param: str) -> Constraint:
    """Return the constraint. Raises InvalidArgument if it is too large, or not valid JSON."""
    try:
        text = msgspec.json.encode(form)
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument.at(param, f"cannot be written as JSON: {error}") from None
    if len(text) > MAX_BYTES:
        raise InvalidArgument.at(param, f"{len(text)} bytes of grammar are over the limit of {MAX_BYTES}")
    return Constraint(text.decode(), param)


def within_limit(forms: Iterable[Format], param: str) -> list[Format]:
    """Return all of them. Raises InvalidArgument as soon as their total text is too large."""
    accepted: list[Format] = []
    size = 0
    for form in forms:
        size += len(msgspec.json.encode(form))
        if size > MAX_BYTES:
            raise InvalidArgument.at(
                param, f"{len(accepted) + 1} parts make more than {MAX_BYTES} bytes of grammar, the limit"
            )
        accepted.append(form)
    return accepted


def json_schema(schema: dict[str, Any] | bool) -> Format:
    return {"type": "json_schema", "json_schema": schema}


def json_object() -> Format:
    """Return the format of any JSON object. It is not a schema, for which the compiler allows endless white
    space."""
    return ebnf(JSON_OBJECT)


def regex(pattern: str) -> Format:
    """Return the format of a text that matches as a whole."""
    return {"type": "regex", "pattern": pattern}


def ebnf(grammar: str) -> Format:
    """Return the format of a GBNF grammar in XGrammar's form; the rule `root` is the text."""
    return {"type": "grammar", "grammar": grammar}


def literal(text: str) -> Format:
    return {"type": "const_string", "value": text} if text else ebnf('root ::= ""')


def any_text(without: Iterable[str] = ()) -> Format:
    """Return the format of free text, without the texts of `without`.

    It is allowed only at the end of a sequence, or in a tag whose end terminates it.
    """
    excluded = list(without)
    return {"type": "any_text", "excludes": excluded} if excluded else {"type": "any_text"}


def sequence(*elements: Format) -> Format:
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": list(elements)}


def either(elements: Iterable[Format]) -> Format:
    """Return a choice of bounded elements only, or of unbounded ones only (with free text or repeated tags at
    the end)."""
    options = list(elements)
    return options[0] if len(options) == 1 else {"type": "or", "elements": options}


def optional(element: Format) -> Format:
    return either([element, literal("")])


def tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def triggered(triggers: Iterable[str], elements: Iterable[Format], *, only_one: bool) -> Format:
    """Return the format of free text, in which a trigger must begin one of the tags. Each tag begins with a
    trigger."""
    return {
        "type": "triggered_tags",
        "triggers": list(triggers),
        "tags": list(elements),
        "at_least_one": False,
        "stop_after_first": only_one,
    }


def tags(elements: Iterable[Format], separator: str, *, only_one: bool = False) -> Format:
    """Return the format of one or more of the tags, with only the separator between them."""
    return {
        "type": "tags_with_separator",
        "tags": list(elements),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": only_one,
    }
