"""Parsed output, and the fold that makes a unary answer of the stream.

`output_parser.py` makes Parsed of the engine's deltas; the response writer sends or folds it. Unary answers
exist only as this fold, so a stream and a whole answer say the same, with one exception: what was sent before
it turned out to be something else cannot be unsent, but a whole answer can still say it right. So two fields
of Parsed take something back. The fold obeys them; a stream obeys these rules instead:

- A call that broke off (`broken_calls`) was begun in the stream and stays there. Its arguments are never
  complete JSON: their last brace is withheld until the call is certain. What the model wrote follows as
  content, and the call does not make the finish reason `tool_calls`. So nobody can carry it out, and no text
  is lost. A writer whose clients would carry out half a call holds the whole of it until it is certain.
- Content that was thinking after all (`content_was_reasoning`, an end tag without a start) stays content.
- A dialect whose last event carries the whole answer puts the fold's form there.
"""

from __future__ import annotations

import msgspec

from ovserve.llm.request import TokenLogprob


class ToolCallDelta(msgspec.Struct, gc=False):
    """A piece of a tool call: `id` and `name` come once, in its first piece; arguments concatenate."""

    index: int  # of the call within its choice
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Parsed(msgspec.Struct, gc=False):
    """One delta after parsing: the text split by what it is, counters passed through.

    Within one, more of the call that was open comes first, then reasoning, content, and calls that begin. A
    delta whose text has another order is several: the others are `before` this one, without counters.
    """

    content: str = ""
    tokens: int = 0
    finish_reason: str | None = None  # "tool_calls" when the choice ended by itself with calls
    prompt_tokens: int = 0  # > 0 only in the admission delta, the first of a stream
    max_tokens: int = 0
    index: int = 0  # of the choice
    logprobs: list[TokenLogprob] | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    reasoning_tokens: int = 0  # of `tokens`; below 0 when earlier ones were no thinking after all
    broken_calls: tuple[int, ...] = ()  # indices of calls, begun in an earlier delta, that were none
    content_was_reasoning: bool = False  # all content of earlier deltas was thinking
    last: bool = False  # the answer is complete
    drafted: int = 0
    accepted: int = 0
    cached_tokens: int | None = (
        None  # of prompt_tokens, found in the prefix cache; None: the engine does not tell
    )
    before: tuple[Parsed, ...] = ()

    @property
    def parts(self) -> tuple[Parsed, ...]:
        """All of this delta, in the order of the text."""
        return (*self.before, self)


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
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._taken_back = False
        self._calls: dict[int, ToolCall] = {}
        self._arguments: dict[int, list[str]] = {}
        self._order: list[str | int] = []  # content, and calls by index, as they came

    def add(self, parsed: Parsed) -> None:
        if parsed.content_was_reasoning:
            self._reasoning += self._content
            self._content = []
            self._order = []
            self._taken_back = True
        if parsed.content:
            self._content.append(parsed.content)
            self._order.append(parsed.content)
        if parsed.reasoning:
            self._reasoning.append(parsed.reasoning)
        if parsed.logprobs:
            self.logprobs += parsed.logprobs
        for broken in parsed.broken_calls:
            del self._calls[broken], self._arguments[broken]
        for piece in parsed.tool_calls:
            if piece.id is not None:
                self._calls[piece.index] = ToolCall(piece.id, piece.name or "", "")
                self._arguments[piece.index] = []
                self._order.append(piece.index)
            self._arguments[piece.index].append(piece.arguments)
        self.finish_reason = parsed.finish_reason or self.finish_reason

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        text = "".join(self._reasoning)
        return text.strip() if self._taken_back else text

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [self._call(index) for index in self._calls]

    @property
    def parts(self) -> list[str | ToolCall]:
        """Content and calls in the order of the text."""
        found: list[str | ToolCall] = []
        for part in self._order:
            if isinstance(part, int):
                found += [self._call(part)] if part in self._calls else []
            elif found and isinstance(found[-1], str):
                found[-1] += part
            else:
                found.append(part)
        return found

    def _call(self, index: int) -> ToolCall:
        call = self._calls[index]
        return ToolCall(call.id, call.name, "".join(self._arguments[index]))


class Folded:
    """A whole answer: the sum of its stream."""

    def __init__(self) -> None:
        self._choices: dict[int, FoldedChoice] = {}
        self.prompt_tokens = 0
        self.cached_tokens: int | None = None
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.drafted = 0
        self.accepted = 0
        self.max_tokens = 0  # what the engine had room for; as in the admission

    def add(self, parsed: Parsed) -> None:
        for part in parsed.before:
            self.add(part)
        self.completion_tokens += parsed.tokens
        if parsed.prompt_tokens:
            self.prompt_tokens = parsed.prompt_tokens
            self.cached_tokens = parsed.cached_tokens
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
