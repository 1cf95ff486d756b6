"""The `tools` and `tool_choice` of a responses body: the client's tools as a policy, the rest reported.

Agents send tools that only OpenAI can run (web_search ...) in every request; those are dropped and named in a
header, never rejected (W5), and so is `mcp` where the graph has no such servers (`mcp.py`). The same for a
tool_choice that names one. Custom tools and the tools of a
namespace are the client's own (`api/openai/custom_tools.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ovserve.api.openai.custom_tools import ClientTool, custom_function, shown_name
from ovserve.api.openai.responses.mcp import MCP, McpOffer, add_offers, chosen_names
from ovserve.api.openai.tools import function_tool, tool_policy
from ovserve.errors import InvalidArgument, shortened
from ovserve.llm.tooling import ToolPolicy

OWN = ("function", "custom", "namespace")  # types of tools that run at the client


@dataclass(frozen=True)
class Tools:
    listed: tuple[dict[str, Any], ...]  # in the form of the response
    choice: str | dict[str, Any]  # as the response echoes it
    policy: ToolPolicy | None
    ignored: tuple[str, ...]
    names: Mapping[str, ClientTool] = field(default_factory=dict)  # by the name that the model is shown


@dataclass
class _Found:
    """The tools of a body so far."""

    functions: list[dict[str, Any]] = field(default_factory=list)  # in chat's form
    listed: list[dict[str, Any]] = field(default_factory=list)
    names: dict[str, ClientTool] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    serves_mcp: bool = False

    def add(self, tool: Any, where: str) -> None:
        type_ = _type_of(tool, where)
        if type_ == "namespace":
            self._add_namespace(tool, where)
            self.listed.append({"description": "", **tool})
        elif type_ == MCP and self.serves_mcp:
            self.listed.append(tool)
        elif self._add_own(tool, type_, where):
            self.listed.append(tool if type_ == "custom" else _flat(self.functions[-1]))

    def _add_namespace(self, namespace: dict[str, Any], where: str) -> None:
        name, tools = namespace.get("name"), namespace.get("tools")
        if not isinstance(name, str) or not name:
            raise InvalidArgument(
                f"{where}.name: expected a non-empty string, got {shortened(repr(name))}",
                param=f"{where}.name",
            )
        if not isinstance(tools, list):
            raise InvalidArgument(
                f"{where}.tools: expected an array, got {shortened(repr(tools))}", param=f"{where}.tools"
            )
        about, before = namespace.get("description"), len(self.functions)
        for i, tool in enumerate(tools):
            at = f"{where}.tools[{i}]"
            self._add_own(tool, _type_of(tool, at), at, name, about if isinstance(about, str) else None)
        if len(self.functions) == before:
            self.ignored.append(f"{where}.type=namespace")

    def _add_own(
        self, tool: dict[str, Any], type_: str, where: str, namespace: str = "", about: str | None = None
    ) -> bool:
        """Add a function or a custom tool; others are ignored."""
        if type_ not in ("function", "custom"):
            self.ignored.append(f"{where}.type={type_}")
            return False
        custom = type_ == "custom"
        definition = custom_function(tool, where, self.ignored) if custom else function_tool(tool, where)
        function = definition["function"]
        own = ClientTool(function["name"], namespace, custom)
        visible_name = shown_name(namespace, own.name)
        if about and not function.get("description"):
            function["description"] = about
        function["name"] = visible_name
        if namespace or custom:
            self.names[visible_name] = own
        self.functions.append(definition)
        return True


def clean_tools(
    tools: list[dict[str, Any]] | None,
    choice: str | dict[str, Any] | None,
    parallel: bool | None = None,
    mcp: tuple[McpOffer, ...] | None = None,
) -> Tools:
    """`mcp` are the tools of the graph's servers, if it has servers.

    Raises InvalidArgument for a malformed tool of the client or choice.
    """
    collected = _Found(serves_mcp=mcp is not None)
    for i, tool in enumerate(tools or ()):
        collected.add(tool, f"tools[{i}]")
    collected.ignored += add_offers(mcp or (), collected.functions, collected.names)
    own = OWN if mcp is None else (*OWN, MCP)
    requested, dropped = _without_hosted(choice, own, only_hosted=bool(tools) and not collected.functions)
    policy = tool_policy(collected.functions, _shown_choice(requested, collected.names), parallel)
    ignored = (*collected.ignored, *dropped, *(policy.unenforced if policy is not None else ()))
    return Tools(tuple(collected.listed), _echo(requested), policy, ignored, collected.names)


def _type_of(tool: Any, where: str) -> str:
    type_ = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(type_, str):
        raise InvalidArgument(f"{where}.type: expected a string, got {type_!r}", param=f"{where}.type")
    return type_


def _shown_choice(
    choice: str | dict[str, Any] | None, names: dict[str, ClientTool]
) -> str | dict[str, Any] | None:
    if not isinstance(choice, dict) or not names:
        return choice
    listed = choice.get("tools")
    if choice.get("type") == "allowed_tools" and isinstance(listed, list):
        visible = [one for tool in listed for one in _shown_tools(tool, names)]
        return choice | {"tools": visible}
    if choice.get("type") in ("namespace", MCP):
        tools = _shown_tools(choice, names)
        return {"type": "allowed_tools", "mode": "required", "tools": tools}
    function_choice: dict[str, Any] = _shown_tools(choice, names)[0]
    return function_choice


def _shown_tools(tool: Any, names: dict[str, ClientTool]) -> list[Any]:
    """Return a tool of a choice, or all of a namespace or server, with the names that the model is shown."""
    if isinstance(tool, dict) and tool.get("type") == MCP:
        return chosen_names(tool, names)
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        return [tool]
    name, space = tool["name"], tool.get("namespace")
    if tool.get("type") == "namespace":
        own = [visible_name for visible_name, one in names.items() if one.namespace == name]
        return [{"type": "function", "name": visible_name} for visible_name in own] or [tool]
    return [{**tool, "name": shown_name(space if isinstance(space, str) else None, name)}]


def _without_hosted(
    choice: str | dict[str, Any] | None, own: tuple[str, ...], *, only_hosted: bool
) -> tuple[str | dict[str, Any] | None, list[str]]:
    """The choice among function tools, and what is dropped of it."""
    if choice == "required" and only_hosted:
        return None, ["tool_choice=required"]  # what is left to choose from is text
    if not isinstance(choice, dict):
        return choice, []
    type_ = choice.get("type")
    if type_ == "allowed_tools" and isinstance(choice.get("tools"), list):
        own_tools = [t for t in choice["tools"] if not isinstance(t, dict) or t.get("type") in (None, *own)]
        gone = len(choice["tools"]) - len(own_tools)
        if gone and own_tools:
            return choice | {"tools": own_tools}, ["tool_choice.tools"]
        if gone:
            return "none", ["tool_choice.tools"]
    elif type_ not in (*own, "allowed_tools", None):
        return None, [f"tool_choice.type={type_}"]
    return choice, []


def _echo(choice: str | dict[str, Any] | None) -> str | dict[str, Any]:
    if isinstance(choice, dict) and choice.get("type") not in ("allowed_tools", MCP):
        inner = choice.get("function")
        name = inner.get("name") if isinstance(inner, dict) else choice.get("name")
        space = {"namespace": choice["namespace"]} if choice.get("namespace") else {}
        return {"type": choice.get("type", "function"), "name": name, **space}
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
