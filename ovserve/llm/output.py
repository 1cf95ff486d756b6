"""Model text to parsed output, incrementally; and the fold that makes a unary answer of the stream.

Called by the output parser and the response writer. Unary answers exist only as this fold, so a stream and
a whole answer cannot differ.
"""

from __future__ import annotations

import msgspec

from ovserve.llm.request import Delta, TokenLogprob


class ToolCallDelta(msgspec.Struct, gc=False):
    """A piece of a tool call: `id` and `name` come once, in its first piece; arguments concatenate."""

    index: int  # of the call within its choice
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Parsed(msgspec.Struct, gc=False):
    """One delta after parsing: the text split by what it is, counters passed through."""

    content: str = ""
    tokens: int = 0
    finish_reason: str | None = None  # "tool_calls" when the choice ended by itself with calls
    prompt_tokens: int = 0  # > 0 only in the admission delta, the first of a stream
    max_tokens: int = 0
    index: int = 0  # of the choice
    logprobs: list[TokenLogprob] | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    reasoning_tokens: int = 0
    last: bool = False  # the answer is complete
    drafted: int = 0
    accepted: int = 0


class OutputParser:
    """Splits the text of one request's choices. Without a dialect all of it is content."""

    def feed(self, delta: Delta) -> Parsed:
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
        )


class ToolCall(msgspec.Struct):
    id: str
    name: str
    arguments: str  # JSON text as the model gave it


class FoldedChoice:
    """One choice of a whole answer."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.finish_reason: str | None = None
        self.logprobs: list[TokenLogprob] = []
        self.tool_calls: list[ToolCall] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []

    def add(self, parsed: Parsed) -> None:
        if parsed.content:
            self._content.append(parsed.content)
        if parsed.reasoning:
            self._reasoning.append(parsed.reasoning)
        if parsed.logprobs:
            self.logprobs += parsed.logprobs
        for piece in parsed.tool_calls:
            if piece.id is not None:
                self.tool_calls.append(ToolCall(piece.id, piece.name or "", ""))
            self.tool_calls[piece.index].arguments += piece.arguments
        self.finish_reason = parsed.finish_reason or self.finish_reason

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)


class Folded:
    """A whole answer: the sum of its stream."""

    def __init__(self) -> None:
        self._choices: dict[int, FoldedChoice] = {}
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.drafted = 0
        self.accepted = 0
        self.max_tokens = 0  # what the engine had room for; as in the admission

    def add(self, parsed: Parsed) -> None:
        self.completion_tokens += parsed.tokens
        self.prompt_tokens += parsed.prompt_tokens
        self.reasoning_tokens += parsed.reasoning_tokens
        self.drafted += parsed.drafted
        self.accepted += parsed.accepted
        self.max_tokens = parsed.max_tokens or self.max_tokens
        choice = self._choices.get(parsed.index)
        if choice is None:
            choice = self._choices[parsed.index] = FoldedChoice(parsed.index)
        choice.add(parsed)

    @property
    def choices(self) -> list[FoldedChoice]:
        """By index, from 0; there is always one."""
        return [self._choices[i] for i in sorted(self._choices)]
