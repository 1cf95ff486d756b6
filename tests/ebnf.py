"""EBNF as the library reads it, in Python: random texts of a grammar.

It is much faster than the real compiler, so property tests try thousands of texts; tests/engine check with the
real one that both mean the same language.
"""

from __future__ import annotations

import random
import re
from typing import Any

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|\{\d+(?:,\d*)?\}|[()|*+?]|[A-Za-z_]\w*)')
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]+|u[0-9a-f]{4}|U[0-9a-f]{8}|.)|(.)", re.S)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r"}
ALPHABET = "aZ09 _-.:/\u00e4\u20ac\U0001f600{}[],@#%'~<>^$\t\n\"\\"


def parse(grammar: str) -> dict[str, Any]:
    rules = {}
    for line in grammar.splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, body = line.partition("::=")
            tokens = _TOKEN.findall(body)
            assert "".join(tokens).replace(" ", "") == body.strip().replace(" ", "") or tokens, body
            node, rest = _either(tokens)
            assert not rest, (line, rest)
            rules[name.strip()] = node
    return rules


def _either(tokens: list[str]) -> tuple[Any, list[str]]:
    branches = []
    while True:
        node, tokens = _sequence(tokens)
        branches.append(node)
        if not tokens or tokens[0] != "|":
            return ("or", branches), tokens
        tokens = tokens[1:]


def _sequence(tokens: list[str]) -> tuple[Any, list[str]]:
    parts: list[Any] = []
    while tokens and tokens[0] not in "|)":
        head, tokens = tokens[0], tokens[1:]
        if head == "(":
            node, tokens = _either(tokens)
            assert tokens[0] == ")"
            tokens = tokens[1:]
        elif head[0] == '"':
            node = ("text", "".join(chr(code) for code in _codes(head[1:-1])))
        elif head[0] == "[":
            node = _class(head[1:-1])
        else:
            node = ("rule", head)
        while tokens and (tokens[0] in "*+?" or tokens[0][0] == "{"):
            node = ("repeat", node, *_counts(tokens[0]))
            tokens = tokens[1:]
        parts.append(node)
    return ("all", parts), tokens


def _counts(token: str) -> tuple[int, int | None]:
    if token in "*+?":
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[token]  # type: ignore[return-value]
    low, comma, high = token[1:-1].partition(",")
    return int(low), int(high) if high else None if comma else int(low)


def _codes(text: str) -> list[int]:
    return [code for code, _ in _escaped(text)]


def _escaped(text: str) -> list[tuple[int, bool]]:
    found = []
    for escape, plain in _ESCAPE.findall(text):
        if plain:
            found.append((ord(plain), False))
        elif escape[0] in "xuU" and len(escape) > 1:
            found.append((int(escape[1:], 16), True))
        else:
            found.append((ord(_SIMPLE.get(escape, escape)), True))
    return found


def _class(text: str) -> Any:
    negated = text.startswith("^")
    codes = _escaped(text[negated:])
    ranges, at = [], 0
    while at < len(codes):
        if at + 2 < len(codes) and codes[at + 1] == (ord("-"), False):
            ranges.append((codes[at][0], codes[at + 2][0]))
            at += 3
        else:
            ranges.append((codes[at][0], codes[at][0]))
            at += 1
    return ("class", negated, ranges)


class Sampler:
    def __init__(self, grammar: str, seed: int = 0, size: int = 300) -> None:
        self._rules = parse(grammar)
        self._random = random.Random(seed)
        self._size = size

    def text(self) -> str | None:
        """None where it became too long."""
        self._out: list[str] = []
        stack: list[Any] = [("rule", "root")]
        for _ in range(20 * self._size):
            if not stack:
                return "".join(self._out)
            if len(self._out) > self._size:
                return None
            self._expand(stack.pop(), stack)
        return None

    def _expand(self, node: Any, stack: list[Any]) -> None:
        kind = node[0]
        if kind == "rule":
            stack.append(self._rules[node[1]])
        elif kind == "or":
            stack.append(self._random.choice(node[1]))
        elif kind == "all":
            stack.extend(reversed(node[1]))
        elif kind == "text":
            self._out.append(node[1])
        elif kind == "class":
            self._out.append(self._character(*node[1:]))
        else:
            _, inner, least, most = node
            count = (
                least + int(self._random.expovariate(0.7))
                if most is None
                else self._random.randint(
                    least, min(most, least + 12) if self._random.random() < 0.8 else most
                )
            )
            stack.extend([inner] * count)

    def _character(self, negated: bool, ranges: list[tuple[int, int]]) -> str:
        if negated or any(high - low > 1000 for low, high in ranges):
            for _ in range(200):
                char = self._random.choice(ALPHABET)
                if any(low <= ord(char) <= high for low, high in ranges) != negated:
                    return char
        assert not negated
        low, high = self._random.choice(ranges)
        return chr(self._random.choice([low, high, self._random.randint(low, high)]))
