"""TextParser: the one scanner that turns an answer's text into events, whatever the dialects.

It has three states: inside reasoning, in the answer's
text, and (through a dialect) inside a construct. In text it withholds only the longest suffix that may still
be a marker, plus white space that may turn out to precede a call.

A call inside reasoning is a draft if anything follows the reasoning, and the model's real call if it forgot
to close it or said nothing else; only the end decides. So from a well-formed call on, reasoning is withheld
until then.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ovserve.llm.parsing.cursor import Cursor, Markers, NotACall, Steps, markers_of
from ovserve.llm.parsing.dialect import STRAY, ReasoningDialect, ToolDialect, attempt
from ovserve.llm.parsing.literal import Tools
from ovserve.llm.parsing.output import Event, Output

_log = logging.getLogger(__name__)

# Text read in vain may amount to this many times the text; after that markers count as noise.
# Without a bound, an answer of only broken markers would cost the square of its length.
_WASTE_RATIO = 8
_WASTE_ALLOWANCE = 20_000
# A cut answer that ends with so many characters of a marker ends inside it; with fewer it may be any text.
_CERTAIN_MARKER = 3
_QUOTES = frozenset("`'\"")


class TextParser:
    """Parses one answer. `feed` its text in any chunks, then `finish` once; it never raises."""

    def __init__(
        self,
        tool: ToolDialect | None,
        reasoning: ReasoningDialect | None,
        tools: Tools | None,
        *,
        frame: ToolDialect | None = None,  # reads the whole answer instead of the scanner
        implicit_reasoning: bool = False,
        reasoning_closed: bool = False,
        held: bool = False,
        end_tokens: Iterable[str] = (),
    ) -> None:
        self._tool = tool if tools is not None else None
        self._reasoning = reasoning
        self._tools = tools if tools is not None else Tools()
        self._cur = Cursor()
        self.output = Output(self._cur, hold_space=self._tool is not None)
        self._wasted = 0
        self.failure: BaseException | None = None  # a fault of a dialect; the text after it is content

        self._erase = {*end_tokens, *(tool.erase if tool else ()), *(reasoning.erase if reasoning else ())}
        self._starts = self._tool.markers if self._tool else ()
        plain = self._tool.plain if self._tool else ()
        # Markers that cannot be text of an answer.
        self._markup = {m for m in self._starts if m not in plain} | {*(frame.markup if frame else ())}
        self._ends = reasoning.ends if reasoning and not reasoning.framed else ()
        self._stray = frozenset((*STRAY, *self._ends) if self._tool else ())
        self._in_text = markers_of(frozenset((*self._starts, *self._erase, *self._stray)))
        optional = reasoning is not None and reasoning.start_optional and not reasoning_closed
        self._late = reasoning.starts if reasoning is not None else ()
        tags = (*self._late, *self._ends) if optional else ()
        self._before_text = markers_of(frozenset((*self._in_text.strings, *tags)))
        self._in_thinking = markers_of(frozenset((*self._starts, *self._erase, *self._ends)))
        self._thinking_end = markers_of(frozenset(self._ends))
        self._quotes = frozenset[str]() if held else _QUOTES  # around an end that is talked about

        always = reasoning is not None and reasoning.always and not reasoning_closed
        thinks = implicit_reasoning or always
        self._thought = not optional  # an end of reasoning is text from now on
        self._between = frame is not None  # a marker may begin here
        self._sought: Markers | None = None  # what text is searched for; None: elsewhere than in text
        if frame is not None:
            calls = self._tools if self._tool is frame else None
            self._steps = frame.run(
                self._cur, self.output, calls, think=reasoning is not None, inside=implicit_reasoning
            )
        else:
            self._steps = self._run(thinks)
        self._done = False
        self._resume()

    def feed(self, text: str) -> list[Event]:
        cur = self._cur
        # Almost every piece is plain text, which needs no step: 3.9 µs a piece become 1.6.
        plain = self._sought is not None and cur.pos == len(cur.buf) and self._sought.absent(text)
        cur.push(text)
        if plain:
            self.output.content(cur.advance_all())
        else:
            self._resume()
        return self.output.drain()

    def finish(self, cut: bool = False) -> list[Event]:
        """End the answer and send everything withheld. `cut`: a token limit or a stop string ended it."""
        if not self._cur.ended:
            if cut and self._between and self._cut_marker():
                self._cur.advance_all()
            self._cur.ended = True
            self._cur.cut = cut
            self._resume()
            self.output.finish()
        return self.output.drain()

    @property
    def thought(self) -> int:
        """Return how many characters of the text so far are reasoning, tags included.

        Open reasoning counts; the number may shrink when a call inside it was real.
        """
        return self.output.thought(self._cur.come)

    def _resume(self) -> None:
        if not self._done:
            try:
                next(self._steps)
                return
            except StopIteration:
                pass
            except BaseException as fault:  # noqa: BLE001 - a third party's dialect must not end the server
                _log.exception("an output parser failed; the rest of this answer is plain text")
                self.failure = fault
                self.output.break_call()
                self._cur.rollback_all()
            self._done = True
        self.output.content(self._cur.advance_all())

    def _cut_marker(self) -> bool:
        """Return whether the text ends inside a marker, and not just with text that may begin one."""
        tail = self._cur.buf[self._cur.pos :].lstrip()
        least = 1 if self.output.after_call else _CERTAIN_MARKER
        return len(tail) >= least and any(marker.startswith(tail) for marker in self._markup)

    def _end_in_marker(self, sought: Markers) -> None:
        """Drop the marker that the text, which was read ahead for a call, was cut in."""
        cur = self._cur
        at, marker = sought.find(cur.buf, cur.pos, ended=False)
        if marker is None:
            self.output.content(cur.advance(at - cur.pos))
            if self._cut_marker():
                cur.advance_all()

    # -- steps

    def _run(self, thinks: bool) -> Steps[None]:
        if self._reasoning is not None and self._ends:
            if thinks:
                yield from self._think(self._reasoning, implicit=True)
            elif (yield from attempt(self._cur, self.output, self._opening(self._reasoning))):
                yield from self._think(self._reasoning, implicit=False)
        yield from self._text()

    def _opening(self, dialect: ReasoningDialect) -> Steps[None]:
        yield from self._cur.space()
        while self._erase and (yield from self._cur.either(self._erase)):
            yield from self._cur.space()
        if not (yield from self._cur.either(dialect.starts)):
            raise NotACall

    def _think(self, dialect: ReasoningDialect, *, implicit: bool) -> Steps[None]:
        cur, out = self._cur, self.output
        self._thought = True
        out.begin_thinking(0)
        if implicit:  # some models repeat the tag that the prompt already gave
            yield from attempt(cur, out, self._opening(dialect))
        if dialect.label:
            yield from attempt(cur, out, self._label(dialect))
        is_draft = True  # what looks like a call
        while True:
            marker = yield from cur.until(self._in_thinking, out.reasoning)
            if not marker:
                return
            if marker in dialect.ends:
                cur.advance(len(marker))
                # Between two quotes the model talks about the tag. In a block of code it may do so too, but
                # a block that it forgot to close would then make the answer reasoning.
                if out.last_thought in self._quotes and (yield from cur.peek()) == out.last_thought:
                    out.reasoning(marker)
                    continue
                out.end_reasoning()
                return
            if marker in self._erase:
                out.reasoning((yield from self._end_tokens()))
            elif not is_draft:
                out.end_thinking()
                if not (yield from self._attempt(out, marker)):
                    out.reasoning(cur.advance(len(marker)))
                out.begin_thinking(cur.offset)
            elif not (yield from self._is_call(marker)):
                out.reasoning(cur.advance(len(marker)))
            else:
                mark = cur.mark()
                draft: list[str] = []
                end = yield from cur.until(self._thinking_end, draft.append)
                cur.advance(len(end))
                yield from cur.space()
                yield from self._end_tokens()
                goes_on = (yield from cur.peek()) or cur.cut
                cur.rollback(mark)
                if not end:
                    out.end_reasoning()
                    return
                is_draft = bool(goes_on)  # the model ended with it, and said nothing else
                out.reasoning(cur.advance(sum(map(len, draft))) if is_draft else "")

    def _label(self, dialect: ReasoningDialect) -> Steps[None]:
        """Read the word that belongs to the start tag, if a newline or the end of reasoning follows it."""
        yield from self._cur.expect(dialect.label)
        if (yield from self._cur.either(("\n", "\r\n"))):
            return
        if (yield from self._cur.peek()) == "":
            return
        if not (yield from self._cur.next_of(dialect.ends)):
            raise NotACall

    def _is_call(self, marker: str) -> Steps[bool]:
        """Return whether a well-formed call begins here. It consumes nothing."""
        assert self._tool is not None, "only its markers lead here"
        scratch = Output(self._cur, hold_space=True)
        mark = self._cur.mark()
        good = yield from self._attempt(scratch, marker)
        if good:
            self._cur.rollback(mark)
        else:
            self._cur.release(mark)
        return good and scratch.has_call

    def _attempt(self, out: Output, marker: str = "") -> Steps[bool]:
        """Read a call that begins with this marker, or without one. Return False if there is none."""
        assert self._tool is not None, "only its markers lead here"
        if self._wasted > _WASTE_ALLOWANCE + _WASTE_RATIO * self._cur.offset:
            return False
        self._cur.furthest = self._cur.offset
        self._cur.sure = marker in self._markup
        if (yield from attempt(self._cur, out, self._tool.calls(self._cur, out, self._tools))):
            return True
        self._wasted += self._cur.furthest - self._cur.offset
        return False

    def _text(self) -> Steps[None]:
        cur, out, tool = self._cur, self.output, self._tool
        while True:
            if tool is not None and tool.bare and out.fresh:
                yield from self._bare(tool)
            before = not (self._thought or out.has_call)
            self._between = True
            self._sought = self._before_text if before else self._in_text
            if cur.cut:
                self._end_in_marker(self._sought)
            marker = yield from cur.until(self._sought, out.content)
            self._between, self._sought = False, None
            if not marker:
                return
            if marker in self._starts:
                if not (yield from self._attempt(out, marker)):
                    out.content(cur.advance(len(marker)))
            elif marker in self._stray and out.after_call:
                cur.advance(len(marker))
                yield from cur.space()
            elif marker in self._erase:
                at_edge = out.fresh or out.after_call
                text = yield from self._end_tokens()
                if not at_edge:
                    out.content(text)
            else:
                self._tag_in_text(marker, before)

    def _tag_in_text(self, marker: str, before: bool) -> None:
        """Read a tag that is text, or ends reasoning whose start is missing. `before`: it may be missing."""
        cur, out = self._cur, self.output
        is_end = (
            before and marker in self._ends and out.last_char not in _QUOTES
        )  # quoted, it is talked about
        tag = cur.advance(len(marker))
        if is_end:
            out.content_was_reasoning()
        else:
            out.content(tag)
        # Reasoning that begins late is text, and so is its end.
        self._thought = self._thought or is_end or marker in self._late

    def _bare(self, tool: ToolDialect) -> Steps[None]:
        """Read a call without a marker, at the very start."""
        mark = self._cur.mark()
        yield from self._cur.space()
        char = yield from self._cur.peek()
        if char and char in tool.bare and (yield from self._attempt(self.output)):
            self._cur.release(mark)
            return
        self._cur.rollback(mark)
        if self._cur.cut and self._cut_marker():
            self._cur.advance_all()
        elif char and char in tool.bare:
            # Not a call: skip this character, so that the same position is not tried again.
            self.output.content((yield from self._cur.space()) + self._cur.advance(1))

    def _end_tokens(self) -> Steps[str]:
        """Read end tokens and the white space between them; return "" at the end, else the text unchanged."""
        tokens: list[str] = []
        while token := (yield from self._cur.either(self._erase)):
            tokens += token, (yield from self._cur.space())
        return "".join(tokens) if (yield from self._cur.peek()) else ""
