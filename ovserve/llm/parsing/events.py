"""The events that a parser reports while an answer arrives.

Two events retract earlier ones: `llm/output.py` has the rules for what a client sees of that.
"""

from __future__ import annotations

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
    """A chunk of the arguments' JSON text; the joined chunks of one index are the arguments."""

    index: int
    text: str


class ToolCallBroken(msgspec.Struct, frozen=True, gc=False):
    """The call of this index turned out not to be a call. Its raw text follows as Content (or was a list
    item)."""

    index: int


class ContentWasReasoning(msgspec.Struct, frozen=True, gc=False):
    """An end-of-reasoning tag without a start: all content so far was reasoning."""


Event = Content | Reasoning | ToolCallStart | ToolCallArguments | ToolCallBroken | ContentWasReasoning
