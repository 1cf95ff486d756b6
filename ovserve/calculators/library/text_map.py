r"""TextMap: rewrites matches in what the model writes, also where one is cut by the end of a packet.

A mask of one's own is a pattern and what replaces it:

    @calculator("MaskCardsCalculator")
    class MaskCards(TextMap):
        pattern = re.compile(r"\b(?:\d[ -]?){13,16}")

        def replace(self, match: str) -> str:
            return "[card]"

| port | type | |
|---|---|---|
| input `PARSED` | `Parsed` | from OutputParser or another such node |
| output `PARSED` | `Parsed` | one packet for each that came in, with all counters |

Content, reasoning and the tokens of logprobs are held back by `window` characters. Arguments of a tool call
are held back until the call is complete, because their strings may be written with escapes; each of their
values is rewritten by itself. A match does not go across the border between two kinds of text. Each match
counts as the node's event `matched` in `/metrics`.

Text that arrives in pieces is rewritten as if it had come whole, by holding back what a match may still need:
`Window` takes pieces and returns what is certain. It holds back the last `size` characters, and a match that
reaches the end of the text so far. If no match and what a pattern looks at around it is longer than `size`,
the result does not depend on where the text was cut. `TokenWindow` does the same to tokens with
log-probabilities: tokens of a match become one.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ovserve.calculators.library.text_filter import Matcher
from ovserve.graph import Context, Input, Output
from ovserve.graph.options import must_override
from ovserve.llm.output import (
    Content,
    ContentWasReasoning,
    Parsed,
    Part,
    Reasoning,
    ToolCallBroken,
    ToolCallDelta,
    with_top,
)
from ovserve.llm.request import TokenLogprob

# Characters that a match which never ends may hold back, so that a pattern like `.*` cannot stop a stream.
MAX_HELD = 1 << 16

# The next match at or after a position, as (start, end), or None.
Find = Callable[[str, int], tuple[int, int] | None]


class Segment(NamedTuple):
    """A piece of text and what takes its place; the same where nothing matched."""

    text: str
    new: str
    matched: bool


class Window:
    """One text. `find` gets the text so far, of which at least `size` characters before the position."""

    def __init__(self, find: Find, replace: Callable[[str, int, int], str], size: int) -> None:
        self._find, self._replace = find, replace
        self._size = max(1, size)
        self._text = ""
        self._at = 0  # where the part begins that has not been returned

    @property
    def held(self) -> str:
        return self._text[self._at :]

    def feed(self, piece: str, *, final: bool = False) -> list[Segment]:
        """Add a piece and return the segments that are certain; with `final`, all."""
        self._text += piece
        text, at = self._text, self._at
        certain = len(text) if final else max(at, len(text) - self._size)
        segments: list[Segment] = []
        while at < len(text) and (span := self._find(text, at)) is not None:
            start, end = span
            if start >= certain:
                break
            if end == len(text) and not final and end - start < MAX_HELD:
                certain = start  # it may go on
                break
            if end == start:
                segments.append(_same(text[at : start + 1]))
                at = start + 1
                continue
            if start > at:
                segments.append(_same(text[at:start]))
            segments.append(Segment(text[start:end], self._replace(text, start, end), True))
            at = end
        if certain > at:
            segments.append(_same(text[at:certain]))
            at = certain
        keep_from = max(0, at - self._size)
        self._text, self._at = text[keep_from:], at - keep_from
        return [segment for segment in segments if segment.text]


def _same(text: str) -> Segment:
    return Segment(text, text, False)


class _Unit(NamedTuple):
    """Tokens that spell whole characters: one, or several that share a character."""

    tokens: tuple[TokenLogprob, ...]
    length: int


class TokenWindow:
    """The tokens of one choice. Their text is rewritten by a window of its own."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._run: list[TokenLogprob] = []  # that do not end a character yet
        self._run_length = 0
        self._units: deque[_Unit] = deque()
        self._group: list[TokenLogprob] = []  # tokens that segments have reached
        self._open = 0  # characters of the group that no segment has covered yet
        self._new, self._changed = "", False

    def feed(self, tokens: list[TokenLogprob], *, final: bool = False) -> list[TokenLogprob]:
        """Add tokens and return those that are certain."""
        text = ""
        for token in tokens:
            text += self._decoded(token.utf8)
            self._run.append(token)
            if not self._decoder.getstate()[0]:
                self._end_run()
        if final and self._run:
            text += self._decoded(b"", True)
            self._end_run()
        out: list[TokenLogprob] = []
        for segment in self._window.feed(text, final=final):
            self._cover(segment, out)
        return out

    def _decoded(self, data: bytes, final: bool = False) -> str:
        piece = self._decoder.decode(data, final)
        self._run_length += len(piece)
        return piece

    def _end_run(self) -> None:
        self._units.append(_Unit(tuple(self._run), self._run_length))
        self._run, self._run_length = [], 0

    def _cover(self, segment: Segment, out: list[TokenLogprob]) -> None:
        remaining = len(segment.text)
        if segment.matched:
            self._new += segment.new
            self._changed = True
        while remaining:
            if not self._open:
                if not self._units:
                    return
                unit = self._units.popleft()
                self._group += unit.tokens
                self._open = unit.length
                if not self._open:
                    continue
            length = min(remaining, self._open)
            if not segment.matched:
                start = len(segment.text) - remaining
                self._new += segment.text[start : start + length]
            remaining -= length
            self._open -= length
            if not self._open and not (segment.matched and remaining):
                self._flush(out)

    def _flush(self, out: list[TokenLogprob]) -> None:
        group, new, changed = self._group, self._new, self._changed
        self._group, self._new, self._changed = [], "", False
        if not changed:
            out += group
        elif new:
            values = [token.logprob for token in group if token.logprob is not None]
            out.append(TokenLogprob(new, new.encode(), sum(values) if len(values) == len(group) else None))


def rewrite(window: Callable[[], Window], text: str) -> str:
    """Rewrite a whole text by a window of its own."""
    return "".join([segment.new for segment in window().feed(text, final=True)])


def rewrite_json(change: Callable[[str], str], text: str) -> str:
    """Rewrite the values in JSON text: strings as they are meant, and numbers by their digits.

    A number that changes becomes a string. Keys stay, and so does the text if nothing changes. Text that is
    not JSON, such as a call that was cut, is rewritten as it stands.
    """
    try:
        value = msgspec.json.decode(text)
        changed = _rewritten(change, value)
    except (msgspec.DecodeError, RecursionError):
        new = change(text)
        return new if new == text else new.replace("\n", "\\n")
    return text if changed == value else msgspec.json.encode(changed).decode()


def _rewritten(change: Callable[[str], str], value: object) -> object:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_rewritten(change, each) for each in value]
    if isinstance(value, dict):
        return {key: _rewritten(change, each) for key, each in value.items()}
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = msgspec.json.encode(value).decode()
        return value if (new := change(text)) == text else new
    return value


class TextMap(Matcher):
    """Base of nodes that rewrite matches. Set `pattern`, or override `find`; override `replace`."""

    parsed = Input("PARSED", Parsed)
    mapped = Output("PARSED", Parsed)

    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}

    @classmethod
    def needs_pattern(cls) -> bool:
        return cls.find is TextMap.find

    def find(self, text: str, start: int) -> tuple[int, int] | None:
        """Return the span of the first match at or after `start`; None if there is none."""
        assert self.pattern is not None
        match = self.pattern.search(text, start)
        return match.span() if match is not None else None

    @must_override
    def replace(self, match: str) -> str:
        """Return what takes the place of a match."""
        raise NotImplementedError

    def process(self, cc: Context) -> None:
        parsed = cc[self.parsed]
        if parsed is None:
            return
        choice = self._choices.get(parsed.index)
        if choice is None:
            self.check()
            choice = self._choices[parsed.index] = _Choice(self, cc)
        parts, logprobs = choice.feed(parsed)
        cc.send(self.mapped, msgspec.structs.replace(parsed, parts=parts, logprobs=logprobs))


class _Choice:
    """The text of one choice: a window for each kind, and the call whose arguments are being collected."""

    def __init__(self, node: TextMap, cc: Context) -> None:
        def replaced(text: str, start: int, end: int) -> str:
            cc.count("matched")
            return node.replace(text[start:end])

        def window() -> Window:
            return Window(node.find, replaced, node.window)

        self._window, self._find = window, node.find
        self._texts: dict[type[Part], Window] = {Content: window(), Reasoning: window()}
        # The same text once more: its matches are counted where it is content.
        quiet = Window(node.find, lambda text, start, end: node.replace(text[start:end]), node.window)
        self._tokens = TokenWindow(quiet)
        self._kind: type[Part] | None = None
        self._call: int | None = None  # index of the call that is being collected
        self._arguments: list[str] = []

    def feed(self, parsed: Parsed) -> tuple[tuple[Part, ...], list[TokenLogprob] | None]:
        out: list[Part] = []
        ended = parsed.finish_reason is not None
        for part in parsed.parts:
            match part:
                case Content(text) | Reasoning(text):
                    self._turn_to(type(part), None, out)
                    self._text(type(part), text, False, out)
                case ToolCallDelta(index, id, name, arguments):
                    self._turn_to(ToolCallDelta, index, out)
                    self._call = index
                    self._arguments.append(arguments)
                    if id is not None:
                        out.append(ToolCallDelta(index, id, name))
                case ToolCallBroken():
                    self._call, self._arguments = None, []
                    out.append(part)
                case ContentWasReasoning():
                    self._turn_to(ContentWasReasoning, None, out)
                    out.append(part)
        if ended:
            self._turn_to(None, None, out)
        tokens = self._tokens.feed(parsed.logprobs or [], final=ended)
        return tuple(out), with_top(tokens, lambda text: self._find(text, 0) is None) or None

    def _turn_to(self, kind: type[Part] | None, call: int | None, out: list[Part]) -> None:
        """End the text of another kind than `kind`, and another call."""
        before, self._kind = self._kind, kind
        if before is not None and before in self._texts and kind is not before:
            self._text(before, "", True, out)
        if self._call is not None and call != self._call:
            text = rewrite_json(lambda value: rewrite(self._window, value), "".join(self._arguments))
            if text:
                out.append(ToolCallDelta(self._call, arguments=text))
            self._call, self._arguments = None, []

    def _text(self, kind: type[Part], text: str, final: bool, out: list[Part]) -> None:
        new = "".join([segment.new for segment in self._texts[kind].feed(text, final=final)])
        if new:
            out.append(Content(new) if kind is Content else Reasoning(new))
