"""The `tools` and `tool_choice` of a responses body: the client's tools as a policy, the rest reported.

Agents send tools that only OpenAI can run (web_search ...) in every request; those are dropped and named in a
header, never rejected (W5), and so is `mcp` where the graph has no such servers. The same for a tool_choice
that names one. Custom tools and the tools of a namespace are the client's own (`api/openai/tools.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ovserve.api.openai.tools import (
    ClientTool,
    ToolChoice,
    custom_function,
    function_tool,
    shown_name,
    tool_policy,
)
from ovserve.errors import InvalidArgument, shortened
from ovserve.llm.request import ToolPolicy

# Tools of type `mcp`: which servers of the graph, and which of their tools, a request gives to the model.
#
# A client names servers by the label that they have in the graph. Their addresses and credentials are the
# operator's: such a field of a client is an error.


MCP = "mcp"
# Fields that are the graph's.
OPERATORS = ("server_url", "connector_id", "tunnel_id", "authorization", "headers")
READ = ("type", "server_label", "server_description", "allowed_tools", "require_approval")


class McpTool(msgspec.Struct, frozen=True):
    """A tool as its server describes it."""

    name: str
    description: str | None
    input_schema: dict[str, Any]
    annotations: dict[str, Any] | None = None

    @property
    def read_only(self) -> bool:
        return bool((self.annotations or {}).get("readOnlyHint"))


class McpOffer(msgspec.Struct, frozen=True):
    """The functions that one entry of `tools` gives to the model."""

    index: int
    label: str
    functions: tuple[dict[str, Any], ...] = ()  # in chat's form, by their names at the server
    approvals: frozenset[str] = frozenset()  # names whose calls the client has to approve of
    ignored: tuple[str, ...] = ()


class _Filter(msgspec.Struct, forbid_unknown_fields=True):
    tool_names: list[str] | None = None
    read_only: bool | None = None

    def matches(self, tool: McpTool) -> bool:
        has_name = self.tool_names is None or tool.name in self.tool_names
        return has_name and (self.read_only is None or self.read_only == tool.read_only)


class _Approval(msgspec.Struct, forbid_unknown_fields=True):
    always: _Filter | None = None
    never: _Filter | None = None

    def needed(self, tool: McpTool) -> bool:
        if self.never is not None and self.never.matches(tool):
            return False
        return self.never is not None or self.always is None or self.always.matches(tool)


class McpRequest(msgspec.Struct, frozen=True):
    """One entry of `tools`, checked."""

    index: int
    label: str
    allowed: _Filter | None
    approval: _Approval
    ignored: tuple[str, ...] = ()

    def offer(self, tools: Iterable[McpTool]) -> McpOffer:
        """Return what the entry gives of the tools of its server."""
        where = f"tools[{self.index}]"
        offered = [tool for tool in tools if self.allowed is None or self.allowed.matches(tool)]
        unknown = set(self.allowed.tool_names or () if self.allowed else ()) - {tool.name for tool in offered}
        ignored = [*self.ignored, *(f"{where}.allowed_tools={name}" for name in sorted(unknown))]
        functions = []
        for tool in offered:
            function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
            try:
                functions.append(function_tool({"type": "function", **function}, where))
            except InvalidArgument:  # the server's fault: its other tools can be called
                ignored.append(f"{where}:{tool.name}")
        names = frozenset(tool.name for tool in offered if self.approval.needed(tool))
        return McpOffer(self.index, self.label, tuple(functions), names, tuple(ignored))


def mcp_requests(tools: Any, labels: Collection[str]) -> list[McpRequest]:
    """Return the entries of type `mcp`. Raises InvalidArgument, naming the field."""
    entries = tools if isinstance(tools, list) else []
    requests = [
        _request(tool, i, labels)
        for i, tool in enumerate(entries)
        if isinstance(tool, dict) and tool.get("type") == MCP
    ]
    for i, one in enumerate(requests):
        if one.label in [other.label for other in requests[:i]]:
            raise InvalidArgument.at(f"tools[{one.index}].server_label", f"{one.label!r} is given twice")
    return requests


def _request(tool: dict[str, Any], index: int, labels: Collection[str]) -> McpRequest:
    where, label = f"tools[{index}]", tool.get("server_label")
    for name in OPERATORS:
        if tool.get(name) is not None:
            why = "the servers are listed in the graph; name one by server_label"
            raise InvalidArgument.at(f"{where}.{name}", why)
    if label not in labels:
        listed, shortened_value = ", ".join(labels), shortened(repr(label))
        raise InvalidArgument.at(f"{where}.server_label", f"expected one of {listed}, got {shortened_value}")
    allowed, approval = tool.get("allowed_tools"), tool.get("require_approval")
    if isinstance(allowed, list):
        allowed = {"tool_names": allowed}
    if isinstance(approval, str):
        if approval not in ("always", "never"):
            at, shortened_value = f"{where}.require_approval", shortened(repr(approval))
            raise InvalidArgument.at(at, f"expected always, never or an object, got {shortened_value}")
        approval = {approval: {}}
    ignored = [f"{where}.{n}" for n, value in tool.items() if n not in (*READ, *OPERATORS) and value]
    return McpRequest(
        index,
        str(label),
        None if allowed is None else _convert(allowed, _Filter, f"{where}.allowed_tools"),
        _convert(approval or {}, _Approval, f"{where}.require_approval"),
        tuple(ignored),
    )


def _convert(value: Any, type_: Any, where: str) -> Any:
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise InvalidArgument.at(where, str(error)) from None


def add_offers(
    offers: Iterable[McpOffer], functions: list[dict[str, Any]], names: dict[str, ClientTool]
) -> list[str]:
    """Add the tools of servers to those of the client; return what is to be reported.

    A name that is taken is shown with the label before it.
    """
    ignored: list[str] = []
    used_names = {function["function"]["name"] for function in functions}
    for offer in offers:
        ignored += offer.ignored
        for definition in offer.functions:
            name = definition["function"]["name"]
            visible_name = shown_name(offer.label, name) if name in used_names else name
            if visible_name in used_names:
                ignored.append(f"tools[{offer.index}]:{name}")
                continue
            used_names.add(visible_name)
            functions.append({**definition, "function": {**definition["function"], "name": visible_name}})
            names[visible_name] = ClientTool(name, server_label=offer.label, approval=name in offer.approvals)
    return ignored


def chosen_names(choice: dict[str, Any], names: dict[str, ClientTool]) -> list[dict[str, Any]]:
    """Return the functions that an entry of type `mcp` in tool_choice stands for. Raises InvalidArgument."""
    label, name = choice.get("server_label"), choice.get("name")
    functions = [
        {"type": "function", "name": visible_name}
        for visible_name, tool in names.items()
        if tool.server_label and tool.server_label == label and name in (None, tool.name)
    ]
    if not functions:
        what = f"tool {name!r} of server {label!r}" if name is not None else f"server {label!r}"
        raise InvalidArgument.at("tool_choice", f"{shortened(what)} is not among tools, or has none")
    return functions


OWN = ("function", "custom", "namespace")  # types of tools that run at the client
_COMMANDS = {"type": "array", "items": {"type": "string"}}
_MILLISECONDS = {"timeout_ms": {"type": "integer", "minimum": 1}}


def _schema(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


# Tools whose type is all that a client sends, as OpenAI's models know them: functions of their names.
AGENTS_TOOLS = {
    "shell": ("Run shell commands.", _schema(["commands"], commands=_COMMANDS, **_MILLISECONDS)),
    "local_shell": (
        "Run a program with its arguments, such as ls and -a.",
        _schema(["command"], command=_COMMANDS, working_directory={"type": "string"}, **_MILLISECONDS),
    ),
    "apply_patch": (
        "Create, update or delete a file. A diff has lines of context that begin with a space, - or +, after "
        "a line @@; the diff of a new file has lines with + only.",
        _schema(
            ["type", "path"],
            type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            path={"type": "string"},
            diff={"type": "string"},
        ),
    ),
}


def _runs_elsewhere(tool: dict[str, Any]) -> bool:
    """Return whether a shell is one of OpenAI's containers."""
    environment = tool.get("environment")
    return isinstance(environment, dict) and environment.get("type") != "local"


@dataclass(frozen=True)
class Tools:
    listed: tuple[dict[str, Any], ...]  # in the form of the response
    choice: str | dict[str, Any]  # as the response echoes it
    policy: ToolPolicy | None
    ignored: tuple[str, ...]
    names: Mapping[str, ClientTool] = field(default_factory=dict)  # by the name that the model is shown


@dataclass
class _Found:
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
            self.listed.append(_flat(self.functions[-1]) if type_ == "function" else tool)

    def _add_namespace(self, namespace: dict[str, Any], where: str) -> None:
        name, tools = namespace.get("name"), namespace.get("tools")
        if not isinstance(name, str) or not name:
            raise InvalidArgument.expected(f"{where}.name", "a non-empty string", name)
        if not isinstance(tools, list):
            raise InvalidArgument.expected(f"{where}.tools", "an array", tools)
        about, before = namespace.get("description"), len(self.functions)
        for i, tool in enumerate(tools):
            at = f"{where}.tools[{i}]"
            self._add_own(tool, _type_of(tool, at), at, name, about if isinstance(about, str) else None)
        if len(self.functions) == before:
            self.ignored.append(f"{where}.type=namespace")

    def _add_own(
        self, tool: dict[str, Any], type_: str, where: str, namespace: str = "", about: str | None = None
    ) -> bool:
        """Add a tool of the client, whatever its type; others are ignored."""
        if type_ in AGENTS_TOOLS and not _runs_elsewhere(tool):
            agents_about, schema = AGENTS_TOOLS[type_]
            own_tool = {"name": type_, "description": agents_about, "parameters": schema, "strict": True}
            definition, call = function_tool({"type": "function", **own_tool}, where), f"{type_}_call"
        elif type_ == "custom":
            definition, call = custom_function(tool, where, self.ignored), "custom_tool_call"
        elif type_ == "function":
            definition, call = function_tool(tool, where), "function_call"
        else:
            self.ignored.append(f"{where}.type={type_}")
            return False
        function = definition["function"]
        own = ClientTool(function["name"], namespace, call)
        visible_name = shown_name(namespace, own.name)
        if about and not function.get("description"):
            function["description"] = about
        function["name"] = visible_name
        self.names.pop(visible_name, None)
        if namespace or type_ != "function":
            self.names[visible_name] = own
        self.functions.append(definition)
        return True


def clean_tools(
    tools: list[dict[str, Any]] | None,
    choice: ToolChoice,
    parallel: bool | None = None,
    mcp: tuple[McpOffer, ...] | None = None,
    *,
    additional: Sequence[tuple[str, dict[str, Any]]] = (),
) -> Tools:
    """`mcp` are the tools of the graph's servers, if it has servers. `additional` are those of input items,
    each with its place; one replaces an earlier one of its name.

    Raises InvalidArgument for a malformed tool of the client or choice.
    """
    collected = _Found(serves_mcp=mcp is not None)
    for i, tool in enumerate(tools or ()):
        collected.add(tool, f"tools[{i}]")
    listed, count = tuple(collected.listed), len(collected.functions)
    collected.serves_mcp = False
    for where, tool in additional:
        collected.add(tool, where)
    later = {function["function"]["name"]: function for function in collected.functions[count:]}
    earlier = [one for one in collected.functions[:count] if one["function"]["name"] not in later]
    collected.functions = [*earlier, *later.values()]
    collected.ignored += add_offers(mcp or (), collected.functions, collected.names)
    own = (*OWN, *(one for one in AGENTS_TOOLS if one in collected.names), *([] if mcp is None else [MCP]))
    only_hosted = bool(tools or additional) and not collected.functions
    requested, dropped = _without_hosted(choice, own, only_hosted=only_hosted)
    policy = tool_policy(collected.functions, _shown_choice(requested, collected.names), parallel)
    ignored = (*collected.ignored, *dropped, *(policy.unenforced if policy is not None else ()))
    return Tools(listed, _echo(requested), policy, ignored, collected.names)


def _type_of(tool: Any, where: str) -> str:
    type_ = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(type_, str):
        raise InvalidArgument.expected(f"{where}.type", "a string", type_)
    return type_


def _shown_choice(choice: ToolChoice, names: dict[str, ClientTool]) -> ToolChoice:
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
    if isinstance(tool, dict) and tool.get("type") in AGENTS_TOOLS:
        return [{"type": "function", "name": tool["type"]}]
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
        return [tool]
    name, space = tool["name"], tool.get("namespace")
    if tool.get("type") == "namespace":
        own = [visible_name for visible_name, one in names.items() if one.namespace == name]
        return [{"type": "function", "name": visible_name} for visible_name in own] or [tool]
    return [{**tool, "name": shown_name(space if isinstance(space, str) else None, name)}]


def _without_hosted(
    choice: ToolChoice, own: tuple[str, ...], *, only_hosted: bool
) -> tuple[ToolChoice, list[str]]:
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


def _echo(choice: ToolChoice) -> str | dict[str, Any]:
    if isinstance(choice, dict) and choice.get("type") not in ("allowed_tools", MCP, *AGENTS_TOOLS):
        inner = choice.get("function")
        name = inner.get("name") if isinstance(inner, dict) else choice.get("name")
        space = {"namespace": choice["namespace"]} if choice.get("namespace") else {}
        return {"type": choice.get("type", "function"), "name": name, **space}
    return choice or "auto"


def _flat(tool: dict[str, Any]) -> dict[str, Any]:
    """Add the fields that OpenAI's types require."""
    names = ("name", "description", "parameters", "strict")
    return {"type": "function", **{name: tool["function"].get(name) for name in names}}
