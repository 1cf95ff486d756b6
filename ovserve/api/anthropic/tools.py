"""Anthropic's tools and tool_choice as a policy like that of OpenAI's bodies. Used by `messages.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ovserve.api.anthropic.body import CountRequest
from ovserve.api.openai.tools import function_tool, tool_policy
from ovserve.errors import InvalidArgument
from ovserve.llm.tooling import ToolPolicy

CHOICES = {"auto": "auto", "any": "required", "none": "none"}


@dataclass(frozen=True)
class Tools:
    policy: ToolPolicy | None
    dropped: tuple[str, ...] = ()  # types that only Anthropic can run, and what is not enforced


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
        function = {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
            "strict": tool.strict,
        }
        try:
            functions.append(function_tool(function, f"tools[{i}]"))
        except InvalidArgument as exc:  # a schema has another name here
            said = [(text or "").replace(".parameters", ".input_schema") for text in (exc.message, exc.param)]
            raise InvalidArgument(said[0], param=said[1]) from None
    wanted = body.tool_choice
    if wanted is None or (dropped and not functions):
        return _tools(tool_policy(functions, None, None), dropped)
    named: dict[str, Any] = {"type": "function", "name": wanted.name}
    choice = named if wanted.type == "tool" else CHOICES[wanted.type]
    return _tools(tool_policy(functions, choice, not wanted.disable_parallel_tool_use), dropped)


def _tools(policy: ToolPolicy | None, dropped: list[str]) -> Tools:
    return Tools(policy, (*dropped, *(policy.unenforced if policy is not None else ())))
