"""How a dialect is written, as pieces of a grammar; each tool dialect brings one `Guide`, `llm/guidance.py`
puts them together. What a guide makes must be read by the dialect's own `calls`, which tests/llm prove.

Values that stand bare between tags (strings in XML-like dialects) are any text up to the closing tag, as the
format has no escapes; all others are JSON by their schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ovserve.llm.compact import compact, members, properties, required_names, shared
from ovserve.llm.constraint import (
    Format,
    any_text,
    either,
    literal,
    optional,
    sequence,
    tag,
)

Schema = Mapping[str, Any]
Arguments = Callable[[Schema], Format]


def json_arguments(schema: Schema) -> Format:
    return compact(schema)


class Guide(msgspec.Struct, frozen=True):
    """`begin` and `end` surround the arguments of a call; NAME in `begin` is the function's. `block` is
    around all calls. A free text begins to be guided at `trigger`, or, where the first character of a call is
    anybody's, at one of `inside` (NAME in it), from where arguments and `end` are held and nothing else."""

    begin: str
    end: str
    separator: str = ""
    block: tuple[str, str] = ("", "")
    trigger: str = ""
    inside: tuple[str, ...] = ()
    arguments: Arguments = json_arguments
    single: bool = False  # the model stops after a call, so there is one at most

    def call(self, name: str, schema: Schema) -> Format:
        return self._call(self.begin, name, schema)

    def calls_inside(self, name: str, schema: Schema) -> list[Format]:
        """What begins to be guided at each of `inside`."""
        return [self._call(begin, name, schema) for begin in self.inside]

    def _call(self, begin: str, name: str, schema: Schema) -> Format:
        return tag(begin.replace("NAME", name), self.arguments(schema), self.end)


def tagged(parameter: str, end: str, *, text: str = "") -> Arguments:
    """Arguments as `parameter` (NAME in it is the key), value, `end`, one after the other. `text` stands for
    `parameter` where a format marks strings."""

    def arguments(schema: Schema) -> Format:
        required = required_names(schema)
        pieces = []
        for key, part in properties(schema).items():
            one = shared(part, schema)
            bare = bare_text(one)
            begin = ((text if bare else "") or parameter).replace("NAME", key)
            piece = tag(begin, bare or compact(one), end)
            pieces.append(piece if key in required else optional(piece))
        return sequence(*pieces) if pieces else literal("")

    return arguments


def listed(parameter: str, separator: str, quotes: str = "") -> Arguments:
    """Arguments as `parameter`, value, parted by `separator`. `quotes` stand around strings; "": they are
    JSON."""

    def value(key: str, one: Schema, before: str, after: str) -> Format:
        begin = before + parameter.replace("NAME", key)
        bare = bare_text(one) if quotes else None
        if bare is not None:
            return tag(begin + quotes, bare, quotes + after)
        return sequence(literal(begin), compact(one), *([literal(after)] if after else []))

    return lambda schema: members(schema, separator, value)


def bare_text(schema: Any, depth: int = 8) -> Format | None:
    """What stands bare where this schema is: one of its texts, or any. None: only JSON, as no string may."""
    if not isinstance(schema, Mapping):
        return None
    found = _resolve(schema)
    values = found["enum"] if isinstance(found.get("enum"), list) else [found.get("const")]
    texts = [value for value in values if isinstance(value, str)]
    if texts:
        return either(literal(text) for text in texts) if len(texts) == len(values) else any_text()
    kind = found.get("type")
    if kind == "string" or (isinstance(kind, list) and "string" in kind):
        return any_text()
    for union in ("anyOf", "oneOf", "allOf"):
        branches = found.get(union)
        for branch in branches if isinstance(branches, list) and depth else ():
            if isinstance(branch, Mapping) and bare_text(shared(branch, schema), depth - 1) is not None:
                return any_text()
    return None


def _resolve(schema: Schema) -> Schema:
    found: Any = schema
    for _ in range(8):
        ref = found.get("$ref")
        if not isinstance(ref, str) or not ref.startswith("#/"):
            return found  # type: ignore[no-any-return]
        found = schema
        for step in ref[2:].split("/"):
            found = found.get(step) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            return {}
    return {}
