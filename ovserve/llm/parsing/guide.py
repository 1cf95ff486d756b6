"""The format of a dialect's calls as parts of a grammar: one `Guide` per tool dialect.

`llm/grammar/guidance.py` combines them. The dialect's own `calls` must be able to read what a guide produces;
tests/llm verify that. Bare values between tags (strings in XML-like dialects) are any text up to the closing
tag, because the format has no escapes; all others are JSON by their schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from ovserve.errors import InvalidArgument, shortened
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
from ovserve.llm.grammar.whole_text import bare_string
from ovserve.llm.grammar.writer import compact, lost_relations, parameters

Schema = Mapping[str, Any]
Arguments = Callable[[Schema, bool], Format]  # a schema, and whether all that it allows is admitted


PARAM = "tools"
MAX_REFS = 16
# Names that parsers read where a format has no quotes and no escapes for them.
TAGGED_NAME = re.compile(r"(?!\s)[^<>\"'\n]+(?<!\s)")
LISTED_NAME = re.compile(r"(?!\s)[^=,:()\[\]{}'\"<>|\n]+(?<!\s)")


def json_arguments(schema: Schema, exact: bool) -> Format:
    return compact(schema, what=PARAM, exact=exact)


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

    def lost_keywords(self, schema: Schema) -> list[str]:
        """Return the keywords that `call` leaves out because parameters are written one by one."""
        return [] if self.arguments is json_arguments else lost_relations(schema, PARAM)

    def call(self, name: str, schema: Schema, *, exact: bool = False) -> Format:
        return self._call(self.begin, name, schema, exact)

    def calls_inside(self, name: str, schema: Schema, *, exact: bool = False) -> list[Format]:
        """Return the guided formats that begin at each of `inside`."""
        return [self._call(begin, name, schema, exact) for begin in self.inside]

    def _call(self, begin: str, name: str, schema: Schema, exact: bool) -> Format:
        try:
            return tag(begin.replace("NAME", name), self.arguments(schema, exact), self.end)
        except InvalidArgument as error:
            reason = error.message.removeprefix(f"{PARAM}: ")
            raise InvalidArgument.at(PARAM, f"parameters of {name}: {reason}") from None


def json_list(begin: str, end: str = "", *, trigger: str = "", keys: str = "name arguments") -> Guide:
    """Return the guide of calls in a JSON list between two texts; the first one is the trigger by default."""
    name, arguments = keys.split()
    call = f'{{"{name}": "NAME", "{arguments}": '
    return Guide(call, "}", ", ", block=(f"{begin}[", f"]{end}"), trigger=trigger or begin.strip())


def tagged(parameter: str, end: str, *, text: str = "", without: tuple[str, ...] = ()) -> Arguments:
    """Return arguments as a sequence of `parameter` (NAME in it is the key, KIND the type), value and `end`.

    `text` replaces `parameter` for strings, if the format marks them. No string has a text of
    `without`, which the parser could read as markup.
    """

    def piece(key: str, part: Any, must: bool, root: Schema, exact: bool) -> Format:
        bare = bare_text(part, root, without, exact=exact)
        kind = "string" if bare else target_of(part, root).get("type")
        kind = {"integer": "number"}.get(kind, kind) if isinstance(kind, str) else "object"
        begin = ((text if bare else "") or parameter).replace("NAME", key).replace("KIND", kind)
        form = tag(begin, bare or compact(part, root, PARAM, exact=exact), end.replace("NAME", key))
        return form if must else optional(form)

    def arguments(schema: Schema, exact: bool) -> Format:
        triples = _writable(TAGGED_NAME, schema, exact)
        pieces = within_limit((piece(key, part, must, schema, exact) for key, part, must in triples), PARAM)
        return sequence(*pieces) if pieces else literal("")

    return arguments


def listed(parameter: str, separator: str, quotes: str = "") -> Arguments:
    """Return arguments as `parameter` and value, with `separator` between them.

    `quotes` surround strings; "": they are JSON.
    """

    def value(key: str, part: Any, root: Schema, exact: bool) -> Format:
        begin = parameter.replace("NAME", key)
        bare = bare_text(part, root, (quotes,), exact=exact) if quotes else None
        if bare is not None:
            return tag(begin + quotes, bare, quotes)
        return sequence(literal(begin), compact(part, root, PARAM, exact=exact))

    def arguments(schema: Schema, exact: bool) -> Format:
        triples = list(_writable(LISTED_NAME, schema, exact))
        forms = within_limit((value(key, part, schema, exact) for key, part, _ in triples), PARAM)
        return members([(form, must) for form, (_, _, must) in zip(forms, triples, strict=True)], separator)

    return arguments


def _writable(name: re.Pattern[str], schema: Schema, exact: bool) -> Iterator[tuple[str, Any, bool]]:
    """Yield the parameters whose names can be written. Raises InvalidArgument for a required one that
    cannot."""
    for key, part, must in parameters(schema, PARAM, exact=exact):
        if name.fullmatch(key):
            yield key, part, must
        elif must:
            shown = shortened(repr(key))
            raise InvalidArgument.at(PARAM, f"this model has no form for the name {shown}")


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
    first_half, right = forms[: len(forms) // 2], forms[len(forms) // 2 :]
    following = [optional(sequence(literal(separator), form)) for form in right]
    return either([sequence(_some(first_half, separator), *following), _some(right, separator)])


def bare_text(
    schema: Any, root: Any = None, without: tuple[str, ...] = (), *, exact: bool = False
) -> Format | None:
    """Return the format of a bare value of this schema: one of its texts, or any text.

    None: only JSON, because a string is not allowed. `root` is what its references point into. Free text has
    none of `without`. Raises InvalidArgument if `exact` and a pattern, format or length is not enforced.
    """
    document = schema if root is None else root
    todo, visited = [schema], set()
    while todo:
        node = target_of(todo.pop(), document)
        if id(node) in visited:
            continue
        visited.add(id(node))
        values = node["enum"] if isinstance(node.get("enum"), list) else [node.get("const")]
        texts = [value for value in values if isinstance(value, str)]
        if texts:
            plain = len(texts) == len(values) and len(visited) == 1
            return either(literal(text) for text in texts) if plain else any_text(without)
        kind = node.get("type")
        if kind == "string" or (isinstance(kind, list) and "string" in kind):
            alone = len(visited) == 1 and not todo and kind in ("string", ["string"])
            return _string(node, without, alone=alone, exact=exact) or any_text(without)
        for union in ("anyOf", "oneOf", "allOf"):
            if isinstance(node.get(union), list):
                todo += node[union]
    return None


def _string(node: Schema, without: tuple[str, ...], *, alone: bool, exact: bool) -> Format | None:
    """Return the format of a string with a pattern, format or length; None for any text.

    `alone`: other values than strings are not allowed."""
    try:
        form = bare_string(node, without, PARAM)
    except InvalidArgument:
        if exact:
            raise
        return None
    if form is None or alone:
        return form
    if exact:
        raise InvalidArgument(
            f"{PARAM}: a string with a pattern, format or length cannot be enforced where it may be another "
            "value too and this model writes it without quotes",
            param=PARAM,
        )
    return None


def target_of(schema: Any, root: Any) -> Schema:
    """Return the schema that it refers to; an empty one if there is none."""
    target: Any = schema
    for _ in range(MAX_REFS):
        ref = target.get("$ref") if isinstance(target, Mapping) else None
        if not isinstance(ref, str):
            break
        target = pointed_at(root, ref)
    return target if isinstance(target, Mapping) and not isinstance(target.get("$ref"), str) else {}
