"""The text of an answer as a parser reads it: forward, waiting where it must, going back where it guessed.

Every dialect is written as plain straight-line code over a Cursor; `yield` means "cannot decide without more
text". A decision may depend on the characters and on the end of the text, never on how the text was cut. So a
stream and a whole answer are the same by construction. That includes the place where a failure is noticed:
`offset` is the same for every cut when NotACall is raised.

Text already read is dropped from the buffer (kept in a log only while a rollback is possible), which keeps
the cost linear in the text however small the pieces.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
Mark = tuple[int, int]  # marks that are older, length of the log
Decision = Callable[[str, bool], bool | None]  # of the text ahead and whether it is all; None: needs more

_SPACE = re.compile(r"\s*")
_NO_LIMIT = 1 << 62


class NotACall(Exception):
    """The text being read is not a call; the attempt is rolled back, and the text is content."""


class EndOfText(NotACall):
    """The answer ended before the construct did."""


class Markers:
    """A set of strings to search for; it knows how much of a text's end may begin one."""

    __slots__ = ("_any", "_first", "_prefixes", "longest", "strings")

    def __init__(self, strings: Iterable[str]) -> None:
        self.strings = tuple(sorted({s for s in strings if s}, key=lambda s: (-len(s), s)))
        self._any = re.compile("|".join(map(re.escape, self.strings)) or r"(?!)")
        firsts = re.escape("".join(sorted({s[0] for s in self.strings})))
        self._first = re.compile(f"[{firsts}]" if firsts else r"(?!)")
        self.longest = max(map(len, self.strings), default=0)
        self._prefixes = {s[:n] for s in self.strings for n in range(1, len(s))}

    def absent(self, text: str) -> bool:
        """Return whether no marker is in the text or may begin in it."""
        return self._first.search(text) is None

    def find(self, text: str, start: int, *, ended: bool) -> tuple[int, str | None]:
        """Return (position, marker), or (how far the text is certainly free of markers, None)."""
        match = self._any.search(text, start)
        if ended:
            return (match.start(), match.group()) if match else (len(text), None)
        safe = self._safe(text, start)
        # A longer marker that began earlier, or at the same place, may still complete: wait for it.
        if match and match.start() < safe:
            return match.start(), match.group()
        return safe, None

    def _safe(self, text: str, start: int) -> int:
        at = max(start, len(text) - self.longest + 1)
        while match := self._first.search(text, at):
            at = match.start()
            if text[at:] in self._prefixes:
                return at
            at += 1
        return len(text)


@lru_cache(maxsize=256)  # an answer without tools and reasoning spends half of its parsing on four of them
def markers_of(strings: frozenset[str]) -> Markers:
    """Return the markers for strings of dialects and models, made once. Never for strings of a request."""
    return Markers(strings)


class Cursor:
    """One answer's text. `buf[pos:]` has arrived and is unread."""

    AHEAD = 256  # the most characters that a decision sees, so that one at each quote stays linear
    __slots__ = ("_log", "_marks", "buf", "cut", "ended", "furthest", "offset", "pos", "sure")

    def __init__(self, text: str = "", *, ended: bool = False) -> None:
        self.buf = text
        self.pos = 0
        self.ended = ended
        self.cut = False  # ended by a token limit or a stop string, not by the model
        self.sure = False  # the text being read is a call, or would have become one
        self.offset = 0  # characters read so far
        self.furthest = 0  # position of the last rollback
        self._log: list[str] = []
        self._marks = 0

    def push(self, text: str) -> None:
        self.buf = self.buf[self.pos :] + text
        self.pos = 0

    @property
    def come(self) -> int:
        """Return the number of characters that have arrived, read or not."""
        return self.offset + len(self.buf) - self.pos

    # -- reading and going back

    def advance(self, count: int) -> str:
        text = self.buf[self.pos : self.pos + count]
        self.pos += len(text)
        self.offset += len(text)
        if self._marks:
            self._log.append(text)
        return text

    def advance_all(self) -> str:
        return self.advance(len(self.buf) - self.pos)

    def mark(self) -> Mark:
        """Keep the text from here on; end it with `release` or `rollback`, which also end later marks."""
        self._marks += 1
        return self._marks - 1, len(self._log)

    def release(self, mark: Mark) -> None:
        self._marks = mark[0]
        if not self._marks:
            self._log.clear()

    def rollback(self, mark: Mark) -> int:
        """Go back to the mark; return the number of characters."""
        self.furthest = max(self.furthest, self.offset)
        text = "".join(self._log[mark[1] :])
        del self._log[mark[1] :]
        if len(text) <= self.pos:  # still in the buffer
            self.pos -= len(text)
        else:
            self.buf = text + self.buf[self.pos :]
            self.pos = 0
        self.offset -= len(text)
        self.release(mark)
        return len(text)

    def rollback_all(self) -> None:
        """Go back to the oldest mark, if there are marks."""
        if self._marks:
            self.rollback((0, 0))

    # -- steps

    def more(self) -> Steps[None]:
        if self.ended:
            raise EndOfText
        yield

    def peek(self) -> Steps[str]:
        """Return the next character, or "" at the end of the text."""
        while self.pos >= len(self.buf):
            if self.ended:
                return ""
            yield
        return self.buf[self.pos]

    def space(self, pattern: re.Pattern[str] = _SPACE) -> Steps[str]:
        """Read white space, if any; `pattern` is the kind."""
        space = ""
        while True:
            match = pattern.match(self.buf, self.pos)
            space += self.advance(match.end() - self.pos) if match else ""
            if self.pos < len(self.buf) or self.ended:
                return space
            yield

    def decision(self, decide: Decision) -> Steps[bool]:
        """Return what a decision says of the text ahead, of which it gets more until it is certain."""
        while True:
            text = self.buf[self.pos : self.pos + self.AHEAD]
            result = decide(text, self.ended or len(text) == self.AHEAD)
            if result is not None:
                return result
            yield

    def literal(self, text: str) -> Steps[bool]:
        """Read exactly this text if it is what comes next."""
        while True:
            have = self.buf[self.pos : self.pos + len(text)]
            if have == text:
                self.advance(len(text))
                return True
            if self.ended or not text.startswith(have):
                return False
            yield

    def failure(self) -> NotACall:
        """Return the error for unexpected text, or for the end of the text."""
        return EndOfText() if self.ended and self.pos >= len(self.buf) else NotACall()

    def expect(self, text: str) -> Steps[None]:
        if not (yield from self.literal(text)):
            raise EndOfText if self.ended and text.startswith(self.buf[self.pos :]) else NotACall

    def either(self, options: Iterable[str]) -> Steps[str]:
        """Read the longest of these texts that comes next; "" if none does."""
        markers = sorted((o for o in options if o), key=len, reverse=True)
        while True:
            have = self.buf[self.pos : self.pos + len(markers[0])]
            if not self.ended and any(len(o) > len(have) and o.startswith(have) for o in markers):
                yield
                continue
            for option in markers:
                if have.startswith(option):
                    return self.advance(len(option))
            return ""

    def next_of(self, options: Iterable[str]) -> Steps[str]:
        """Return what `either` would read."""
        mark = self.mark()
        text = yield from self.either(options)
        self.rollback(mark)
        return text

    def close(self, *closers: str) -> Steps[bool]:
        """Read white space and one of these texts, or nothing at all."""
        mark = self.mark()
        yield from self.space()
        if any(closers) and (yield from self.either(closers)):
            self.release(mark)
            return True
        rest = self.buf[self.pos :]
        if self.cut and rest and any(closer.startswith(rest) for closer in closers):
            self.advance_all()  # the answer was cut inside it
            self.release(mark)
            return True
        self.rollback(mark)
        return False

    def until(self, markers: Markers, sink: Callable[[str], object], limit: int = _NO_LIMIT) -> Steps[str]:
        """Pass text to the sink up to the first marker, which is not read; "" if the text ends first.

        NotACall when there are more than `limit` characters before it.
        """
        while True:
            if len(self.buf) - self.pos > limit + markers.longest:  # what is too far away is not searched
                near = self.buf[self.pos : self.pos + limit + markers.longest]
                at, marker = markers.find(near, 0, ended=False)
                at += self.pos
            else:
                at, marker = markers.find(self.buf, self.pos, ended=self.ended)
            if at - self.pos > limit:
                self.advance(limit)
                raise NotACall
            if at > self.pos:
                limit -= at - self.pos
                sink(self.advance(at - self.pos))
            if marker is not None:
                return marker
            if self.ended:
                return ""
            yield

    def matching(self, pattern: re.Pattern[str], limit: int = _NO_LIMIT) -> Steps[str]:
        """Read while the pattern (of a single character, repeated) matches, at most `limit` characters."""
        parts: list[str] = []
        while True:
            match = pattern.match(self.buf, self.pos, self.pos + limit + 1)
            size = match.end() - self.pos if match else 0
            if size > limit:
                self.advance(limit)
                raise NotACall
            if size:
                limit -= size
                parts.append(self.advance(size))
            if self.pos < len(self.buf) or self.ended:
                return "".join(parts)
            yield


def run_to_end(steps: Steps[T]) -> T:
    """Return the result of steps over a cursor that already holds the whole text."""
    try:
        while True:
            next(steps)
    except StopIteration as stop:
        result: T = stop.value
        return result
