"""Packets of parsed output written by hand: `packet("Hel", 1)` and its like."""

from __future__ import annotations

from typing import Any

from ovserve.llm.output import Content, Parsed, Reasoning, ToolCallBroken, ToolCallDelta


def packet(
    content: str = "",
    tokens: int = 0,
    finish_reason: str | None = None,
    prompt_tokens: int = 0,
    max_tokens: int = 0,
    *,
    reasoning: str = "",
    tool_calls: tuple[ToolCallDelta, ...] = (),
    retracted_calls: tuple[int, ...] = (),
    **rest: Any,
) -> Parsed:
    """In this order: calls that broke, chunks of the open call, reasoning, content, calls that begin."""
    parts = (
        *map(ToolCallBroken, retracted_calls),
        *(call for call in tool_calls if call.id is None),
        *((Reasoning(reasoning),) if reasoning else ()),
        *((Content(content),) if content else ()),
        *(call for call in tool_calls if call.id is not None),
    )
    return Parsed(parts, tokens, finish_reason, prompt_tokens, max_tokens, **rest)
