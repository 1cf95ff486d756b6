r"""A JSON value as it arrives: where it ends, whether it is valid so far, and its text ready to send.

It is a push-down automaton with its own stack, so a thousand
brackets need no recursion. The text passes through unchanged (big integers, number forms, key order), except
that raw control characters and backslashes that begin no escape (`C:\path`) are escaped in strings: models
write them, strict clients cannot read them.
"""

from __future__ import annotations

import json
import re

_SPACE = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r'[^"\\]*')
_CONTROL = re.compile(r"[\x00-\x1f]")
_NUMBER_CHARS = re.compile(r"[0-9+\-.eE]*")
JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_UNICODE_ESCAPE = 5  # characters after the backslash
_HEX = frozenset("0123456789abcdefABCDEF")
_WORDS = {"t": "true", "f": "false", "n": "null"}

_VALUE, _VALUE_OR_END, _KEY, _KEY_OR_END, _COLON, _NEXT, _STRING, _ESCAPE, _HEXES, _NUM, _WORD = range(11)


class NotJson(Exception):
    pass


class JsonScan:
    """Scans one value. Feed it with `scan` until `done`."""

    __slots__ = ("_in_key", "_left", "_number", "_out", "_stack", "_state", "done")

    def __init__(self) -> None:
        self.done = False
        self._state = _VALUE
        self._stack: list[str] = []
        self._out: list[str] = []
        self._in_key = False
        self._left = ""  # rest of a literal, or an escape so far
        self._number = ""

    def take(self) -> str:
        """Return the text scanned since the last call."""
        text = "".join(self._out)
        self._out.clear()
        return text

    def scan(self, text: str, pos: int) -> int:
        """Return how far the value reaches; all of the text unless `done`. Raises NotJson if it is not
        JSON."""
        end = len(text)
        while pos < end and not self.done:
            state = self._state
            if state == _STRING:
                pos = self._string(text, pos)
            elif state in (_ESCAPE, _HEXES):
                pos += self._escape(text[pos])
            elif state == _NUM:
                pos = self._digits(text, pos)
            elif state == _WORD:
                if text[pos] != self._left[0]:
                    raise NotJson
                self._out.append(text[pos])
                self._left = self._left[1:]
                pos += 1
                if not self._left:
                    self._value_ends()
            else:
                match = _SPACE.match(text, pos)
                if match and match.end() > pos:
                    self._out.append(match.group())
                    pos = match.end()
                else:
                    pos = self._structure(text[pos], pos)
        return pos

    def end(self) -> None:
        """End the text: a bare number is complete now. Raises NotJson if the value is incomplete."""
        if self._state == _NUM and not self._stack and JSON_NUMBER.fullmatch(self._number):
            self.done = True
        if not self.done:
            raise NotJson

    def _structure(self, char: str, pos: int) -> int:
        state = self._state
        if state in (_VALUE, _VALUE_OR_END):
            if char == "]" and state == _VALUE_OR_END:
                return self._shut(char, pos)
            return self._begin(char, pos)
        if state in (_KEY, _KEY_OR_END):
            if char == '"':
                self._in_key = True
                self._state = _STRING
            elif char == "}" and state == _KEY_OR_END:
                return self._shut(char, pos)
            else:
                raise NotJson
        elif state == _COLON and char == ":":
            self._state = _VALUE
        elif state == _NEXT and char == ",":
            self._state = _KEY if self._stack[-1] == "}" else _VALUE
        elif state == _NEXT and char == self._stack[-1]:
            return self._shut(char, pos)
        else:
            raise NotJson
        self._out.append(char)
        return pos + 1

    def _begin(self, char: str, pos: int) -> int:
        if char == "{":
            self._stack.append("}")
            self._state = _KEY_OR_END
        elif char == "[":
            self._stack.append("]")
            self._state = _VALUE_OR_END
        elif char == '"':
            self._in_key = False
            self._state = _STRING
        elif char in _WORDS:
            self._left = _WORDS[char]
            self._state = _WORD
            return pos
        elif char == "-" or "0" <= char <= "9":
            self._number = ""
            self._state = _NUM
            return pos
        else:
            raise NotJson
        self._out.append(char)
        return pos + 1

    def _shut(self, char: str, pos: int) -> int:
        self._stack.pop()
        self._out.append(char)
        self._value_ends()
        return pos + 1

    def _value_ends(self) -> None:
        self.done = not self._stack
        self._state = _NEXT

    def _string(self, text: str, pos: int) -> int:
        match = _PLAIN.match(text, pos)
        assert match is not None, "the pattern matches the empty text"
        plain = match.group()
        if _CONTROL.search(plain):
            plain = _CONTROL.sub(lambda m: json.dumps(m.group())[1:-1], plain)
        self._out.append(plain)
        pos = match.end()
        if pos == len(text):
            return pos
        if text[pos] == "\\":
            self._state = _ESCAPE
            return pos + 1
        self._out.append(text[pos])
        if self._in_key:
            self._in_key = False
            self._state = _COLON
        else:
            self._value_ends()
        return pos + 1

    def _escape(self, char: str) -> bool:
        """Take a character after a backslash; return whether it belongs to the escape.

        A backslash that begins no escape is one that the model did not double: it is doubled. `\\'` is
        Python's escape of a quote.
        """
        if self._state == _ESCAPE:
            if char == "u":
                self._left = "u"
                self._state = _HEXES
                return True
            self._state = _STRING
            if char == "'":
                self._out.append(char)
                return True
            escape = char in '"\\/bfnrt'
            self._out.append("\\" + char if escape else "\\\\")
            return escape
        if char not in _HEX:
            self._out.append("\\\\" + self._left)
            self._state = _STRING
            return False
        self._left += char
        if len(self._left) == _UNICODE_ESCAPE:
            self._out.append("\\" + self._left)
            self._state = _STRING
        return True

    def _digits(self, text: str, pos: int) -> int:
        match = _NUMBER_CHARS.match(text, pos)
        assert match is not None, "the pattern matches the empty text"
        self._number += match.group()
        self._out.append(match.group())
        pos = match.end()
        if pos < len(text):
            if not JSON_NUMBER.fullmatch(self._number):
                raise NotJson
            self._value_ends()
        return pos


def as_json(text: str, first: str = "") -> str | None:
    """Return the text ready to send if it is one JSON value (beginning with a character of `first`, if
    given)."""
    stripped = text.strip(" \t\r\n")
    if not stripped or (first and stripped[0] not in first):
        return None
    scan = JsonScan()
    try:
        end = scan.scan(stripped, 0)
        scan.end()
    except NotJson:
        return None
    return scan.take() if end == len(stripped) else None


def quote(text: str) -> str:
    """Return a JSON string. Non-ASCII stays readable; single surrogates, which no encoder accepts, are
    escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if _encodable(quoted) else json.dumps(text)


def unquote(quoted: str) -> str:
    """Return the text of a JSON string that a JsonScan accepted."""
    text = json.loads(quoted)
    assert isinstance(text, str), "the caller scanned a string"
    return text if _encodable(text) else text.encode("utf-8", "replace").decode()


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
