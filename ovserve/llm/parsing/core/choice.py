"""Choose the dialects of a model's answers: by the graph's options, else by the chat template.

It runs when a graph is loaded; the result is part of its ModelContext, logged, and shown by capabilities.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ovserve.errors import LoadError
from ovserve.llm.parsing.core.registry import NONE, Registry, default

Source = Literal["graph", "template", "off", "unknown"]


class ParserChoice(msgspec.Struct, frozen=True):
    """Names of dialects, None for no parsing, and the source of each.

    The source is the graph's option, the chat template, the option `none`, or unknown, because the template
    shows no known dialect.
    """

    tool: str | None = None
    reasoning: str | None = None
    tool_from: Source = "unknown"
    reasoning_from: Source = "unknown"

    def __str__(self) -> str:
        return (
            f"tool parser {self.tool or NONE} ({_WORDS[self.tool_from]}), "
            f"reasoning parser {self.reasoning or NONE} ({_WORDS[self.reasoning_from]})"
        )


_WORDS: dict[Source, str] = {
    "graph": "set in the graph",
    "template": "found in the chat template",
    "off": "switched off in the graph",
    "unknown": "none found in the chat template",
}


def check_pair(tool: str, reasoning: str, registry: Registry | None = None) -> None:
    """Check the two options of a graph.

    Raises LoadError, whose `field` is the option, for an unknown name or for two that cannot read one answer.
    """
    parsers = registry or default()
    for name, find, field in (
        (tool, parsers.tool, "tool_parser"),
        (reasoning, parsers.reasoning, "reasoning_parser"),
    ):
        try:
            find(name)
        except LoadError as exc:
            raise LoadError(exc.reason, field=field) from None
    framed = parsers.reasoning(reasoning)
    if framed is not None and framed.framed and tool not in ("", NONE, reasoning):
        raise LoadError(
            f"{reasoning!r} reads the whole answer, calls included; it does not go with tool_parser {tool!r}",
            field="reasoning_parser",
        )


def choose(
    tool: str, reasoning: str, template: str | None, registry: Registry | None = None, *, model: str = ""
) -> ParserChoice:
    """Choose. `tool` and `reasoning` are the graph's options: "" for unset, or a name that `check_pair`
    accepted.

    `model` is the name of the model's file or directory, which may be more specific than the template.
    """
    parsers = registry or default()
    found_tool, found_reasoning = parsers.detect(template, model) if template else (None, None)
    tool_name, tool_from = _pick(tool, found_tool)
    name, source = _pick(reasoning, found_reasoning)
    if source in ("template", "unknown"):
        dialect, calls = parsers.reasoning(name), parsers.tool(tool_name)
        if calls is not None and calls.framed and tool_name in parsers.reasoning_names:
            name, source = tool_name, tool_from  # it reads the whole answer anyway
        elif dialect is not None and dialect.framed and tool_name not in (None, name):
            name, source = None, "unknown"
    return ParserChoice(tool_name, name, tool_from, source)


def _pick(option: str, name: str | None) -> tuple[str | None, Source]:
    if option == NONE:
        return None, "off"
    if option:
        return option, "graph"
    return name, "template" if name else "unknown"
