"""Parse answers into content, reasoning and tool calls, for every dialect, streamed or whole with the same
result. `output`: what comes out; `dialect`: what a new format subclasses; `registry`: the names of formats;
`scanner` and the rest: the syntax that they share; `tools/` and `reasoning`: the formats.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from ovserve.llm.parsing.literal import Tools
from ovserve.llm.parsing.registry import Registry, default
from ovserve.llm.parsing.scanner import TextParser


def make_parser(
    tool: str | None,
    reasoning: str | None,
    tools: Iterable[Mapping[str, Any]] | None,
    implicit_reasoning: bool,
    *,
    reasoning_closed: bool = False,
    held: bool = False,
    end_tokens: Iterable[str] = (),
    registry: Registry | None = None,
) -> TextParser:
    """Return a parser for one answer.

    `tools` None: the request has none, or `tool_choice` is none; markup of calls stays in the content. An
    empty list parses calls without schemas, and none without a marker. `implicit_reasoning`: the prompt
    opened the reasoning; `reasoning_closed`: it closed it; `held`: a grammar has the answer follow the first
    end of it. `end_tokens`: the model's end-of-turn texts, dropped at the end.
    Raises LoadError for an unknown name, which a caller that checked at load time never sees.
    """
    parsers = registry or default()
    tool_dialect, reasoning_dialect = parsers.tool(tool), parsers.reasoning(reasoning)
    return TextParser(
        tool_dialect,
        reasoning_dialect,
        Tools(tools) if tools is not None else None,
        frame=parsers.frame(tool_dialect, reasoning_dialect),
        implicit_reasoning=implicit_reasoning,
        reasoning_closed=reasoning_closed,
        held=held,
        end_tokens=end_tokens,
    )


@functools.cache
def markup(tool: str | None, reasoning: str | None, *, calls: bool) -> tuple[str, ...]:
    """Return the texts whose special tokens `make_parser` needs. `calls`: the request has tools."""
    parsers = default()
    dialect, thoughts = parsers.tool(tool), parsers.reasoning(reasoning)
    dialect = parsers.frame(dialect, thoughts) or (dialect if calls else None)
    texts = () if dialect is None else dialect.texts()
    return texts if thoughts is None else (*texts, *thoughts.starts, *thoughts.ends)


def detect(template: str, model: str = "") -> tuple[str | None, str | None]:
    """Return the (tool parser, reasoning parser) for which a chat template is written; None if not
    detected."""
    return default().detect(template, model)


def implicit_reasoning_start(reasoning: str | None, rendered_prompt: str, prefill: str = "") -> bool:
    """Return whether the prompt ends inside the reasoning. For chat prompts only: a raw prompt is the user's
    text. `prefill` is the beginning of the answer, if the client wrote it; the prompt ends with it."""
    dialect = default().reasoning(reasoning)
    if dialect is None:
        return False
    return dialect.begun(prefill) if prefill.strip() else dialect.implicit(rendered_prompt)


def reasoning_closed(reasoning: str | None, rendered_prompt: str, prefill: str = "") -> bool:
    """Return whether the answer goes on after the reasoning: the prompt closes it, as templates do to disable
    it, or the client began the answer proper. For chat prompts only."""
    dialect = default().reasoning(reasoning)
    if dialect is None:
        return False
    return not dialect.begun(prefill) if prefill.strip() else dialect.closed(rendered_prompt)
