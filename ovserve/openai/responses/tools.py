"""The `tools` and `tool_choice` of a responses body, cleaned: function tools in one form, the rest reported.

Agents send tools that only OpenAI can run (web_search, namespace, mcp ...) in every request; those are
dropped and named in a header, never refused (W5). The same for a tool_choice that names one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ovserve.errors import InvalidArgument, UnsupportedParameter

# ---- THE SWITCH for tools: whether the graph's output parsers read the calls. With False a request that
# needs them is refused here; with True they are in the prompt (`endpoint.py` gives `Tools.nested` to the
# template), and the parser finds them as `request.source.tools.nested` and `.choice`.
TOOLS_HONOURED = False

CHOICES = ("none", "auto", "required")


@dataclass(frozen=True)
class Tools:
    functions: tuple[dict[str, Any], ...]  # flat, as the response echoes them
    choice: str | dict[str, Any]  # none, auto, required, or {"type": "function", "name"}
    ignored: tuple[str, ...]

    @property
    def nested(self) -> list[dict[str, Any]]:
        """In chat's form, which templates and parsers expect; only those the choice leaves."""
        return [
            {"type": "function", "function": {k: v for k, v in f.items() if k != "type" and v is not None}}
            for f in self.functions
            if self.choice != "none"
            and (not isinstance(self.choice, dict) or f["name"] == self.choice["name"])
        ]


def clean_tools(tools: list[dict[str, Any]] | None, choice: str | dict[str, Any] | None) -> Tools:
    """Raises InvalidArgument for a malformed function tool or choice."""
    functions, ignored = [], []
    for i, tool in enumerate(tools or ()):
        type_ = tool.get("type")
        if not isinstance(type_, str):
            raise InvalidArgument(
                f"tools[{i}].type: expected a string, got {type_!r}", param=f"tools[{i}].type"
            )
        if type_ == "function":
            functions.append(_function(tool, f"tools[{i}]"))
        else:
            ignored.append(f"tools[{i}].type={type_}")
    wanted, dropped = _choice(choice, [f["name"] for f in functions], bool(tools))
    return Tools(tuple(functions), wanted, (*ignored, *dropped))


def refuse_unless_honoured(tools: Tools) -> None:
    """Raises UnsupportedParameter when calls are wanted that nobody here could read."""
    if tools.functions and tools.choice != "none" and not TOOLS_HONOURED:
        raise UnsupportedParameter(
            f"tools: function tools are not supported by this server yet, got {tools.functions[0]['name']!r}",
            param="tools",
        )


def _function(tool: dict[str, Any], where: str) -> dict[str, Any]:
    inner = tool.get("function")  # chat's nested form, which OVMS takes too
    if inner is not None and not isinstance(inner, dict):
        raise InvalidArgument(
            f"{where}.function: expected an object, got {inner!r}", param=f"{where}.function"
        )
    source = inner or tool
    name, parameters = source.get("name"), source.get("parameters")
    if not isinstance(name, str) or not name:
        raise InvalidArgument(
            f"{where}.name: expected a non-empty string, got {name!r}", param=f"{where}.name"
        )
    if parameters is not None and not isinstance(parameters, dict):
        raise InvalidArgument(
            f"{where}.parameters: expected an object, got {parameters!r}", param=f"{where}.parameters"
        )
    for field, type_ in (("description", str), ("strict", bool)):
        value = source.get(field)
        if value is not None and not isinstance(value, type_):
            param = f"{where}.{field}"
            raise InvalidArgument(f"{param}: expected {type_.__name__}, got {value!r}", param=param)
    return {
        "type": "function",
        "name": name,
        "description": source.get("description"),
        "parameters": parameters,
        "strict": source.get("strict"),
    }


def _choice(
    choice: str | dict[str, Any] | None, names: list[str], given: bool
) -> tuple[str | dict[str, Any], list[str]]:
    if choice is None:
        return "auto", []
    if isinstance(choice, str):
        if choice not in CHOICES:
            raise InvalidArgument(
                f"tool_choice: expected one of {', '.join(CHOICES)} or an object, got {choice!r}",
                param="tool_choice",
            )
        if choice == "required" and not names:
            if given:  # only tools that were dropped: what is left to choose from is text
                return "auto", ["tool_choice=required"]
            raise InvalidArgument("tool_choice: 'required' needs tools, got none", param="tool_choice")
        return choice, []
    if choice.get("type") not in ("function", None):
        return "auto", [f"tool_choice.type={choice.get('type')}"]
    inner = choice.get("function")
    name = inner.get("name") if isinstance(inner, dict) else choice.get("name")
    if name not in names:
        known = ", ".join(names) or "none"
        raise InvalidArgument(
            f"tool_choice.name: {name!r} is not one of the tools: {known}", param="tool_choice.name"
        )
    return {"type": "function", "name": name}, []
