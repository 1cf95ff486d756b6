"""Python literals and untyped text of calls, turned into JSON text.

The pythonic dialects (lfm2, pythonic, olmo3) read literals as they arrive. Models write them carelessly:
unescaped quotes inside strings, raw newlines, Windows paths, JSON's true and null. All of that is accepted;
other text raises NotACall.

Dialects with bare text between tags (qwen3coder, glm45, minimax, ...) have it typed by the schemas of the
request's tools. A string stays as written; other text is JSON if it is JSON, a literal if it is one, else a
string after all: a model's mistake must not lose its text. Numbers keep their spelling, because JSON text is
built, not values.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import partial
from typing import Any

from ovserve.llm.parsing.cursor import Cursor, NotACall, Steps, run_to_end
from ovserve.llm.parsing.guide import target_of
from ovserve.llm.parsing.json_text import as_json, quote, unquote

Ends = Callable[[int, str, bool], bool | None]  # of quotes in the string so far, and as `cursor.Decision`

_MAX_DEPTH = 60
_WORD_CHARS = re.compile(r"[A-Za-z_]+")
_NUMBER_CHARS = re.compile(r"[0-9A-Za-z_.+\-]+")
_WORDS = {"True": "true", "true": "true", "False": "false", "false": "false", "None": "null", "null": "null"}
_RADIX = re.compile(r"[+-]?0[xXoObB][0-9A-Fa-f_]+")
_DECIMAL = re.compile(r"([+-]?)([0-9]+(?:_[0-9]+)*)?(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_MAX_DIGITS = 4000  # Python rejects longer ones
_PLAIN = {q: re.compile(f"[^{q}\\\\]+") for q in "'\""}
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-7]{1,3}|.)", re.DOTALL)
_BRACKETS = {"[": "]", "(": ")", "{": "}"}
_SIMPLE = dict(zip("nrtabfv\\'\"", "\n\r\t\a\b\f\v\\'\"", strict=True)) | {"\n": ""}


def _ends(quotes: int, text: str, end: bool) -> bool | None:
    following = text[1:].lstrip()[:1]
    return None if not following and not end else following in ",)]}:"


def literal(cur: Cursor, depth: int = 0, ends: Ends = _ends) -> Steps[str]:
    """Read one literal; return its JSON text. `ends`: whether a quote ends a string, by what follows it."""
    if depth > _MAX_DEPTH:
        raise NotACall
    yield from cur.space()
    char = yield from cur.peek()
    if char and char in "'\"":
        return quote((yield from _string(cur, char, ends)))
    if char in _BRACKETS:
        return (yield from _container(cur, depth, _BRACKETS[char]))
    if char and (char in "+-." or char.isdigit()):
        return number((yield from cur.matching(_NUMBER_CHARS)))
    if not char:
        yield from cur.more()
    word = yield from cur.matching(_WORD_CHARS, 8)
    if word in ("r", "f", "b", "u", "R", "F", "B", "U") and (yield from cur.peek()) in ("'", '"'):
        return (yield from literal(cur, depth + 1, ends))
    if word not in _WORDS:
        raise cur.failure()
    return _WORDS[word]


def python_literal(text: str) -> str | None:
    """Return the JSON text of a text that is one Python literal, else None."""
    cur = Cursor(text, ended=True)
    try:
        result = run_to_end(literal(cur))
    except NotACall:
        return None
    return result if not cur.buf[cur.pos :].strip() else None


def _container(cur: Cursor, depth: int, close: str) -> Steps[str]:
    cur.advance(1)
    items: dict[str, str] = {}  # by keys, or by places
    while True:
        yield from cur.space()
        if (yield from cur.literal(close)):
            break
        key, item = str(len(items)), (yield from literal(cur, depth + 1))
        if close == "}":
            key = item if item.startswith('"') else quote(item)
            yield from cur.space()
            yield from cur.expect(":")
            item = yield from literal(cur, depth + 1)
        items[key] = item
        yield from cur.space()
        if (yield from cur.peek()) != close:
            yield from cur.expect(",")
    if close == "}":
        return "{" + ", ".join(f"{key}: {item}" for key, item in items.items()) + "}"
    return f"[{', '.join(items.values())}]"


def _string(cur: Cursor, q: str, ends: Ends) -> Steps[str]:
    """Read a string. A quote ends it only if followed by something that may follow there."""
    triple = yield from cur.literal(q * 3)
    if not triple:
        cur.advance(1)
    parts: list[str] = []
    quotes = 0
    while True:
        parts.append((yield from cur.matching(_PLAIN[q])))
        char = yield from cur.peek()
        if not char:
            yield from cur.more()
        elif char == "\\":
            parts.append(cur.advance(1))
            if not (yield from cur.peek()):
                yield from cur.more()
            parts.append(cur.advance(1))
        elif (yield from (cur.literal(q * 3) if triple else cur.decision(partial(ends, quotes)))):
            cur.advance(0 if triple else 1)
            return _unescape("".join(parts))
        else:
            parts.append(cur.advance(1))
            quotes += 1


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    last = 0
    for match in _ESCAPE.finditer(text):
        code = match.group(1)
        parts.append(text[last : match.start()])
        last = match.end()
        if code in _SIMPLE:
            parts.append(_SIMPLE[code])
        elif code[0] in "xuU":
            value = int(code[1:], 16) if len(code) > 1 else 0x110000
            if value > 0x10FFFF:
                return text  # no escape at all, so these are a path's backslashes: keep every one
            parts.append(chr(value))
        elif code[0] in "01234567":
            parts.append(chr(int(code, 8)))
        else:
            parts.append(match.group())  # as Python: an unknown escape keeps its backslash
    parts.append(text[last:])
    joined = "".join(parts)
    # A pair of \u escapes above U+FFFF makes one character; half a pair becomes a replacement mark.
    return joined.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def number(text: str) -> str:
    """Return a number of Python as JSON. Raises NotACall for other text."""
    if as_json(text):
        return text
    if len(text) > _MAX_DIGITS:
        raise NotACall
    if _RADIX.fullmatch(text):
        try:
            return str(int(text, 0))
        except ValueError:
            raise NotACall from None
    match = _DECIMAL.fullmatch(text)
    if match is None or not (match[2] or len(match[3] or "") > 1):
        raise NotACall
    whole = (match[2] or "0").replace("_", "").lstrip("0") or "0"
    fraction = match[3] if match[3] and len(match[3]) > 1 else ".0" if match[3] else ""
    return ("-" if match[1] == "-" else "") + whole + fraction + (match[4] or "")


_FIRST = {
    "object": "{",
    "array": "[",
    "boolean": "tf",
    "integer": "-0123456789",
    "number": "-0123456789",
    "null": "n",
}
_JSON_TYPES = {
    dict: "object",
    list: "array",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    type(None): "null",
}
# Names that clients give to strings in schemas that are none, also in capitals, as Gemini has all types.
_STRINGS = dict.fromkeys(("str", "text", "char", "varchar", "enum"), "string")


class Tools:
    """The request's tools by name. It tolerates every shape: the body was checked elsewhere, or not at
    all."""

    def __init__(self, tools: Iterable[Any] = ()) -> None:
        self._schemas: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            if isinstance(function, Mapping) and isinstance(function.get("name"), str):
                parameters = function.get("parameters")
                self._schemas[function["name"]] = parameters if isinstance(parameters, Mapping) else {}

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    def lacks(self, name: str) -> bool:
        """Return whether the tools are known, and none has this name."""
        return bool(self._schemas) and name not in self._schemas

    def taking(self, keys: Set[str]) -> str:
        """Return the only tool that has these parameters and requires no others; "" if more have, or none."""
        names = [name for name in self._schemas if keys <= self.parameters(name).keys()]
        names = [name for name in names if all(key in [*keys] for key in self._required(name))]
        return names[0] if len(names) == 1 else ""

    def before_key(self, text: str) -> str:
        """Return the name of a tool in front of the key of a parameter of it, which are this text; or ""."""
        fits = (name for name in self._schemas if text.removeprefix(name).strip() in self.parameters(name))
        return max((name for name in fits if text.startswith(name)), key=len, default="")

    def schema(self, tool: str) -> Mapping[str, Any]:
        return self._resolve(tool, self._schemas.get(tool))

    def _required(self, tool: str) -> list[object]:
        required = self.schema(tool).get("required")
        return required if isinstance(required, list) else []

    def parameters(self, tool: str) -> Mapping[str, Any]:
        """Return the parameter names and schemas that the tool declares."""
        properties = self.schema(tool).get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def types(self, tool: str, parameter: str) -> frozenset[str]:
        """Return the JSON types that the parameter may have; empty if undeclared."""
        return self.types_of(tool, self.parameters(tool).get(parameter))

    def types_of(self, tool: str, schema: object) -> frozenset[str]:
        return frozenset(kind for one in self._branches(tool, schema) for kind in _types(one))

    def within(self, tool: str, schema: object, key: str | None) -> object:
        """Return the schema of a member of an object, or of the items of an array, whose key is None."""
        for one in self._branches(tool, schema):
            members = one.get("properties") if key is not None else None
            part = members.get(key) if isinstance(members, Mapping) else None
            if part is not None or (part := one.get("items" if key is None else "additionalProperties")):
                return part
        return None

    def _branches(self, tool: str, schema: object) -> Iterator[Mapping[str, Any]]:
        """Yield the schema and the branches of its unions."""
        todo: list[object] = [schema]
        visited: set[int] = set()
        while todo:  # each schema once: unions of references could name one a million times
            one = self._resolve(tool, todo.pop())
            if id(one) not in visited:
                visited.add(id(one))
                yield one
                todo += [
                    branch for name in _UNIONS if isinstance(one.get(name), list) for branch in one[name]
                ]

    def _resolve(self, tool: str, schema: object) -> Mapping[str, Any]:
        return target_of(schema, self._schemas.get(tool))


_UNIONS = ("anyOf", "oneOf", "allOf")


def _types(schema: Mapping[str, Any]) -> set[str]:
    """Return the types that it names itself."""
    types: set[str] = set()
    kind = schema.get("type")
    if isinstance(kind, str | list):
        names = [kind] if isinstance(kind, str) else [one for one in kind if isinstance(one, str)]
        types.update(_STRINGS.get(name.lower(), name.lower()) for name in names)
    elif isinstance(schema.get("enum"), list):
        types.update(_JSON_TYPES.get(type(v), "") for v in schema["enum"])
    elif "const" in schema:
        types.add(_JSON_TYPES.get(type(schema["const"]), ""))
    elif not any(schema.get(name) for name in _UNIONS):
        types |= {"object"} if "properties" in schema or "additionalProperties" in schema else set()
        types |= {"array"} if "items" in schema else set()
    if schema.get("nullable") is True and types:
        types.add("null")
    return types - {""}


def to_json(text: str, types: frozenset[str]) -> str:
    """Return bare text as JSON text. Without types: JSON if it is JSON, else a string."""
    if types == {"string"}:
        return quote(text)
    stripped = text.strip()
    if stripped in ("null", "None") and ("null" in types or not types & {"string"}):
        return "null"
    if stripped.lower() in ("true", "false") and (not types or "boolean" in types):
        return stripped.lower()
    if "string" not in types:
        json = _any_json(stripped) or quote(text)
        # Models quote a container, or the Python of one, as their templates did with the last one.
        inner = _any_json(unquote(json)) if json[0] == '"' and types & {"object", "array"} else None
        return inner if inner and inner[0] in "{[" else json
    # A union with strings: another type wins only if the text can be nothing else.
    first = "".join(_FIRST.get(kind, "") for kind in types - {"string", "boolean", "null"})
    if first and stripped[:1] and stripped[0] in first:
        return _any_json(stripped) or quote(text)
    return quote(text)


def _any_json(text: str) -> str | None:
    return as_json(text) or python_literal(text)
