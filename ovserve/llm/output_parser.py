"""OutputParser: the engine's deltas to Parsed ones, incrementally. Used by the two nodes that parse output.

The dialects in `parsing/` do the reading. Here their events become the parts of a delta, calls get the
indices that a client sees, and `parallel_tool_calls: false` is kept. `output.py` has the rules for what is
taken back.
"""

from __future__ import annotations

from bisect import bisect_right

from ovserve.llm.output import Parsed, Part, ToolCallDelta
from ovserve.llm.parsing import make_parser, output
from ovserve.llm.parsing.scanner import TextParser
from ovserve.llm.request import Delta, Parsing, ToolPolicy


class OutputParser:
    """Splits the text of one request's choices. Without `parsing` all of it is content."""

    def __init__(self, parsing: Parsing | None = None, tools: ToolPolicy | None = None) -> None:
        self._parsing = parsing
        self._tools = tools
        self._choices: dict[int, _Choice] = {}

    def feed(self, delta: Delta) -> Parsed:
        finish, reasoning_tokens = delta.finish_reason, 0
        parts: tuple[Part, ...] = (output.Content(delta.text),) if delta.text else ()
        if self._parsing is not None:
            choice = self._choices.get(delta.index)
            if choice is None:
                choice = self._choices[delta.index] = _Choice(self._parsing, self._tools)
            parts, finish, reasoning_tokens = choice.feed(delta)
        return Parsed(
            parts,
            delta.tokens,
            finish,
            delta.prompt_tokens,
            delta.max_tokens,
            delta.index,
            delta.logprobs,
            reasoning_tokens,
            delta.last,
            delta.drafted,
            delta.accepted,
            delta.cached_tokens,
            delta.stop_string,
            repetitive=delta.repetitive,
        )


class _Choice:
    """The answer of one choice so far."""

    def __init__(self, parsing: Parsing, tools: ToolPolicy | None) -> None:
        self._parser: TextParser = make_parser(
            parsing.tool,
            parsing.reasoning,
            tools.prompt_tools if tools is not None and tools.calls else None,
            parsing.inside_reasoning,
            end_tokens=parsing.end_tokens,
            reasoning_closed=parsing.reasoning_closed,
            held=parsing.held,
        )
        self._calls = _Calls(one=tools is not None and not tools.parallel)
        self._content_sent = False
        self._tokens = _TokensByChars() if parsing.reasoning is not None else None
        self._thought_sent = 0  # tokens of reasoning reported so far

    def feed(self, delta: Delta) -> tuple[tuple[Part, ...], str | None, int]:
        """Return the parts, the finish reason and the tokens of reasoning."""
        parser = self._parser
        events = parser.feed(delta.text) if delta.text else []
        finish = delta.finish_reason
        if finish is not None:
            events += parser.finish(finish == "length" or delta.stop_string is not None)
        reasoning_tokens = 0
        if self._tokens is not None:
            self._tokens.add(len(delta.text), delta.tokens)
            thought = self._tokens.in_first(parser.thought)
            reasoning_tokens, self._thought_sent = thought - self._thought_sent, thought
        parts = self._parts(events)
        if finish == "stop" and self._calls.standing and not parser.output.cut_call:
            finish = "tool_calls"
        return parts, finish, reasoning_tokens

    def _parts(self, events: list[output.Event]) -> tuple[Part, ...]:
        parts: list[Part] = []
        calls = self._calls
        for event in events:
            match event:
                case output.Content() | output.Reasoning():
                    calls.release(parts)
                    parts.append(event)
                case output.ToolCallStart(_, id, name):
                    calls.start(parts, id, name)
                case output.ToolCallArguments(_, text):
                    calls.arguments(parts, text)
                case output.ToolCallBroken():
                    calls.broke(parts)
                case output.ContentWasReasoning():  # before any call and any reasoning
                    text = "".join([part.text for part in parts if isinstance(part, output.Content)]).strip()
                    parts = [event] if self._content_sent else []
                    parts += [output.Reasoning(text)] if text else []
        if self._parser.output.call_open:
            calls.hold_back(parts)
        else:
            calls.release(parts)
        self._content_sent = self._content_sent or any(isinstance(part, output.Content) for part in parts)
        return tuple(parts)


class _TokensByChars:
    """Count the tokens of the first characters of a text; a token cut in two counts by its characters."""

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
    """The calls of one choice, with the indices that the client sees. `one`: further calls are dropped."""

    def __init__(self, *, one: bool) -> None:
        self.standing = 0  # begun and not broken
        self._one = one
        self._next = 0  # index
        self._dropped = False  # the open call is one too many
        self._held = ""  # the brace that may end the open call's arguments

    def start(self, parts: list[Part], id: str, name: str) -> None:
        self.release(parts)
        self._dropped = self._one and self.standing > 0
        if not self._dropped:
            parts.append(ToolCallDelta(self._next, id, name))
            self._next += 1
            self.standing += 1

    def arguments(self, parts: list[Part], text: str) -> None:
        if self._dropped:
            return
        text, self._held = self._held + text, ""
        last = parts[-1] if parts else None
        if isinstance(last, ToolCallDelta) and last.index == self._next - 1:
            last.arguments += text
        else:
            parts.append(ToolCallDelta(self._next - 1, arguments=text))

    def broke(self, parts: list[Part]) -> None:
        """Take the open call out of this delta; if it began in an earlier one, say that it broke."""
        self._held = ""
        if self._dropped:
            self._dropped = False
            return
        self.standing -= 1
        begun_here = False
        last = parts[-1] if parts else None
        if isinstance(last, ToolCallDelta) and last.index == self._next - 1:
            begun_here = last.id is not None
            parts.pop()
        if begun_here:
            self._next -= 1  # the client never heard of it
        else:
            parts.append(output.ToolCallBroken(self._next - 1))

    def hold_back(self, parts: list[Part]) -> None:
        """Withhold the last brace of the open call, which is not certain yet."""
        last = parts[-1] if parts else None
        if isinstance(last, ToolCallDelta) and not self._dropped and last.arguments.endswith("}"):
            last.arguments, self._held = last.arguments[:-1], "}"
            if not last.arguments and last.id is None:
                parts.pop()

    def release(self, parts: list[Part]) -> None:
        """The open call, if there is one, has become certain."""
        if self._held:
            self.arguments(parts, "")
