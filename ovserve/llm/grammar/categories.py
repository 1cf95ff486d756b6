"""Sets of characters that regular expressions name: general categories, and both cases of letters."""

from __future__ import annotations

import sys
import unicodedata
from functools import cache, lru_cache

from ovserve.llm.grammar.text import Ranges, complement

_NAMES = {
    "Letter": "L", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M", "Number": "N", "Decimal_Number": "Nd",
    "digit": "Nd", "Letter_Number": "Nl", "Other_Number": "No", "Punctuation": "P", "Symbol": "S",
    "Math_Symbol": "Sm", "Currency_Symbol": "Sc", "Separator": "Z", "Space_Separator": "Zs", "Control": "Cc",
}  # fmt: skip
_KINDS = frozenset({*_NAMES.values(), "Mn", "Mc", "Me", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po",
                    "Sk", "So", "Zl", "Zp", "Cf"})  # fmt: skip
_OTHER_NAMES: dict[str, Ranges] = {"ASCII": [(0, 0x7F)], "Any": [(0, sys.maxunicode)]}


def category(name: str) -> Ranges | None:
    """Return the characters of `\\p{name}`; None if the name is not known here."""
    name = name.removeprefix("General_Category=").removeprefix("gc=")
    if name in _OTHER_NAMES:
        return _OTHER_NAMES[name]
    kind = _NAMES.get(name, name)
    return _category(kind) if kind in _KINDS else None


@lru_cache(maxsize=64)
def _category(kind: str) -> Ranges:
    return complement(complement((low, high) for low, high, found in _table() if found.startswith(kind)))


@cache
def _table() -> list[tuple[int, int, str]]:
    """Return the runs of characters of one category; it takes 0.1 s, once."""
    found, start, kind = [], 0, unicodedata.category("\0")
    for code in range(1, sys.maxunicode + 2):
        other = unicodedata.category(chr(code)) if code <= sys.maxunicode else ""
        if other != kind:
            found.append((start, code - 1, kind))
            start, kind = code, other
    return found


def folded(ranges: Ranges) -> Ranges:
    """Return these characters and those that differ from them only by case."""
    found = complement(complement(ranges))
    cases = _cases()
    more: set[int] = set()
    for low, high in found:
        # A pattern has thousands of letters, so each is looked up alone; wide ranges are few.
        some = range(low, high + 1) if high - low < len(cases) else (c for c in cases if low <= c <= high)
        for code in some:
            more |= cases.get(code, frozenset())
    return complement(complement([*found, *((code, code) for code in sorted(more))]))


@cache
def _cases() -> dict[int, frozenset[int]]:
    """Return letters, and those of the other case.

    Flavours differ on the few that pair ASCII with other letters, like the Kelvin sign; these are left out.
    """
    found: dict[int, set[int]] = {}
    for code in range(0x2000):
        for other in {chr(code).lower(), chr(code).upper()} - {chr(code)}:
            if len(other) == 1 and (code < 0x80) == (ord(other) < 0x80):
                found.setdefault(code, set()).add(ord(other))
                found.setdefault(ord(other), set()).add(code)
    return {code: frozenset(others) for code, others in found.items()}
