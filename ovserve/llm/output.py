"""Model text to parsed output, incrementally; and the fold that makes a unary answer of the stream.

Called by the output parser and the response writer. Unary answers exist only as this fold, so a stream and
a whole answer cannot differ.
"""

from __future__ import annotations

import msgspec

from ovserve.llm.request import Delta


class Parsed(msgspec.Struct, gc=False):
    """One delta after parsing: the text split by what it is, counters passed through."""

    content: str = ""
    tokens: int = 0
    finish_reason: str | None = None
    prompt_tokens: int = 0  # > 0 only in the admission delta, the first of a stream
    max_tokens: int = 0


class OutputParser:
    """Splits one answer's text. Without a tool or reasoning dialect all of it is content."""

    def feed(self, delta: Delta) -> Parsed:
        return Parsed(delta.text, delta.tokens, delta.finish_reason, delta.prompt_tokens, delta.max_tokens)


class Folded:
    """A whole answer: the sum of its stream."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self.finish_reason: str | None = None
        self.prompt_tokens = 0
        self.completion_tokens = 0

    def add(self, parsed: Parsed) -> None:
        if parsed.content:
            self._content.append(parsed.content)
        self.completion_tokens += parsed.tokens
        self.prompt_tokens += parsed.prompt_tokens
        self.finish_reason = parsed.finish_reason or self.finish_reason

    @property
    def content(self) -> str:
        return "".join(self._content)
