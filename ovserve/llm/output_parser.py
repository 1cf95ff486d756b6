"""OutputParser: the engine's deltas to Parsed ones, incrementally. Used by the two nodes that parse output.

The dialects in `parsing/` do the reading. Here their events are gathered per delta, calls get the indices a
client sees, and `parallel_tool_calls: false` is kept. `output.py` has the rules for what is taken back.
"""

from __future__ import annotations

from bisect import bisect_right

from ovserve.llm.output import Parsed, ToolCallDelta
from ovserve.llm.parsing import (
    Content,
    ContentWasReasoning,
    Event,
    Reasoning,
    TextParser,
    ToolCallArguments,
    ToolCallBroken,
    ToolCallStart,
    make_parser,
)
from ovserve.llm.request import Delta
from ovserve.llm.tooling import Parsing, ToolPolicy


class OutputParser:
    """Splits the text of one request's choices. Without `parsing` all of it is content."""

    def __init__(self, parsing: Parsing | None = None, tools: ToolPolicy | None = None) -> None:
        self._parsing = parsing
        self._tools = tools
        self._choices: dict[int, _Choice] = {}

    def feed(self, delta: Delta) -> Parsed:
        if self._parsing is None:
            return Parsed(
                delta.text,
                delta.tokens,
                delta.finish_reason,
                delta.prompt_tokens,
                delta.max_tokens,
                delta.index,
                delta.logprobs,
                last=delta.last,
                drafted=delta.drafted,
                accepted=delta.accepted,
                cached_tokens=delta.cached_tokens,
            )
        choice = self._choices.get(delta.index)
        if choice is None:
            choice = self._choices[delta.index] = _Choice(self._parsing, self._tools)
        return choice.feed(delta)


class _Choice:
    """The answer of one choice so far."""

    def __init__(self, parsing: Parsing, tools: ToolPolicy | None) -> None:
        self._parser: TextParser = make_parser(
            parsing.tool,
            parsing.reasoning,
            tools.shown if tools is not None and tools.calls else None,
            parsing.inside_reasoning,
            end_tokens=parsing.end_tokens,
        )
        self._one_call = tools is not None and not tools.parallel
        self._calls = _Calls()
        self._content_sent = False
        self._tokens = _TokensByChars()
        self._thought_sent = 0  # tokens of thinking told so far

    def feed(self, delta: Delta) -> Parsed:
        events = self._parser.feed(delta.text) if delta.text else []
        if delta.finish_reason is not None:
            events += self._parser.finish(delta.finish_reason == "length")
        *before, parsed = self._gather(events, delta.index)
        parsed.before = tuple(before)
        parsed.tokens, parsed.prompt_tokens = delta.tokens, delta.prompt_tokens
        parsed.max_tokens, parsed.last = delta.max_tokens, delta.last
        said = next((part for part in parsed.parts if part.content), parsed)
        said.logprobs = delta.logprobs
        parsed.drafted, parsed.accepted = delta.drafted, delta.accepted
        parsed.cached_tokens = delta.cached_tokens
        self._tokens.add(len(delta.text), delta.tokens)
        thought = self._tokens.in_first(self._parser.thought)
        parsed.reasoning_tokens, self._thought_sent = thought - self._thought_sent, thought
        parsed.finish_reason = delta.finish_reason
        if delta.finish_reason == "stop" and self._calls.standing:
            parsed.finish_reason = "tool_calls"
        return parsed

    def _gather(self, events: list[Event], index: int) -> list[Parsed]:
        """One for each time that text follows what one Parsed has before it; at least one."""
        content: list[str] = []
        reasoning: list[str] = []
        parts: list[Parsed] = []
        taken_back = False
        calls = self._calls
        for event in events:
            after_call = calls.begun and isinstance(event, Content | Reasoning)
            if after_call or (content and isinstance(event, Reasoning)):
                parts.append(self._part(content, reasoning, index, call_open=False))
                content, reasoning = [], []
            match event:
                case Content(text):
                    content.append(text)
                case Reasoning(text):
                    reasoning.append(text)
                case ContentWasReasoning():  # before any call and any thinking
                    taken_back = self._content_sent
                    reasoning.append("".join(content).rstrip())
                    content = []
                case ToolCallStart(_, id, name):
                    calls.start(id, name, dropped=self._one_call and calls.standing > 0)
                case ToolCallArguments(_, text):
                    calls.arguments(text)
                case ToolCallBroken():
                    calls.broke()
        parts.append(self._part(content, reasoning, index, call_open=self._parser.call_open))
        parts[0].content_was_reasoning = taken_back
        return parts

    def _part(self, content: list[str], reasoning: list[str], index: int, *, call_open: bool) -> Parsed:
        part = Parsed("".join(content), index=index, reasoning="".join(reasoning))
        part.tool_calls, part.broken_calls = self._calls.take(call_open)
        self._content_sent = self._content_sent or bool(part.content)
        return part


class _TokensByChars:
    """How many tokens the first characters of a text are; a token cut in two counts by its characters."""

    def __init__(self) -> None:
        self._chars, self._tokens = [0], [0]

    def add(self, chars: int, tokens: int) -> None:
        self._chars.append(self._chars[-1] + chars)
        self._tokens.append(self._tokens[-1] + tokens)

    def in_first(self, chars: int) -> int:
        if chars == 0:
            return 0
        at = bisect_right(self._chars, chars) - 1
        if at == len(self._chars) - 1:
            return self._tokens[at]
        share = (chars - self._chars[at]) / (self._chars[at + 1] - self._chars[at])
        return round(self._tokens[at] + share * (self._tokens[at + 1] - self._tokens[at]))


class _Calls:
    """The calls of one choice, as the client shall see them."""

    def __init__(self) -> None:
        self.standing = 0  # begun and not broken
        self._next = 0  # index
        self._pieces: list[ToolCallDelta] = []  # of this delta
        self._broken: list[int] = []
        self._dropped = False  # the open call is one too many
        self._held = ""  # the brace that may end the open call's arguments

    @property
    def begun(self) -> bool:
        """Whether a call begins in what `take` would give."""
        return any(piece.id is not None for piece in self._pieces)

    def start(self, id: str, name: str, *, dropped: bool) -> None:
        self._release()
        self._dropped = dropped
        if not dropped:
            self._pieces.append(ToolCallDelta(self._next, id, name))
            self._next += 1
            self.standing += 1

    def arguments(self, text: str) -> None:
        if self._dropped:
            return
        text, self._held = self._held + text, ""
        if self._pieces and self._pieces[-1].index == self._next - 1:
            self._pieces[-1].arguments += text
        else:
            self._pieces.append(ToolCallDelta(self._next - 1, arguments=text))

    def broke(self) -> None:
        self._held = ""
        if self._dropped:
            self._dropped = False
            return
        self.standing -= 1
        begun_here = any(p.index == self._next - 1 and p.id is not None for p in self._pieces)
        self._pieces = [p for p in self._pieces if p.index != self._next - 1]
        if begun_here:
            self._next -= 1  # the client never heard of it
        else:
            self._broken.append(self._next - 1)

    def take(self, open_: bool) -> tuple[tuple[ToolCallDelta, ...], tuple[int, ...]]:
        """What to send of this delta; `open_`: the last call is not certain yet."""
        if not open_:
            self._release()
        elif not self._dropped and self._pieces and (last := self._pieces[-1]).arguments.endswith("}"):
            last.arguments, self._held = last.arguments[:-1], "}"
        pieces = tuple(p for p in self._pieces if p.id is not None or p.arguments)
        broken = tuple(self._broken)
        self._pieces, self._broken = [], []
        return pieces, broken

    def _release(self) -> None:
        if self._held:
            self.arguments("")
