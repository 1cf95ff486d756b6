"""The format of a dialect's calls as parts of a grammar: one `Guide` per tool dialect.

`llm/grammar/guidance.py` combines them. The dialect's own `calls` must be able to read what a guide produces;
tests/llm verify that. Bare values between tags (strings in XML-like dialects) are any text up to the closing
tag, because the format has no escapes; all others are JSON by their schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ovserve.errors import InvalidArgument
from ovserve.llm.grammar.compact import compact
from ovserve.llm.grammar.conjunction import pointed_at
from ovserve.llm.grammar.constraint import (
    Format,
    any_text,
    either,
    literal,
    optional,
    sequence,
    tag,
    within_limit,
)
from ovserve.llm.grammar.writer import parameters

Schema = Mapping[str, Any]
Arguments = Callable[[Schema], Format]


PARAM = "tools"
MAX_REFS = 8


def json_arguments(schema: Schema) -> Format:
    return compact(schema, what=PARAM)


class Guide(msgspec.Struct, frozen=True):
    """The format of calls. `begin` and `end` surround the arguments; NAME in `begin` is the function's name.

    `block` surrounds all calls. Guidance of free text begins at `trigger`. If the first character of a call
    is too common, it begins at one of `inside` (which contains NAME), and covers only arguments and `end`.
    """

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
        """Return the guided formats that begin at each of `inside`."""
        return [self._call(begin, name, schema) for begin in self.inside]

    def _call(self, begin: str, name: str, schema: Schema) -> Format:
        try:
            return tag(begin.replace("NAME", name), self.arguments(schema), self.end)
        except InvalidArgument as error:
            said = error.message.removeprefix(f"{PARAM}: ")
            raise InvalidArgument(f"{PARAM}: parameters of {name}: {said}", param=PARAM) from None


def tagged(parameter: str, end: str, *, text: str = "") -> Arguments:
    """Return arguments as a sequence of `parameter` (NAME in it is the key), value and `end`.

    `text` replaces `parameter` for strings, if the format marks them.
    """

    def piece(key: str, part: Any, must: bool, root: Schema) -> Format:
        bare = bare_text(part, root)
        begin = ((text if bare else "") or parameter).replace("NAME", key)
        made = tag(begin, bare or compact(part, root, PARAM), end)
        return made if must else optional(made)

    def arguments(schema: Schema) -> Format:
        found = parameters(schema, PARAM)
        pieces = within_limit((piece(key, part, must, schema) for key, part, must in found), PARAM)
        return sequence(*pieces) if pieces else literal("")

    return arguments


def listed(parameter: str, separator: str, quotes: str = "") -> Arguments:
    """Return arguments as `parameter` and value, with `separator` between them.

    `quotes` surround strings; "": they are JSON.
    """

    def value(key: str, part: Any, root: Schema) -> Format:
        begin = parameter.replace("NAME", key)
        bare = bare_text(part, root) if quotes else None
        if bare is not None:
            return tag(begin + quotes, bare, quotes)
        return sequence(literal(begin), compact(part, root, PARAM))

    def arguments(schema: Schema) -> Format:
        found = parameters(schema, PARAM)
        forms = within_limit((value(key, part, schema) for key, part, _ in found), PARAM)
        return members([(form, must) for form, (_, _, must) in zip(forms, found, strict=True)], separator)

    return arguments


def members(forms: list[tuple[Format, bool]], separator: str) -> Format:
    """Return the members in their order, optional ones possibly missing, with the separator between them."""
    first = next((i for i, (_, must) in enumerate(forms) if must), None)
    if first is None:
        return optional(_some([form for form, _ in forms], separator)) if forms else literal("")
    before = [optional(sequence(form, literal(separator))) for form, _ in forms[:first]]
    after = [(sequence(literal(separator), form), must) for form, must in forms[first + 1 :]]
    return sequence(*before, forms[first][0], *(form if must else optional(form) for form, must in after))


def _some(forms: list[Format], separator: str) -> Format:
    """Return one or more of these in their order. Halved recursively, so n of them make n log n of text."""
    if len(forms) == 1:
        return forms[0]
    left, right = forms[: len(forms) // 2], forms[len(forms) // 2 :]
    following = [optional(sequence(literal(separator), form)) for form in right]
    return either([sequence(_some(left, separator), *following), _some(right, separator)])


def bare_text(schema: Any, root: Any = None) -> Format | None:
    """Return the format of a bare value of this schema: one of its texts, or any text.

    None: only JSON, because a string is not allowed. `root` is what its references point into.
    """
    document = schema if root is None else root
    todo, seen = [schema], set()
    while todo:
        found = _resolve(todo.pop(), document)
        if id(found) in seen:
            continue
        seen.add(id(found))
        values = found["enum"] if isinstance(found.get("enum"), list) else [found.get("const")]
        texts = [value for value in values if isinstance(value, str)]
        if texts:
            plain = len(texts) == len(values) and len(seen) == 1
            return either(literal(text) for text in texts) if plain else any_text()
        kind = found.get("type")
        if kind == "string" or (isinstance(kind, list) and "string" in kind):
            return any_text()
        for union in ("anyOf", "oneOf", "allOf"):
            if isinstance(found.get(union), list):
                todo += found[union]
    return None


def _resolve(schema: Any, root: Any) -> Schema:
    """Return the schema that it refers to; an empty one if there is none."""
    found: Any = schema
    for _ in range(MAX_REFS):
        ref = found.get("$ref") if isinstance(found, Mapping) else None
        if not isinstance(ref, str):
            break
        found = pointed_at(root, ref)
    return found if isinstance(found, Mapping) and not isinstance(found.get("$ref"), str) else {}
