"""The `tools` and `tool_choice` of a responses body: function tools as a policy, the rest reported.

Agents send tools that only OpenAI can run (web_search, namespace, mcp ...) in every request; those are
dropped and named in a header, never rejected (W5). The same for a tool_choice that names one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ovserve.api.openai.tools import function_tool, tool_policy
from ovserve.errors import InvalidArgument
from ovserve.llm.tooling import ToolPolicy


@dataclass(frozen=True)
class Tools:
    functions: tuple[dict[str, Any], ...]  # flat, in the form of the response
    choice: str | dict[str, Any]  # as the response echoes it
    policy: ToolPolicy | None
    ignored: tuple[str, ...]


def clean_tools(
    tools: list[dict[str, Any]] | None, choice: str | dict[str, Any] | None, parallel: bool | None = None
) -> Tools:
    """Raises InvalidArgument for a malformed function tool or choice."""
    functions, ignored = [], []
    for i, tool in enumerate(tools or ()):
        type_ = tool.get("type")
        if not isinstance(type_, str):
            raise InvalidArgument(
                f"tools[{i}].type: expected a string, got {type_!r}", param=f"tools[{i}].type"
            )
        if type_ == "function":
            functions.append(function_tool(tool, f"tools[{i}]"))
        else:
            ignored.append(f"tools[{i}].type={type_}")
    wanted, dropped = _without_hosted(choice, only_hosted=bool(tools) and not functions)
    policy = tool_policy(functions, wanted, parallel)
    return Tools(tuple(map(_flat, functions)), _echo(wanted), policy, (*ignored, *dropped))


def _without_hosted(
    choice: str | dict[str, Any] | None, *, only_hosted: bool
) -> tuple[str | dict[str, Any] | None, list[str]]:
    """The choice among function tools, and what is dropped of it."""
    if choice == "required" and only_hosted:
        return None, ["tool_choice=required"]  # what is left to choose from is text
    if not isinstance(choice, dict):
        return choice, []
    type_ = choice.get("type")
    if type_ == "allowed_tools" and isinstance(choice.get("tools"), list):
        kept = [t for t in choice["tools"] if not isinstance(t, dict) or t.get("type") in (None, "function")]
        gone = len(choice["tools"]) - len(kept)
        if gone and kept:
            return choice | {"tools": kept}, ["tool_choice.tools"]
        if gone:
            return "none", ["tool_choice.tools"]
    elif type_ not in ("function", "allowed_tools", None):
        return None, [f"tool_choice.type={type_}"]
    return choice, []


def _echo(choice: str | dict[str, Any] | None) -> str | dict[str, Any]:
    if isinstance(choice, dict) and choice.get("type") != "allowed_tools":
        inner = choice.get("function")
        name = inner.get("name") if isinstance(inner, dict) else choice.get("name")
        return {"type": "function", "name": name}
    return choice or "auto"


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    """Add the fields that OpenAI's types require."""
    function = tool["function"]
    return {
        "type": "function",
        "name": function["name"],
        "description": function.get("description"),
        "parameters": function.get("parameters"),
        "strict": function.get("strict"),
    }
