"""Strings of JSON as EBNF: quoting, character classes, free strings, keys that are not among given names. And
bounded repetition of any rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec

LAST_CHARACTER = 0x10FFFF
Ranges = list[tuple[int, int]]
MAX_RANGES = 8  # ranges in a class of characters

_SHORT = {0x22: '\\"', 0x5C: "\\\\", 0x08: "\\b", 0x09: "\\t", 0x0A: "\\n", 0x0C: "\\f", 0x0D: "\\r"}
_UNSAFE: Ranges = [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF)]

HEX = "[0-9a-fA-F]"
# An escaped pair of surrogates, or any other character; a single surrogate is not a character.
ESCAPE = (
    f'["\\\\/bfnrt] | "u" ([0-9a-cA-CefEF] {HEX} {HEX} {HEX} | [dD] [0-7] {HEX} {HEX}'
    f' | [dD] [89abAB] {HEX} {HEX} "\\\\u" [dD] [c-fC-F] {HEX} {HEX})'
)


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
    gaps, at = [], 0
    for low, high in sorted(ranges):
        if low > at:
            gaps.append((at, low - 1))
        at = max(at, high + 1)
    return [*gaps, (at, LAST_CHARACTER)] if at <= LAST_CHARACTER else gaps


def intersection(one: Iterable[tuple[int, int]], other: Ranges) -> Ranges:
    return complement([*complement(one), *complement(other)])


def in_string(ranges: Ranges) -> str | None:
    """Return one character of these in its JSON string form; None if there is none."""
    return _in_string(tuple(ranges)) if len(ranges) <= MAX_RANGES else _in_string.__wrapped__(tuple(ranges))


@lru_cache(maxsize=1024)
def _in_string(ranges: tuple[tuple[int, int], ...]) -> str | None:
    safe = intersection(ranges, complement(_UNSAFE))
    codes = [
        code
        for low, high in intersection(ranges, _UNSAFE)
        for code in range(low, min(high, 0x7F) + 1)  # a single surrogate is not a character
    ]
    options = [character_class(safe)] if safe else []
    options += [quoted(_SHORT[code]) for code in codes if code in _SHORT]
    by_first: dict[str, str] = {}
    for code in codes:
        if code not in _SHORT:
            by_first[f"{code >> 4:x}"] = by_first.get(f"{code >> 4:x}", "") + f"{code & 15:x}"
    options += [f'"\\\\u00{first}" [{digits}]' for first, digits in by_first.items()]
    text = " | ".join(options)
    return (f"({text})" if " " in text else text) or None


def is_wide(ranges: Ranges) -> bool:
    """Return whether these are so many characters that a mask of their tokens takes long."""
    return sum(high - low + 1 for low, high in ranges) > 0x1000


def character_class(ranges: Ranges) -> str:
    if ranges and ranges[0][0] == 0x5E:  # the older library takes an escaped ^ in the first place as negation
        after = [(0x5F, ranges[0][1])] if ranges[0][1] > 0x5E else []
        ranges = [*after, *ranges[1:], (0x5E, 0x5E)]
        if len(ranges) == 1:
            return '"^"'
    parts = [part for low, high in ranges for part in _split(low, high)]
    return "[" + "".join(_code(a) if a == b else f"{_code(a)}-{_code(b)}" for a, b in parts) + "]"


def _split(low: int, high: int) -> Ranges:
    """Return the range in parts of which OpenVINO GenAI's library misses none.

    It does not write the last bytes of its end where that is the first or second one of several."""
    parts = []
    for last_bytes in (0x3FFFF, 0xFFF):
        start = high & ~last_bytes
        if low < start and (high + 1) & last_bytes and high != LAST_CHARACTER:
            parts.append((low, start - 1))
            low = start
    return [*parts, (low, high)]


def _code(code: int) -> str:
    if 0x20 <= code < 0x7F and chr(code) not in '"-[\\]^':
        return chr(code)
    # The library reads all hex digits that follow `\x`, but exactly 4 of `\u` and 8 of `\U`.
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


# Characters of a string that stand for themselves. A negative class would admit bytes of surrogates, which no
# client can decode, or in OpenVINO GenAI's library nothing above its bounds.
PLAIN = character_class(complement(_UNSAFE))
PLAIN_ASCII = intersection([(0, 0x7F)], complement(_UNSAFE))

BLOCK_REPETITIONS = 32
INLINE_REPETITIONS = 64  # repetitions that are written as they stand: such a token takes 2 ms
Named = Callable[[str], str]
Count = Callable[[str, int, int, Named], str]


def repeated(unit: str, least: int, most: int, name_rule: Named, *, is_choice: bool = False) -> str:
    """Return EBNF of `unit`, `least` to `most` times, that the library compiles in constant time.

    The unit is one element, or with `is_choice` alternatives that are a character each. `name_rule` names a
    rule of a given text.

    Written directly, `x{0,1000}` of one character makes a thousand states, each with a mask of all tokens: 14
    s of CPU time to compile, and 0.6 s for a token. Here a count is a number in base BLOCK_REPETITIONS: a
    block repeats the one below it, so a bound of any size needs few rules, and rules of one character share
    theirs. Measured with a vocabulary of 49,152: 0.5 s and 8 ms, for 1,000 and for 1,000,000.

    The library expands braces around a choice anew for each token, which takes 40 ms. A character that may be
    escaped is therefore counted by a chain of rules.
    """
    counted = _chained if is_choice else _braced
    if most <= INLINE_REPETITIONS:
        return counted(unit, least, most, name_rule)
    name = unit if is_choice else name_rule(unit)
    parts = _exactly(name, least, name_rule, counted), _at_most(name, most - least, name_rule, counted)
    return " ".join(part for part in parts if part)


def _exactly(unit: str, count: int, name_rule: Named, counted: Count) -> str:
    parts = []
    while count:
        count, rest = divmod(count, BLOCK_REPETITIONS)
        if rest:
            parts.append(counted(unit, rest, rest, name_rule))
        unit = name_rule(counted(unit, BLOCK_REPETITIONS, BLOCK_REPETITIONS, name_rule)) if count else unit
        counted = _braced
    return " ".join(reversed(parts))


def _at_most(unit: str, count: int, name_rule: Named, counted: Count) -> str:
    """Return whole blocks first. After fewer than the maximal number, anything shorter than a block may
    follow."""
    if count < BLOCK_REPETITIONS:
        return counted(unit, 0, count, name_rule) if count else ""
    units = [unit]  # of each size, and what is shorter than its block
    shorter = [counted(unit, 0, BLOCK_REPETITIONS - 1, name_rule)]
    while BLOCK_REPETITIONS ** len(units) <= count:
        block = (counted if len(units) == 1 else _braced)(
            units[-1], BLOCK_REPETITIONS, BLOCK_REPETITIONS, name_rule
        )
        units.append(name_rule(block))
        shorter.append(f"{units[-1]}{_counts(0, BLOCK_REPETITIONS - 1)} {name_rule(shorter[-1])}")
    text = counted(unit, 0, count % BLOCK_REPETITIONS, name_rule) if count % BLOCK_REPETITIONS else ""
    for size, block in enumerate(units[1:], 1):
        digit = count // BLOCK_REPETITIONS**size % BLOCK_REPETITIONS
        if not digit:
            continue
        fewer = f"{block}{_counts(0, digit - 1)} " if digit > 1 else ""
        whole = f"{block}{_counts(digit, digit)} {text}".rstrip()
        text = f"({fewer}{name_rule(shorter[size - 1])} | {whole})"
    return text


def _braced(unit: str, least: int, most: int, _: Named) -> str:
    return unit + _counts(least, most)


def _chained(unit: str, least: int, most: int, name_rule: Named) -> str:
    if most == 1:
        return f"({unit}){_counts(least, most)}"
    options = unit.split(" | ")
    text = ""
    for i in reversed(range(most)):
        following = " | ".join(f"{option} {text}".rstrip() for option in options)
        text = name_rule(following if i < least else f'"" | {following}')
    return text


def _counts(least: int, most: int) -> str:
    if least == most:
        return "" if most == 1 else f"{{{most}}}"
    return "?" if (least, most) == (0, 1) else f"{{{least},{most}}}"
