"""`pattern` of JSON schema (a regular expression of ECMA-262) as EBNF of a JSON string's content.

The expression matches the whole string, with its matches escaped for JSON. Look-around, back
references, word boundaries and Unicode classes have no EBNF; a pattern with one of them is not enforced.
"""

from __future__ import annotations

from collections.abc import Callable

from ovserve.llm.grammar.repetition import repeated
from ovserve.llm.grammar.text import LAST, Ranges, complement, in_string

MAX_DEPTH = 50  # of groups
MAX_COUNT = 100_000

_DIGIT: Ranges = [(0x30, 0x39)]
_WORD: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACE: Ranges = [(0x09, 0x0D), (0x20, 0x20)]
_ALL_SPACE: Ranges = [
    *_SPACE, (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
    (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
]  # fmt: skip
_NON_ASCII: Ranges = [(0x80, LAST)]  # flavours differ on whether a letter of these is a \w
_CLASSES: dict[str, Ranges] = {
    "d": _DIGIT,
    "D": complement([*_DIGIT, *_NON_ASCII]),
    "w": _WORD,
    "W": complement([*_WORD, *_NON_ASCII]),
    "s": _SPACE,
    "S": complement(_ALL_SPACE),
}
_DOT = complement([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)])
_CONTROLS = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B, "0": 0}


class Unsupported(Exception):
    """A valid expression, as far as it was read, that EBNF cannot express."""


class Malformed(Exception):
    """The text is not a regular expression; the message is the reason."""


def expression(pattern: str, named: Callable[[str], str]) -> str | None:
    """EBNF of the texts that match as a whole; None if there are none. Raises Unsupported, Malformed.

    `named` gives a rule of that text a name."""
    reader = _Reader(pattern, named)
    found = reader.alternatives(0)
    if reader.at < len(pattern):
        raise Malformed("unmatched )")
    return found


class _Reader:
    def __init__(self, pattern: str, named: Callable[[str], str]) -> None:
        self.pattern, self.at = pattern, 0
        self._named = named

    def alternatives(self, depth: int) -> str | None:
        if depth > MAX_DEPTH:
            raise Unsupported
        found = [self._sequence(depth)]
        while self._take("|"):
            found.append(self._sequence(depth))
        some = list(dict.fromkeys(one for one in found if one is not None))
        if not some:
            return None
        return some[0] if len(some) == 1 else " | ".join(one or '""' for one in some)

    def _sequence(self, depth: int) -> str | None:
        """Return EBNF; "" for the empty text, None if no text matches."""
        parts: list[str] = []
        alive, first, ended = True, True, False
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            if self._take("^"):
                if not first or depth:  # an anchor inside requires more than a group can express
                    raise Unsupported
                continue
            if self._take("$"):
                ended = True
                continue
            if ended or (depth and ended):
                raise Unsupported
            first = False
            part = self._quantified(self._atom(depth))
            alive = alive and part is not None
            parts.append(part or "")
        if ended and depth:
            raise Unsupported
        return " ".join(part for part in parts if part) if alive else None

    def _atom(self, depth: int) -> str | None:
        """Return a single element, in parentheses if needed; "" for an empty group."""
        char = self._next()
        if char == "(":
            self._group_kind()
            inner = self.alternatives(depth + 1)
            if not self._take(")"):
                raise Malformed("missing )")
            return f"({inner})" if inner else inner
        if char == "[":
            return in_string(self._class())
        if char == ".":
            return in_string(_DOT)
        if char in "*+?":
            raise Malformed(f"nothing to repeat at {self.at - 1}")
        return in_string(self._escape() if char == "\\" else [(ord(char), ord(char))])

    def _group_kind(self) -> None:
        if not self._take("?"):
            return
        if self._take(":"):
            return
        if self.pattern.startswith("<", self.at) and self.pattern[self.at + 1 : self.at + 2] not in (
            "=",
            "!",
        ):
            end = self.pattern.find(">", self.at)
            if end < 0 or not self.pattern[self.at + 1 : end].isidentifier():
                raise Malformed("bad name of a group")
            self.at = end + 1
            return
        if self.pattern.startswith(("=", "!", "<=", "<!"), self.at):
            raise Unsupported
        raise Malformed("unknown kind of group")

    def _quantified(self, atom: str | None) -> str | None:
        least, most = 1, 1
        counted = False
        if self._take("*"):
            least, most, counted = 0, -1, True
        elif self._take("+"):
            least, most, counted = 1, -1, True
        elif self._take("?"):
            least, most, counted = 0, 1, True
        elif (counts := self._counts()) is not None:
            (least, most), counted = counts, True
        if not counted:
            return atom
        self._take("?")  # lazy and greedy are the same language
        if self.pattern.startswith(("*", "+", "?"), self.at):
            raise Malformed(f"nothing to repeat at {self.at}")
        if atom is None:
            return None if least else ""
        if not atom or most == 0:
            return ""
        if most >= 0:
            return repeated(atom, least, most, self._named)
        if least < 2:
            return atom + "*+"[least]
        return f"{repeated(atom, least, least, self._named)} {atom}*"

    def _counts(self) -> tuple[int, int] | None:
        """Read `{2}`, `{2,}` or `{2,5}`; any other brace is literal."""
        end = self.pattern.find("}", self.at, self.at + 24)
        if not self.pattern.startswith("{", self.at) or end < 0:
            return None
        low, comma, high = self.pattern[self.at + 1 : end].partition(",")
        if not (low.isascii() and low.isdigit() and (not high or (high.isascii() and high.isdigit()))):
            return None
        self.at = end + 1
        least, most = int(low), int(high) if high else -1 if comma else int(low)
        if 0 <= most < least:
            raise Malformed(f"{{{low},{high}}} is out of order")
        if max(least, most) > MAX_COUNT:
            raise Unsupported
        return least, most

    def _class(self) -> Ranges:
        negated = self._take("^")
        found: Ranges = []
        while not self._take("]"):
            low = self._member()
            if self.pattern.startswith("-", self.at) and not self.pattern.startswith("-]", self.at):
                self.at += 1
                high = self._member()
                if len(low) == 1 and len(high) == 1 and low[0][0] == low[0][1] and high[0][0] == high[0][1]:
                    if low[0][0] > high[0][0]:
                        raise Malformed("range of characters out of order")
                    found.append((low[0][0], high[0][0]))
                    continue
                raise Malformed("a class of characters cannot end a range")
            found += low
        return complement(found) if negated else complement(complement(found))

    def _member(self) -> Ranges:
        if self.at >= len(self.pattern):
            raise Malformed("missing ]")
        char = self._next()
        if char == "[" or self.pattern.startswith(("&&", "--"), self.at):
            raise Unsupported  # flavours with nested classes read it differently
        if char != "\\":
            return [(ord(char), ord(char))]
        if self._take("b"):
            return [(8, 8)]
        return self._escape()

    def _escape(self) -> Ranges:
        """Read the characters of an escape, after its backslash."""
        if self.at >= len(self.pattern):
            raise Malformed("ends in a backslash")
        char = self._next()
        if char in _CLASSES:
            return _CLASSES[char]
        if char in "bBpPk" or (char.isdigit() and char != "0"):
            raise Unsupported
        if char == "0" and self.pattern[self.at : self.at + 1].isdigit():
            raise Unsupported
        if char in _CONTROLS:
            code = _CONTROLS[char]
        elif char in "xu":
            code = self._hex(2 if char == "x" else 4)
        elif char.isascii() and char.isalnum():
            raise Unsupported
        else:
            code = ord(char)
        if 0xD800 <= code <= 0xDFFF:
            raise Unsupported
        return [(code, code)]

    def _hex(self, count: int) -> int:
        digits = self.pattern[self.at : self.at + count]
        if len(digits) < count or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise Unsupported
        self.at += count
        return int(digits, 16)

    def _next(self) -> str:
        self.at += 1
        return self.pattern[self.at - 1]

    def _take(self, text: str) -> bool:
        if not self.pattern.startswith(text, self.at):
            return False
        self.at += len(text)
        return True
