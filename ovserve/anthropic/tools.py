"""Anthropic's tools and tool_choice as OpenAI's, which templates and parsers know. Used by `messages.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ovserve.anthropic.body import CountRequest
from ovserve.errors import InvalidArgument

CHOICES = {"auto": "auto", "any": "required", "none": "none"}


@dataclass(frozen=True)
class Tools:
    """As in a body of chat/completions. Empty: the model is told of none."""

    tools: tuple[dict[str, Any], ...] = ()
    choice: str | dict[str, Any] = "auto"
    parallel: bool = True
    dropped: tuple[str, ...] = ()  # types of tools that only Anthropic can run

    def __bool__(self) -> bool:
        return bool(self.tools)


def openai_tools(body: CountRequest) -> Tools:
    """Raises InvalidArgument naming the index, or the choice of a tool that is not there."""
    functions: list[dict[str, Any]] = []
    dropped: list[str] = []
    for i, tool in enumerate(body.tools or ()):
        if tool.type not in (None, "custom"):
            dropped.append(f"tools.{tool.type}")
            continue
        if tool.input_schema is None:
            param = f"tools[{i}].input_schema"
            raise InvalidArgument(f"{param}: required, but missing", param=param)
        function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
        if tool.description is not None:
            function["description"] = tool.description
        functions.append({"type": "function", "function": function})
    choice, wanted = "auto", body.tool_choice
    if wanted is None:
        return Tools(tuple(functions), choice, True, tuple(dropped))
    parallel = not wanted.disable_parallel_tool_use
    if wanted.type != "tool":
        return Tools(tuple(functions), CHOICES[wanted.type], parallel, tuple(dropped))
    if wanted.name not in [f["function"]["name"] for f in functions]:
        raise InvalidArgument(
            f"tool_choice.name: {wanted.name!r} is not among the tools", param="tool_choice.name"
        )
    named = {"type": "function", "function": {"name": wanted.name}}
    return Tools(tuple(functions), named, parallel, tuple(dropped))
