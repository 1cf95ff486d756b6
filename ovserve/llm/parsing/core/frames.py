"""Answers made of messages with headers, each for one reader: the harmony format (gptoss) and onyx.

Both dialects read the whole answer, because the header defines the kind of a text: reasoning, answer or call.
Special tokens at the borders may be missing, because engines stop on them; an answer without any is all
content.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import ClassVar

import msgspec

from ovserve.llm.parsing.core.cursor import Cursor, EndOfText, Markers, NotACall, Steps
from ovserve.llm.parsing.core.dialect import ToolDialect, attempt
from ovserve.llm.parsing.core.framed import header
from ovserve.llm.parsing.core.output import Output
from ovserve.llm.parsing.core.typed import Tools

_MESSAGE = "<|message|>"
_TO = "to="
# Possible content of a truncated header: a few words and tokens, not a sentence.
_WORDS_OF_A_HEADER = re.compile(r"\s*+(?:(?>[\w.=:/-]+|<(?:\|\w*\|?>?)?)\s*+){1,9}+")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class Route(msgspec.Struct, frozen=True):
    """The target of a message: `kind` is content, reasoning or call."""

    kind: str
    name: str = ""


class FramedDialect(ToolDialect):
    framed = True
    starters: ClassVar[tuple[str, ...]]  # tokens that begin a header, at any position
    enders: ClassVar[tuple[str, ...]]  # tokens that end a message
    unframed: ClassVar[str] = ""  # a call that comes without any header begins with this

    def __init_subclass__(cls) -> None:
        cls.markup = (*cls.starters, *cls.enders)

    def __init__(self) -> None:
        self._stops = Markers(self.starters + self.enders)
        self._header_end = Markers((_MESSAGE, *self.enders))

    def route(self, header: str, recipient: str, tools: Tools | None) -> Route:
        raise NotImplementedError

    def body(self, cur: Cursor, out: Output, tools: Tools, name: str, stops: Markers) -> Steps[None]:
        """Read the call in a message to `name`. Raises NotACall if there is none."""
        raise NotImplementedError

    def run(self, cur: Cursor, out: Output, tools: Tools | None, *, think: bool, inside: bool) -> Steps[None]:
        thought: Callable[[str], None] = out.reasoning if think else out.content
        if inside:
            out.begin_thinking(0)
            yield from self._text(cur, thought)
            out.end_thinking()
        elif self.unframed and tools is not None:
            mark = cur.mark()
            yield from cur.space()
            if (yield from cur.literal(self.unframed)):
                cur.rollback(mark)
                yield from attempt(cur, out, self.body(cur, out, tools, "", self._stops))
            else:
                cur.rollback(mark)
        while (yield from cur.peek()):
            mark, start = cur.mark(), cur.offset
            try:
                head = yield from self._header(cur)
            except NotACall as failure:
                cut_off = cur.cut and isinstance(failure, EndOfText)
                cur.rollback(mark)
                if cut_off and _WORDS_OF_A_HEADER.fullmatch(cur.buf, cur.pos):
                    out.cut()
                    cur.advance_all()
                    return
                yield from self._plain(cur, out)
                continue
            recipient = _RECIPIENT.search(head)
            route = self.route(head, recipient[1] if recipient else "", tools)
            if route.kind != "call":
                cur.release(mark)
                out.new_message()
                if route.kind == "reasoning":
                    out.begin_thinking(start)
                yield from self._text(cur, thought if route.kind == "reasoning" else out.content)
                out.end_thinking()
                continue
            cur.sure = True
            body = self.body(cur, out, tools, route.name, self._stops) if tools is not None else None
            if body is not None and (yield from attempt(cur, out, body)):
                cur.release(mark)
                yield from self._rest(cur, out)
            elif cur.cut and cur.come == cur.offset:
                cur.release(mark)  # only the header arrived
            else:
                cur.rollback(mark)
                yield from self._raw(cur, out)

    def _header(self, cur: Cursor) -> Steps[str]:
        """Read a header, if one begins here; return its text."""
        yield from cur.space()
        begins = (*self.starters, _TO)
        first = yield from cur.either(begins)
        if not first:
            rest = cur.buf[cur.pos :]
            raise EndOfText if any(begin.startswith(rest) for begin in begins) else NotACall
        if first == _MESSAGE:
            return ""
        text, marker = yield from header(cur, self._header_end)
        if marker != _MESSAGE:
            raise NotACall
        cur.advance(len(_MESSAGE))
        return first + text

    def _text(self, cur: Cursor, sink: Callable[[str], None]) -> Steps[None]:
        """Read the text of a message and the token that ends it. A token that begins the next one is left."""
        stop = yield from cur.until(self._stops, sink)
        while stop == _MESSAGE:
            sink(cur.advance(len(stop)))
            stop = yield from cur.until(self._stops, sink)
        if stop in self.enders:
            cur.advance(len(stop))

    def _rest(self, cur: Cursor, out: Output) -> Steps[None]:
        """Read the rest of the message after a call, which may be cut inside a token."""
        if cur.cut:
            at, token = self._stops.find(cur.buf, cur.pos, ended=False)
            if token is None:
                out.content(cur.advance(at - cur.pos))
                cur.advance_all()
        yield from self._text(cur, out.content)

    def _plain(self, cur: Cursor, out: Output) -> Steps[None]:
        """Read text without a header, up to a token that may begin one."""
        stop = yield from cur.until(self._stops, out.content)
        if stop in self.enders:
            cur.advance(len(stop))
        elif stop:
            mark = cur.mark()
            try:
                yield from self._header(cur)
                cur.rollback(mark)
            except NotACall:
                cur.rollback(mark)
                out.content(cur.advance(len(stop)))

    def _raw(self, cur: Cursor, out: Output) -> Steps[None]:
        """Read a whole message as text, markup included."""
        out.new_message()
        stop = yield from cur.until(self._header_end, out.content)
        out.content(cur.advance(len(stop)))
        stop = yield from cur.until(self._stops, out.content)
        if stop in self.enders:
            out.content(cur.advance(len(stop)))
