"""Strings by `format`, `pattern` or length, whichever comes first in this order; the others are reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ovserve.llm.grammar import formats, patterns, text
from ovserve.llm.grammar.conjunction import Schema
from ovserve.llm.grammar.repetition import repeated
from ovserve.llm.grammar.rules import Repeat

if TYPE_CHECKING:
    from ovserve.llm.grammar.writer import Writer

STEPS = 10  # per character of a pattern, because patterns are slow to read
LENGTHS = ("minLength", "maxLength")


def body(writer: Writer, plain: tuple[Schema, ...]) -> list[list[str | int | Repeat]]:
    inside = _by_format(writer, plain)
    if inside is None:
        inside = _by_pattern(writer, plain)
    least, most = writer.count(plain, *LENGTHS)
    if inside is not None:
        writer.asked(plain, *LENGTHS)
        return [] if inside == [] else [['"\\""', *inside, '"\\""']]
    if most is None and not least:
        return [[free(writer)]]
    named = writer.rules.named
    if most is None:
        characters = repeated(named(text.CHARACTER), least, least, named)
        return [['"\\""', writer.rules.text(characters), rest(writer)]]
    if least > most:
        return []
    inside = [writer.rules.text(repeated(text.PLAIN, least, most, named))] if most else []
    return [['"\\""', *inside, '"\\""']]


def free(writer: Writer) -> int:
    """Any string."""
    return writer.rules.text(f'"\\"" {_end(writer)}')


def rest(writer: Writer) -> int:
    return writer.rules.text(_end(writer))


def _end(writer: Writer) -> str:
    """Return the name of the rule for the rest of a string with its closing quote; right-recursive, see
    `text.py`."""
    escape = writer.rules.named(text.ESCAPE)
    return writer.rules.recursive("string", f'"\\"" | {text.PLAIN} string | "\\\\" {escape} string')


def _by_format(writer: Writer, plain: tuple[Schema, ...]) -> list[str | int | Repeat] | None:
    found: str | None = None
    for node in plain:
        name = node.get("format")
        if name is None or name == found:
            continue
        if found is not None or not isinstance(name, str) or name not in formats.EXPRESSIONS:
            writer.document.report(node, "format")
        else:
            found = name
    if found is None:
        return None
    writer.asked(plain, "pattern")
    return [writer.rules.text(formats.EXPRESSIONS[found])]


def _by_pattern(writer: Writer, plain: tuple[Schema, ...]) -> list[str | int | Repeat] | None:
    """Return None without an expressible pattern; an empty list if no string matches it."""
    found: str | None = None
    inside: list[str | int | Repeat] | None = None
    for node in plain:
        pattern = node.get("pattern")
        if pattern is None or pattern == found:
            continue
        if not isinstance(pattern, str):
            raise writer.document.fault(node, "pattern", "expected a string", pattern)
        writer.rules.spend(STEPS * len(pattern))
        try:
            expression = patterns.expression(pattern, writer.rules.named)
        except patterns.Malformed as error:
            raise writer.document.fault(
                node, "pattern", f"not a regular expression: {error}", pattern
            ) from None
        except patterns.Unsupported:
            writer.document.report(node, "pattern")
            continue
        if found is not None:
            writer.document.report(node, "pattern")
            continue
        found = pattern
        inside = [] if expression is None else [writer.rules.text(expression or '""')]
    return inside
