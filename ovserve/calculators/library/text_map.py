"""TextMap: rewrites matches in what the model writes, also where one is cut by the end of a packet.

A mask of one's own is a pattern and what replaces it:

    @calculator("MaskCardsCalculator")
    class MaskCards(TextMap):
        pattern = re.compile(r"\\b(?:\\d[ -]?){13,16}")

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
"""

from __future__ import annotations

import msgspec

from ovserve.calculators.library.matching import Matcher
from ovserve.graph import Context, Input, Output
from ovserve.graph.overrides import must_override
from ovserve.llm.logprob_text import with_top
from ovserve.llm.output import (
    Content,
    ContentWasReasoning,
    Parsed,
    Part,
    Reasoning,
    ToolCallBroken,
    ToolCallDelta,
)
from ovserve.llm.request import TokenLogprob
from ovserve.llm.rewriting import TokenWindow, Window, rewrite, rewrite_json


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
