"""Decide by its form alone whether a grammar is cheap to compile.

A grammar whose compilation might not end, or exhaust memory, is compiled on trial in a separate process
before the engine compiles it. It is compiled twice, because the library cannot hand over a compiled grammar.
Objects, arrays, choices and free strings of bounded size, which clients mostly send, need no trial: they take
time and memory in proportion to their text. `tests/engine/test_grammar_cost.py` measures the worst. Possibly
expensive forms are not cheap: regular expressions, EBNF, bounds of lengths and numbers, formats, deep
nesting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from ovserve.errors import ResourceExhausted
from ovserve.llm.grammar.constraint import JSON_OBJECT

MAX_BYTES = 8 * 1024  # limit of the JSON text
MAX_DEPTH = 24
MAX_EXCLUDED = 256  # characters of the texts that free text must exclude
MAX_OPTIONAL = 32  # optional properties of one object: its text grows with their square
MAX_ALTERNATIVES = 64  # in total: the time for a token grows with their square

TOKEN_SECONDS = 0.5  # of CPU time in a step for one token of one request
PROBE_TOKENS = 16  # of a text that a grammar allows, which are written on trial
NO_TEXT = "no text matches it"
TOO_MUCH_MEMORY = "it takes too much memory; make it simpler"

WITHOUT_COST = frozenset(
    {"title", "description", "default", "examples", "$schema", "$id", "enum", "const", "required"}
)
TYPES = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
LISTS_OF_FORMATS = {
    "sequence": "elements",
    "or": "elements",
    "triggered_tags": "tags",
    "tags_with_separator": "tags",
}


@contextmanager
def cheap_tokens() -> Iterator[None]:
    """Raise ResourceExhausted where the tokens that are written inside would hold up the steps."""
    began = time.process_time()
    yield
    seconds = (time.process_time() - began) / PROBE_TOKENS
    if seconds > TOKEN_SECONDS:
        raise ResourceExhausted(
            f"each of its tokens takes {seconds:.2g} s of CPU time, more than "
            f"{TOKEN_SECONDS:g} s; repetitions with a large bound, as in {{0,1000}}, cost most"
        )


def is_cheap(form: str) -> bool:
    """Return whether `form`, a constraint's format, is cheap."""
    if len(form) > MAX_BYTES:
        return False
    try:
        return _Check().format(msgspec.json.decode(form), MAX_DEPTH)
    except (msgspec.DecodeError, RecursionError):
        return False


class _Check:
    """One walk over one grammar. Forms that are not known to be cheap count as expensive."""

    def __init__(self) -> None:
        self._alternatives = MAX_ALTERNATIVES

    def format(self, form: Any, depth: int) -> bool:
        if not isinstance(form, dict) or not depth:
            return False
        kind = form.get("type")
        if kind == "const_string":
            return True
        if kind == "any_text":
            return _short(form.get("excludes", []))
        if kind == "grammar":
            return bool(form.get("grammar") == JSON_OBJECT)
        if kind == "json_schema":
            return self._schema(form.get("json_schema"), depth)
        if kind == "tag":
            return self.format(form.get("content"), depth - 1)
        if kind == "triggered_tags" and not _short(form.get("triggers")):
            return False
        if isinstance(kind, str) and kind in LISTS_OF_FORMATS:
            members = form.get(LISTS_OF_FORMATS[kind])
            return self._few(members) and _all(self.format, members, depth - 1)
        return False

    def _schema(self, schema: Any, depth: int) -> bool:
        if isinstance(schema, bool):
            return True
        if not isinstance(schema, dict) or not depth:
            return False
        return all(self._keyword(schema, name, value, depth - 1) for name, value in schema.items())

    def _keyword(self, schema: dict[str, Any], name: str, value: Any, depth: int) -> bool:
        if name in WITHOUT_COST:
            return True
        if name == "type":
            return self._types(value)
        if name == "properties":
            return self._properties(value, schema.get("required"), depth)
        if name in ("items", "additionalProperties"):
            return self._schema(value, depth)
        if name == "anyOf":
            return self._few(value) and _all(self._schema, value, depth)
        if name == "$ref":
            return isinstance(value, str)
        return name == "$defs" and isinstance(value, dict) and _all(self._schema, [*value.values()], depth)

    def _types(self, value: Any) -> bool:
        names = value if isinstance(value, list) else [value]
        return all(isinstance(name, str) and name in TYPES for name in names) and self._few(names)

    def _properties(self, value: Any, required: Any, depth: int) -> bool:
        if not isinstance(value, dict):
            return False
        needed = {name for name in required if isinstance(name, str)} if isinstance(required, list) else set()
        return len(value.keys() - needed) <= MAX_OPTIONAL and _all(self._schema, [*value.values()], depth)

    def _few(self, members: Any) -> bool:
        """Count alternatives; a single one does not count."""
        if not isinstance(members, list):
            return False
        self._alternatives -= max(len(members) - 1, 0)
        return self._alternatives >= 0


def _short(texts: Any) -> bool:
    """Return whether the excluded texts are short: each of their bytes needs a state."""
    return isinstance(texts, list) and sum(len(str(text)) for text in texts) <= MAX_EXCLUDED


def _all(check: Callable[[Any, int], bool], members: Any, depth: int) -> bool:
    return isinstance(members, list) and all(check(member, depth) for member in members)
