"""Read a regular expression of ECMA-262 as a tree (`regular.py`), also in the spellings of other flavours.

A reference to a group is the group's text: the tree has an alternative for each text of the group, if they
are few. What flavours read differently, or what makes the language irregular, is `Unsupported`; what no
flavour reads is `Malformed`. Escapes and classes mean what ECMA-262 says: `\\d` and `\\w` are ASCII.

Sets of characters that regular expressions name: properties of Unicode, and both cases of letters.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import cache, lru_cache

from ovserve.llm.grammar.regular import (
    EMPTY,
    MAX_COUNT,
    Alternatives,
    Chars,
    Edge,
    Look,
    Reference,
    Repeat,
    Sequence,
    Tree,
    literal,
    map_children,
    nodes,
    texts,
)
from ovserve.llm.grammar.text import LAST_CHARACTER, Ranges, complement

_PROPERTY = re.compile(r"\\[pP](?:\{([^{}]+)\}|([A-Za-z]))")
_NAME = re.compile("[A-Za-z_]+(=[A-Za-z0-9_]+)?")
# Names of POSIX, which ECMA-262 lacks or reads differently, and of blocks, which are its names of properties.
_AMBIGUOUS = frozenset(["alnum", "blank", "graph", "print", "punct", "word", "xdigit", "idc", "vs"])
STEPS_PER_CHARACTER, STEPS_PER_PROPERTY = 10, 5000  # of a pattern: it is slow to read, a property takes 8 ms


def steps(pattern: str) -> int:
    """Return how many steps it takes to read the pattern."""
    properties = set(_PROPERTY.findall(pattern))
    return STEPS_PER_CHARACTER * len(pattern) + STEPS_PER_PROPERTY * len(properties)


@lru_cache(maxsize=256)
def category(name: str) -> Ranges | None:
    """Return the characters of `\\p{name}`; None if the name is not known here."""
    import regex  # it has the tables of Unicode

    if not _NAME.fullmatch(name) or name.lower() in _AMBIGUOUS:
        return None
    try:
        runs = regex.finditer(f"\\p{{{name}}}+", _all_characters())
    except regex.error:
        return None
    return [(run.start(), run.end() - 1) for run in runs]


@cache
def _all_characters() -> str:
    """Return all characters, with those newer than Python's tables as unassigned: validators may lack them.

    It takes 0.2 s, once."""
    every = map(chr, range(sys.maxunicode + 1))
    return "".join(char if unicodedata.category(char) != "Cn" else "\u0378" for char in every)


def folded(ranges: Ranges) -> Ranges:
    """Return these characters and those that differ from them only by case."""
    ranges_of_case = complement(complement(ranges))
    cases = _cases()
    more: set[int] = set()
    for low, high in ranges_of_case:
        # A pattern has thousands of letters, so each is looked up alone; wide ranges are few.
        some = range(low, high + 1) if high - low < len(cases) else (c for c in cases if low <= c <= high)
        for code in some:
            more |= cases.get(code, frozenset())
    return complement(complement([*ranges_of_case, *((code, code) for code in sorted(more))]))


@cache
def _cases() -> dict[int, frozenset[int]]:
    """Return letters, and those of the other case.

    Flavours differ on the few that pair ASCII with other letters, like the Kelvin sign; these are left out.
    """
    cases: dict[int, set[int]] = {}
    for code in range(0x2000):
        for other in {chr(code).lower(), chr(code).upper()} - {chr(code)}:
            if len(other) == 1 and (code < 0x80) == (ord(other) < 0x80):
                cases.setdefault(code, set()).add(ord(other))
                cases.setdefault(ord(other), set()).add(code)
    return {code: frozenset(others) for code, others in cases.items()}


MAX_DEPTH = 50  # of groups
MAX_TEXTS = 64  # of a group that is referred to, and characters of one
MAX_COPIED = 20_000  # parts of a tree that references to groups repeat
_REFERENCE = re.compile(r"([1-9][0-9]?)(?![0-9])|k<([^<>]*)>")

_DIGIT: Ranges = [(0x30, 0x39)]
_WORD: Ranges = [(0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)]
_SPACE: Ranges = [
    (0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
    (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF),
]  # fmt: skip
_CLASSES: dict[str, Ranges] = {
    "d": _DIGIT,
    "D": complement(_DIGIT),
    "w": _WORD,
    "W": complement(_WORD),
    "s": _SPACE,
    "S": complement(_SPACE),
}
_DOT = complement([(0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029)])
_ANY: Ranges = [(0, LAST_CHARACTER)]
_CONTROLS = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B}
_HEX = frozenset("0123456789abcdefABCDEF")
_LOOKS = ("=", "!", "<=", "<!")  # ahead and behind


class Unsupported(Exception):
    """A valid expression, as far as it was read, that cannot be held; the message says which part."""


class Malformed(Exception):
    """The text is not a regular expression; the message is the reason."""


def read(pattern: str) -> Tree:
    """Return the tree of the expression. Raises Unsupported, Malformed."""
    reader = _Reader(pattern)
    tree = reader.alternatives(0)
    if reader.at < len(pattern):
        raise Malformed("unmatched )")
    if reader.refers and any(isinstance(one, Reference) for one in nodes(tree)):
        reader.unsupported = reader.unsupported or "references to groups"
    if reader.unsupported:
        raise Unsupported(reader.unsupported)
    return tree


def _boundary(between: bool) -> Tree:
    """Return where a word begins or ends, or if not `between`, where none does."""
    word = Chars(tuple(_WORD))
    return Alternatives(
        tuple(
            Sequence((Look(word, before, behind=True), Look(word, before != between)))
            for before in (True, False)
        )
    )


class _Reader:
    """Reads to the end also after a part that cannot be held, to see whether the rest is well-formed."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at = pattern, 0
        self.unsupported = ""
        self._ignore_case = self._dot_all = False
        self._groups: list[Tree | None] = []  # that capture; None: not read to its end
        self._names: dict[str, int] = {}  # of groups
        self.refers = False
        self._left = MAX_COPIED

    def alternatives(self, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise Unsupported(f"more than {MAX_DEPTH} groups in each other")
        options = [self._sequence(depth)]
        while self._take("|"):
            options.append(self._sequence(depth))
        some = tuple(dict.fromkeys(options))
        return some[0] if len(some) == 1 else Alternatives(some)

    def _sequence(self, depth: int) -> Tree:
        parts: list[Tree] = []
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            parts += self._quantified(*self._atom(depth))
        if len(parts) == 1:
            return parts[0]
        return self._with_texts(parts) if self.refers else Sequence(tuple(parts))

    def _with_texts(self, parts: list[Tree]) -> Tree:
        """Return the sequence with the text of each of its groups in place of references."""
        places = {id(part): i for i, part in enumerate(parts)}
        numbers = [(places[id(tree)], i) for i, tree in enumerate(self._groups) if id(tree) in places]
        references = {one for part in parts for one in nodes(part) if isinstance(one, Reference)}
        pair = next((pair for pair in numbers if Reference(pair[1]) in references), None)
        if pair is None:
            return Sequence(tuple(parts))
        at, number = pair
        some = texts(parts[at], MAX_TEXTS) or []
        self._left -= len(some) * sum(1 for part in parts for _ in nodes(part))
        if not some or self._left < 0:
            self._unsupported("references to groups of many texts")
            return Sequence(tuple(parts))
        options = []
        for one in map(literal, some):
            rest = [_replaced(part, Reference(number), one) for part in parts[at + 1 :]]
            options.append(self._with_texts([*parts[:at], one, *rest]))
        return Alternatives(tuple(options))

    def _atom(self, depth: int) -> tuple[Tree, bool]:
        """Return a single element, and whether it may be repeated."""
        char = self._next()
        if char in "^$":
            return Edge(char == "^"), False
        if char == "(":
            return self._group(depth)
        if char == "[":
            return Chars(tuple(self._class())), True
        if char == ".":
            return Chars(tuple(_ANY if self._dot_all else _DOT)), True
        if char in "*+?":
            raise Malformed(f"nothing to repeat at {self.at - 1}")
        if char == "\\" and (self._take("b") or self._take("B")):
            return _boundary(self.pattern[self.at - 1] == "b"), False
        reference = _REFERENCE.match(self.pattern, self.at) if char == "\\" else None
        if reference is not None:
            return self._reference(reference), True
        ranges = self._escape() if char == "\\" else [(ord(char), ord(char))]
        return Chars(tuple(folded(ranges) if self._ignore_case else ranges)), True

    def _group(self, depth: int) -> tuple[Tree, bool]:
        flags = self._ignore_case, self._dot_all
        kind = self._group_kind()
        if kind == "flags":  # they hold for the rest of the enclosing group, which restores them
            return EMPTY, False
        number = len(self._groups)
        self._groups += [None] * (kind == "captures")
        inner = self.alternatives(depth + 1)
        if not self._take(")"):
            raise Malformed("missing )")
        self._ignore_case, self._dot_all = flags
        if kind in _LOOKS:
            if kind[0] == "<" and any(map(_looks_ahead, nodes(inner))):
                self._unsupported("what depends on the text after a look-behind")
            return Look(inner, kind[-1] == "=", kind[0] == "<"), True
        if kind == "captures":
            self._groups[number] = inner
        return inner, True

    def _reference(self, match: re.Match[str]) -> Tree:
        number = self._names.get(match[2], -1) if match[1] is None else int(match[1]) - 1
        if self._ignore_case or not 0 <= number < len(self._groups) or self._groups[number] is None:
            self._unsupported("references to groups")
        self.at, self.refers = match.end(), True
        return Reference(number)

    def _group_kind(self) -> str:
        """Read what follows the parenthesis; return one of `_LOOKS`, "captures", or "flags" if it ends
        there."""
        if self._take("*"):
            self._unsupported("verbs (*...)")
        if not self._take("?"):
            return "captures"
        if self._take(":"):
            return ""
        for text in _LOOKS:
            if self._take(text):
                return text
        for text, why in (
            (">", "atomic groups"),
            ("|", "branch reset"),
            ("#", "comments"),
            ("(", "conditions"),
        ):
            if self._take(text):
                self._unsupported(f"{why} (?{text}...)")
                return ""
        if self._take("P=") or self._take("P>"):
            self._unsupported("references to groups")
            return ""
        if self._take("P<") or self._take("<") or self._take("'"):
            end = self.pattern.find("'" if self.pattern[self.at - 1] == "'" else ">", self.at)
            if end < 0 or not self.pattern[self.at : end].replace("$", "_").isidentifier():
                raise Malformed("bad name of a group")
            self._names[self.pattern[self.at : end]] = len(self._groups)
            self.at = end + 1
            return "captures"
        return self._flags()

    def _flags(self) -> str:
        on = True
        while self.at < len(self.pattern) and self.pattern[self.at] not in ":)":
            flag = self._next()
            if flag == "-":
                on = False
            elif flag == "i":
                self._ignore_case = on
            elif flag == "s":
                self._dot_all = on
            elif flag in "amuxULnJ":
                if on and flag in "mxULnJ":
                    self._unsupported(f"the flag {flag}")
            else:
                raise Malformed("unknown kind of group")
        if self._take(":"):
            return ""
        if self.at >= len(self.pattern):
            raise Malformed("missing )")
        self.at += 1
        return "flags"

    def _quantified(self, atom: Tree, repeatable: bool) -> tuple[Tree, ...]:
        start = self.at
        counts = self._counts()
        if counts is None:
            return (atom,)
        if not repeatable:
            raise Malformed(f"nothing to repeat at {start}")
        if isinstance(atom, Look):
            self._unsupported("repeated look-ahead")
        least, most = counts
        possessive = not self._take("?") and self._take("+")  # lazy and greedy are the same language
        again = self.at
        if self._counts() is not None:
            raise Malformed(f"nothing to repeat at {again}")
        repeat = Repeat(atom, least, most)
        if not possessive:
            return (repeat,)
        if not isinstance(atom, Chars) or most is not None:
            self._unsupported("possessive repetition of more than one character")
        return repeat, Look(atom, matches=False)

    def _counts(self) -> tuple[int, int | None] | None:
        """Read a quantifier: `*`, `+`, `?`, `{2}`, `{2,}` or `{2,5}`; any other brace is literal."""
        for text, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(text):
                return counts
        end = self.pattern.find("}", self.at, self.at + 24)
        if not self.pattern.startswith("{", self.at) or end < 0:
            return None
        low, comma, high = self.pattern[self.at + 1 : end].partition(",")
        if comma and not low and _is_number(high):
            self._unsupported("{,n}, which flavours read differently")
        if not _is_number(low) or (high and not _is_number(high)):
            return None
        self.at = end + 1
        least, most = int(low), int(high) if high else None if comma else int(low)
        if most is not None and most < least:
            raise Malformed(f"{{{low},{high}}} is out of order")
        if max(least, most or 0) > MAX_COUNT:
            self._unsupported(f"counts above {MAX_COUNT}")
            return 0, 1
        return least, most

    # ---- classes

    def _class(self) -> Ranges:
        negated = self._take("^")
        if self.pattern.startswith("]", self.at) and "]" in self.pattern[self.at + 1 :]:
            self._unsupported("a class that begins with ], which flavours read differently")
        ranges: Ranges = []
        while not self._take("]"):
            low = self._member()
            if self.pattern.startswith("-", self.at) and self.pattern[self.at + 1 : self.at + 2] not in (
                "",
                "]",
            ):
                self.at += 1
                high = self._member()
                if len(low) == len(high) == 1 and low[0][0] == low[0][1] and high[0][0] == high[0][1]:
                    if low[0][0] > high[0][0]:
                        raise Malformed("range of characters out of order")
                    ranges.append((low[0][0], high[0][0]))
                    continue
                low = [*low, (0x2D, 0x2D), *high]  # next to a class of characters the hyphen is one of them
            ranges += low
        if self._ignore_case:
            ranges = folded(ranges)
        return complement(ranges) if negated else complement(complement(ranges))

    def _member(self) -> Ranges:
        if self.at >= len(self.pattern):
            raise Malformed("missing ]")
        char = self._next()
        if (char == "[" and self.pattern[self.at : self.at + 1] in (":", ".", "=")) or (
            char in "&-~" and self.pattern.startswith(char, self.at)
        ):
            self._unsupported("operators in a class, which flavours read differently")
        if char != "\\":
            return [(ord(char), ord(char))]
        if self._take("b"):
            return [(8, 8)]
        return self._escape()

    # ---- escapes

    def _escape(self) -> Ranges:
        """Read the characters of an escape, after its backslash."""
        if self.at >= len(self.pattern):
            raise Malformed("ends in a backslash")
        char = self._next()
        if char in _CLASSES:
            return _CLASSES[char]
        if char in "pP":
            return self._property(char == "P")
        if char == "0" and not self.pattern[self.at : self.at + 1].isdigit():
            code = 0
        elif char.isdigit() or char == "k":
            return self._unsupported("references to groups")
        elif char in _CONTROLS:
            code = _CONTROLS[char]
        elif char == "c" and self.pattern[self.at : self.at + 1].isalpha():
            code = ord(self._next()) % 32
        elif char in "xu":
            code = self._code(2 if char == "x" else 4)
        elif char.isascii() and char.isalnum():
            return self._unsupported(f"the escape \\{char}")
        else:
            code = ord(char)
        if not self.unsupported and 0xD800 <= code <= 0xDFFF:
            return self._unsupported("single surrogates")
        return [(code, code)]

    def _property(self, negated: bool) -> Ranges:
        match = _PROPERTY.match(self.pattern, self.at - 2)
        if match is None:
            raise Malformed("bad name of a property")
        self.at, name = match.end(), match[1] or match[2]
        if (ranges := category(name)) is None:
            return self._unsupported(f"the property {name}")
        return complement(ranges) if negated else ranges

    def _code(self, count: int) -> int:
        if self._take("{"):
            end = self.pattern.find("}", self.at, self.at + 8)
            digits = self.pattern[self.at : max(end, self.at)]
            self.at = max(end + 1, self.at)
        else:
            digits = self.pattern[self.at : self.at + count]
            self.at += len(digits)
            if len(digits) != count:
                digits = ""
        if not digits or not _HEX.issuperset(digits):
            raise Malformed(f"expected hex digits at {self.at}")
        code = int(digits, 16)
        if code > LAST_CHARACTER:
            raise Malformed(f"no character has the code {digits}")
        if 0xD800 <= code < 0xDC00 and self._take("\\u"):
            low = self._code(4)
            if not 0xDC00 <= low <= 0xDFFF:
                self._unsupported("single surrogates")
            return 0x10000 + (code - 0xD800) * 0x400 + (low - 0xDC00)
        return code

    def _unsupported(self, what: str) -> Ranges:
        self.unsupported = self.unsupported or what
        return []

    def _next(self) -> str:
        if self.at >= len(self.pattern):
            raise Malformed("it ends too early")
        self.at += 1
        return self.pattern[self.at - 1]

    def _take(self, text: str) -> bool:
        if not self.pattern.startswith(text, self.at):
            return False
        self.at += len(text)
        return True


def _looks_ahead(tree: Tree) -> bool:
    return tree == Edge(False) or (isinstance(tree, Look) and not tree.behind)


def _replaced(tree: Tree, reference: Reference, by: Tree) -> Tree:
    """Return the tree with another one in place of a reference; itself if it has none."""
    if reference not in nodes(tree):
        return tree
    return by if tree == reference else map_children(tree, lambda one: _replaced(one, reference, by))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
