"""A scanner with offsets, which records positions in a graph.pbtxt.

protobuf's own parser decides what the text means and reports most mistakes, but it forgets positions: no
message knows its line, and an unknown type or a missing field inside an Any has no position at all. So this
scanner reads the same text once more into a tree of entries. It is lenient: it stops at text that it cannot
read, and protobuf reports the mistake. Only what protobuf explains badly (foreign comments, absurd nesting)
becomes a Fault.
"""

from __future__ import annotations

import re
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from google.protobuf import text_encoding

# Real graphs nest about seven deep. Hostile text must not exhaust our stack or protobuf's.
MAX_DEPTH = 64

_STRING = r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
_TOKEN = re.compile(
    rf"""(?P<space>\s+) | (?P<comment>\#[^\n]*) | (?P<alien>//|/\*) | (?P<string>{_STRING})
       | (?P<mark>[{{}}<>\[\]:,;]) | (?P<word>(?:(?!//|/\*)[^\s\#"'{{}}<>\[\]:,;])+) | (?P<bad>.)""",
    re.VERBOSE,
)
_PIECE = re.compile(_STRING)


class Fault(Exception):
    """A mistake at an offset; `parse_graph` converts it into a LoadError with line, node and field."""

    def __init__(self, message: str, offset: int, field: str = "") -> None:
        super().__init__(message)
        self.message, self.offset, self.field = message, offset, field
        self.others: tuple[Fault, ...] = ()  # further ones in the same text


@contextmanager
def lenient_escapes() -> Iterator[None]:
    """Suppress warnings of Python's decoder: protobuf keeps an unknown escape as it stands."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@dataclass(slots=True)
class Entry:
    """One field as written. Each item of a `[...]` list is an entry; they share `start` and `end`."""

    name: str  # brackets kept and blanks removed: "[mediapipe.X.ext]", "[type.googleapis.com/mediapipe.X]"
    start: int  # of the name
    name_end: int
    at: int  # of the value
    end: int  # after the value and its separator
    value: str | None = None  # the text of a scalar; None for a block
    value_end: int = 0  # after the value, before any separator
    listed: bool = False  # an item of `[...]`, maybe the only one
    children: list[Entry] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Return the scalar's value: strings joined and unescaped, other values as written."""
        raw = self._unescaped()
        return (self.value or "") if raw is None else raw.decode("utf-8", "replace")

    def is_utf8(self) -> bool:
        raw = self._unescaped()
        return raw is None or raw.decode("utf-8", "ignore").encode() == raw

    def _unescaped(self) -> bytes | None:
        pieces = _PIECE.findall(self.value or "")
        try:
            with lenient_escapes():
                return b"".join(text_encoding.CUnescape(piece[1:-1]) for piece in pieces) if pieces else None
        except ValueError:  # a bad escape; protobuf reports it
            return None

    def child(self, name: str) -> Entry | None:
        return next((entry for entry in self.children if entry.name == name), None)

    def walk(self) -> Iterator[Entry]:
        yield self
        for entry in self.children:
            yield from entry.walk()


class Document:
    """The scanned text: `entries` is the tree as far as it is readable, `fault` a certain mistake."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.entries: list[Entry] = []
        self.empty_lists: list[tuple[str, int]] = []  # `name: []` makes no entry; offset of the name
        self.fault: Fault | None = None
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        tokens: list[_Token] = []
        for match in _TOKEN.finditer(text):
            kind = match.lastgroup or "bad"
            if kind not in ("comment", "space"):
                tokens.append((kind, match.group(), match.start()))
        try:
            _Scanner(tokens, len(text), self.empty_lists).fields(self.entries, "", 0)
        except Fault as fault:
            self.fault = fault
        except _Stop:
            pass

    @property
    def nodes(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.name == "node"]

    def place(self, offset: int) -> tuple[int, int]:
        """Return line and column, both from 1."""
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def offset(self, line: int, column: int) -> int:
        return self._line_starts[min(line, len(self._line_starts)) - 1] + column - 1

    def path(self, offset: int) -> list[Entry]:
        """Return the entries around an offset, outermost first."""
        entries: list[Entry] = []
        level = self.entries
        while level:
            around = [entry for entry in level if entry.start <= offset < entry.end]
            if not around:
                break
            # Items of one list overlap by their shared span; the last one that begins is meant.
            begun = [entry for entry in around if entry.at <= offset]
            entries.append(begun[-1] if begun else around[0])
            level = entries[-1].children
        return entries

    def replaced(self, edits: list[Edit]) -> str:
        """Return the text with spans overwritten. The rest keeps its line, and its column if nothing grew."""
        text = self.text
        for start, end, new in sorted(edits, reverse=True):
            old = text[start:end]
            blank = "\n" * old.count("\n", 0, len(new)) + re.sub(r"[^\n]", " ", old[len(new) :])
            text = text[:start] + new + blank + text[end:]
        return text


_Token = tuple[str, str, int]  # kind, text, offset
Edit = tuple[int, int, str]  # start, end, replacement


class _Stop(Exception):
    """The text is not a tree from this point on."""


class _Scanner:
    def __init__(self, tokens: list[_Token], length: int, empty_lists: list[tuple[str, int]]) -> None:
        self._tokens = tokens
        self._length = length
        self._empty_lists = empty_lists
        self._next = 0

    def fields(self, into: list[Entry], closer: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise Fault(f"blocks nested deeper than {MAX_DEPTH}", self._peek()[2])
        while True:
            kind, text, start = self._take()
            if text == closer:  # at the top level the closer is "", which only the end of the text has
                return
            if text == "[":
                text = self._bracket()
            elif kind != "word":
                raise _Stop
            begun, name_end = len(into), self._past()
            self._skip(":")
            if self._skip("["):
                while not self._skip("]"):
                    self._value(into, text, (start, name_end), depth)
                    into[-1].listed = True
                    self._skip(",")
                if len(into) == begun:
                    self._empty_lists.append((text, start))
            else:
                self._value(into, text, (start, name_end), depth)
            if not self._skip(","):
                self._skip(";")
            for entry in into[begun:]:
                entry.end = self._past()

    def _value(self, into: list[Entry], name: str, span: tuple[int, int], depth: int) -> None:
        kind, text, at = self._take()
        entry = Entry(name, *span, at, self._length)
        into.append(entry)
        if text in ("{", "<"):
            self.fields(entry.children, "}" if text == "{" else ">", depth + 1)
            entry.value_end = self._past()
            return
        if kind not in ("word", "string"):
            raise _Stop
        entry.value = text
        while kind == "string" and self._peek()[0] == "string":
            entry.value += self._take()[1]
        if text == "-" and self._peek()[0] == "word":
            entry.value += self._take()[1]
        entry.value_end = self._past()

    def _bracket(self) -> str:
        name = "["
        while (token := self._peek())[1] != "]":
            # "//" is not a comment here, only a bad type name, and protobuf reports it as such.
            if token[0] not in ("word", "mark", "alien") or token[1] in "[{}<>":
                raise _Stop
            name += token[1]
            self._next += 1
        self._next += 1
        return name + "]"

    def _peek(self) -> _Token:
        return self._tokens[self._next] if self._next < len(self._tokens) else ("end", "", self._length)

    def _take(self) -> _Token:
        kind, text, at = self._peek()
        if kind == "alien":
            raise Fault(f"{text!r} does not start a comment in text format; use #", at)
        self._next += 1
        return kind, text, at

    def _skip(self, mark: str) -> bool:
        kind, text, _ = self._peek()
        if kind == "mark" and text == mark:
            self._next += 1
            return True
        return False

    def _past(self) -> int:
        _, text, at = self._tokens[self._next - 1]
        return at + len(text)
