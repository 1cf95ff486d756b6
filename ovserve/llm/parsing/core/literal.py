"""Python literals as they arrive, turned into JSON text.

The pythonic dialects (lfm2, pythonic, olmo3) read them step by step, `typed.py` as whole values. Models
write them carelessly: unescaped quotes inside strings, raw newlines, Windows paths, JSON's true and
null. All of that is accepted; other text raises NotACall.
"""

from __future__ import annotations

import re

from ovserve.llm.parsing.core.cursor import Cursor, NotACall, Steps, run_to_end
from ovserve.llm.parsing.core.json_scan import as_json, quote

_MAX_DEPTH = 60
_WORD_CHARS = re.compile(r"[A-Za-z_]+")
_NUMBER_CHARS = re.compile(r"[0-9A-Za-z_.+\-]+")
_WORDS = {"True": "true", "true": "true", "False": "false", "false": "false", "None": "null", "null": "null"}
_RADIX = re.compile(r"[+-]?0[xXoObB][0-9A-Fa-f_]+")
_DECIMAL = re.compile(r"([+-]?)([0-9]+(?:_[0-9]+)*)?(\.[0-9]*)?([eE][+-]?[0-9]+)?")
_MAX_DIGITS = 4000  # Python rejects longer ones
_PLAIN = {q: re.compile(f"[^{q}\\\\]+") for q in "'\""}
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[0-7]{1,3}|.)", re.DOTALL)
_SIMPLE = dict(zip("nrtabfv\\'\"", "\n\r\t\a\b\f\v\\'\"", strict=True)) | {"\n": ""}


def literal(cur: Cursor, depth: int = 0) -> Steps[str]:
    """Read one literal; return its JSON text."""
    if depth > _MAX_DEPTH:
        raise NotACall
    yield from cur.space()
    char = yield from cur.peek()
    if char and char in "'\"":
        return quote((yield from _string(cur, char)))
    if char in ("[", "("):
        return (yield from _sequence(cur, depth, "]" if char == "[" else ")"))
    if char == "{":
        return (yield from _mapping(cur, depth))
    if char and (char in "+-." or char.isdigit()):
        return number((yield from cur.matching(_NUMBER_CHARS)))
    if not char:
        yield from cur.more()
    word = yield from cur.matching(_WORD_CHARS, 8)
    if word in ("r", "f", "b", "u", "R", "F", "B", "U") and (yield from cur.peek()) in ("'", '"'):
        return (yield from literal(cur, depth + 1))
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


def _sequence(cur: Cursor, depth: int, close: str) -> Steps[str]:
    cur.advance(1)
    items: list[str] = []
    while True:
        yield from cur.space()
        if (yield from cur.literal(close)):
            return f"[{', '.join(items)}]"
        items.append((yield from literal(cur, depth + 1)))
        yield from _comma(cur, close)


def _mapping(cur: Cursor, depth: int) -> Steps[str]:
    cur.advance(1)
    items: dict[str, str] = {}
    while True:
        yield from cur.space()
        if (yield from cur.literal("}")):
            return "{" + ", ".join(f"{key}: {value}" for key, value in items.items()) + "}"
        key = yield from literal(cur, depth + 1)
        yield from cur.space()
        yield from cur.expect(":")
        items[key if key.startswith('"') else quote(key)] = yield from literal(cur, depth + 1)
        yield from _comma(cur, "}")


def _comma(cur: Cursor, close: str) -> Steps[None]:
    yield from cur.space()
    if (yield from cur.peek()) != close:
        yield from cur.expect(",")


def _string(cur: Cursor, q: str) -> Steps[str]:
    """Read a string. A quote ends it only if followed by something that may follow a value."""
    triple = yield from cur.literal(q * 3)
    if not triple:
        cur.advance(1)
    parts: list[str] = []
    while True:
        parts.append((yield from cur.matching(_PLAIN[q])))
        char = yield from cur.peek()
        if not char:
            yield from cur.more()
        if char == "\\":
            parts.append(cur.advance(1))
            if not (yield from cur.peek()):
                yield from cur.more()
            parts.append(cur.advance(1))
        elif triple:
            if (yield from cur.literal(q * 3)):
                return _unescape("".join(parts))
            parts.append(cur.advance(1))
        elif (yield from _closes(cur)):
            return _unescape("".join(parts))
        else:
            parts.append(q)


def _closes(cur: Cursor) -> Steps[bool]:
    """Read the quote; return whether it ends the string."""
    cur.advance(1)
    mark = cur.mark()
    yield from cur.space()
    following = yield from cur.peek()
    cur.rollback(mark)
    return following == "" or following in ",)]}:"


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
