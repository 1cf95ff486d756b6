"""Strings of JSON as EBNF: quoting, character classes, free strings, keys that are not among given names.

The expressions are fast in the library's compiler: repetition by right recursion (a star over a class of
nearly all characters takes 0.2 s to compile, the recursion 6 ms).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import msgspec

LAST = 0x10FFFF
Ranges = list[tuple[int, int]]
REMEMBERED = 8  # ranges in a class of characters

_SHORT = {0x22: '\\"', 0x5C: "\\\\", 0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0C: "\\f", 0x0D: "\\r"}
_UNSAFE: Ranges = [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF)]

HEX = "[0-9a-fA-F]"
# An escaped pair of surrogates, or any other character; a single surrogate is not a character.
ESCAPE = (
    f'["\\\\/bfnrt] | "u" ([0-9a-cA-CefEF] {HEX} {HEX} {HEX} | [dD] [0-7] {HEX} {HEX}'
    f' | [dD] [89abAB] {HEX} {HEX} "\\\\u" [dD] [c-fC-F] {HEX} {HEX})'
)
PLAIN = '[^"\\\\\\x00-\\x1f\\x7f]'  # characters that stand for themselves
CHARACTER = f'{PLAIN} | "\\\\" ({ESCAPE})'


def quoted(text: str) -> str:
    """Return a literal of EBNF."""
    parts = []
    for char in text:
        code = ord(char)
        if char in '"\\':
            parts.append("\\" + char)
        elif 0x20 <= code < 0x7F:
            parts.append(char)
        else:
            parts.append(_code(code))
    return f'"{"".join(parts)}"'


def one_line(value: object) -> str:
    """JSON in one line, with a blank after commas and colons."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{one_line(k)}: {one_line(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(one_line, value)) + "]"
    return msgspec.json.encode(value).decode()


def complement(ranges: Iterable[tuple[int, int]]) -> Ranges:
    found, at = [], 0
    for low, high in sorted(ranges):
        if low > at:
            found.append((at, low - 1))
        at = max(at, high + 1)
    return [*found, (at, LAST)] if at <= LAST else found


def intersection(one: Iterable[tuple[int, int]], other: Ranges) -> Ranges:
    return complement([*complement(one), *complement(other)])


def in_string(ranges: Ranges) -> str | None:
    """Return one character of these in its JSON string form; None if there is none.

    Of a class of nearly all characters, those that must be escaped are quotes, backslash and white space.
    """
    return _in_string(tuple(ranges)) if len(ranges) <= REMEMBERED else _in_string.__wrapped__(tuple(ranges))


@lru_cache(maxsize=1024)
def _in_string(ranges: tuple[tuple[int, int], ...]) -> str | None:
    safe = intersection(ranges, complement(_UNSAFE))
    wide = len(safe) > 0 and sum(high - low + 1 for low, high in safe) > 0x1000
    wanted = _SHORT if wide else range(0x80)
    codes = [code for code in wanted if any(low <= code <= high for low, high in ranges)]
    escaped = [
        quoted(_SHORT.get(code) or f"\\u{code:04x}")
        for code in codes
        if any(a <= code <= b for a, b in _UNSAFE)
    ]
    found = [character_class(safe), *escaped] if safe else escaped
    return None if not found else found[0] if len(found) == 1 else f"({' | '.join(found)})"


def character_class(ranges: Ranges) -> str:
    return "[" + "".join(_code(a) if a == b else f"{_code(a)}-{_code(b)}" for a, b in ranges) + "]"


def _code(code: int) -> str:
    if chr(code).isascii() and chr(code).isalnum():
        return chr(code)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
