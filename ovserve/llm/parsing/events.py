"""What a parser reports while an answer arrives, and the fold that makes a whole answer of it.

Made by every TextParser; read by `llm/output_parser.py`. Two events take something back. A stream cannot; the
fold obeys them, because a whole answer can still say it right. There is one parse for both; the rules for
what a client sees of it are in `llm/output.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Content(msgspec.Struct, frozen=True, gc=False):
    text: str


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    text: str


class ToolCallStart(msgspec.Struct, frozen=True, gc=False):
    """Sent once per index; indices count from 0 in order of appearance."""

    index: int
    id: str
    name: str


class ToolCallArguments(msgspec.Struct, frozen=True, gc=False):
    """A piece of the arguments' JSON text; the pieces of one index, joined, are the arguments."""

    index: int
    text: str


class ToolCallBroken(msgspec.Struct, frozen=True, gc=False):
    """The call of this index turned out to be none. Its raw text follows as Content (or was a list item)."""

    index: int


class ContentWasReasoning(msgspec.Struct, frozen=True, gc=False):
    """An end-of-thinking tag without a start: all content so far was reasoning."""


Event = Content | Reasoning | ToolCallStart | ToolCallArguments | ToolCallBroken | ContentWasReasoning


class FoldedCall(msgspec.Struct):
    id: str
    name: str
    arguments: str = ""


class Answer(msgspec.Struct, frozen=True):
    content: str
    reasoning: str
    tool_calls: tuple[FoldedCall, ...]


class Fold:
    """A whole answer, built from its events. Arguments are joined once, at the end, to stay linear."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, FoldedCall] = {}
        self._arguments: dict[int, list[str]] = {}

    def add(self, event: Event) -> None:
        match event:
            case Content(text):
                self._content.append(text)
            case Reasoning(text):
                self._reasoning.append(text)
            case ToolCallStart(index, id, name):
                self._calls[index] = FoldedCall(id, name)
                self._arguments[index] = []
            case ToolCallArguments(index, text):
                self._arguments[index].append(text)
            case ToolCallBroken(index):
                del self._calls[index], self._arguments[index]
            case ContentWasReasoning():
                self._reasoning = ["".join(self._reasoning + self._content).strip()]
                self._content = []

    def answer(self) -> Answer:
        calls = tuple(
            FoldedCall(call.id, call.name, "".join(self._arguments[index]))
            for index, call in self._calls.items()
        )
        return Answer("".join(self._content), "".join(self._reasoning), calls)


def fold(events: Iterable[Event]) -> Answer:
    """The unary answer."""
    folded = Fold()
    for event in events:
        folded.add(event)
    return folded.answer()
