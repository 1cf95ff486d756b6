"""Parse answers into content, reasoning and tool calls, for every dialect, streamed or whole with the same
result. `events` what comes out, `scanner` the one scanner, `cursor` and `output` its two ends, `dialect` what
a new format subclasses, `tools/` and `reasoning/` the formats, `registry` their names; the rest is what
formats share: `jsonscan`, `jsoncall`, `framed`, `xmlcall`, `pythonic`, `literal`, `typed`, `frames`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ovserve.llm.parsing.core.dialect import ReasoningDialect, ToolDialect
from ovserve.llm.parsing.core.registry import Registry, default
from ovserve.llm.parsing.core.scanner import TextParser
from ovserve.llm.parsing.core.typed import Tools
from ovserve.llm.parsing.events import (
    Content,
    ContentWasReasoning,
    Event,
    Reasoning,
    ToolCallArguments,
    ToolCallBroken,
    ToolCallStart,
)

__all__ = [
    "Content",
    "ContentWasReasoning",
    "Event",
    "Reasoning",
    "ReasoningDialect",
    "Registry",
    "TextParser",
    "ToolCallArguments",
    "ToolCallBroken",
    "ToolCallStart",
    "ToolDialect",
    "default",
    "detect",
    "implicit_reasoning_start",
    "make_parser",
    "reasoning_closed",
]


def make_parser(
    tool: str | None,
    reasoning: str | None,
    tools: Iterable[Mapping[str, Any]] | None,
    implicit_reasoning: bool,
    *,
    reasoning_closed: bool = False,
    end_tokens: Iterable[str] = (),
    registry: Registry | None = None,
) -> TextParser:
    """Return a parser for one answer.

    `tools` None: the request has none, or `tool_choice` is none; markup of calls stays in the content. An
    empty list parses calls without schemas, and none without a marker. `implicit_reasoning`: the prompt
    opened the reasoning; `reasoning_closed`: it closed it. `end_tokens`: the model's end-of-turn texts,
    dropped at the end.
    Raises LoadError for an unknown name, which a caller that checked at load time never sees.
    """
    known = registry or default()
    tool_dialect, reasoning_dialect = known.tool(tool), known.reasoning(reasoning)
    return TextParser(
        tool_dialect,
        reasoning_dialect,
        Tools(tools) if tools is not None else None,
        frame=known.frame(tool_dialect, reasoning_dialect),
        implicit_reasoning=implicit_reasoning,
        reasoning_closed=reasoning_closed,
        end_tokens=end_tokens,
    )


def detect(template: str, model: str = "") -> tuple[str | None, str | None]:
    """Return the (tool parser, reasoning parser) for which a chat template is written; None if not
    detected."""
    return default().detect(template, model)


def implicit_reasoning_start(reasoning: str | None, rendered_prompt: str) -> bool:
    """Return whether the prompt ends inside the reasoning. For chat prompts only: a raw prompt is the user's
    text."""
    dialect = default().reasoning(reasoning)
    return dialect is not None and dialect.implicit(rendered_prompt)


def reasoning_closed(reasoning: str | None, rendered_prompt: str) -> bool:
    """Return whether the prompt closes the reasoning, as templates do to disable it. For chat prompts
    only."""
    dialect = default().reasoning(reasoning)
    return dialect is not None and dialect.closed(rendered_prompt)
