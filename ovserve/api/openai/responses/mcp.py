"""Tools of type `mcp`: which servers of the graph, and which of their tools, a request gives to the model.

A client names servers by the label that they have in the graph. Their addresses and credentials are the
operator's: such a field of a client is an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Protocol

import msgspec

from ovserve.api.openai.custom_tools import ClientTool, shown_name
from ovserve.api.openai.tools import function_tool
from ovserve.errors import InvalidArgument, shortened

MCP = "mcp"
OPERATORS = (
    "server_url",
    "connector_id",
    "tunnel_id",
    "authorization",
    "headers",
)  # fields that are the graph's
READ = ("type", "server_label", "server_description", "allowed_tools", "require_approval")


class ListedTool(Protocol):
    """A tool as its server describes it."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str | None: ...
    @property
    def input_schema(self) -> dict[str, Any]: ...
    @property
    def read_only(self) -> bool: ...


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

    def matches(self, tool: ListedTool) -> bool:
        has_name = self.tool_names is None or tool.name in self.tool_names
        return has_name and (self.read_only is None or self.read_only == tool.read_only)


class _Approval(msgspec.Struct, forbid_unknown_fields=True):
    always: _Filter | None = None
    never: _Filter | None = None

    def needed(self, tool: ListedTool) -> bool:
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

    def offer(self, tools: Iterable[ListedTool]) -> McpOffer:
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
            where = f"tools[{one.index}].server_label"
            raise InvalidArgument(f"{where}: {one.label!r} is given twice", param=where)
    return requests


def _request(tool: dict[str, Any], index: int, labels: Collection[str]) -> McpRequest:
    where, label = f"tools[{index}]", tool.get("server_label")
    for name in OPERATORS:
        if tool.get(name) is not None:
            why = "the servers are listed in the graph; name one by server_label"
            raise InvalidArgument(f"{where}.{name}: {why}", param=f"{where}.{name}")
    if label not in labels:
        listed, shortened_value = ", ".join(labels), shortened(repr(label))
        raise InvalidArgument(
            f"{where}.server_label: expected one of {listed}, got {shortened_value}",
            param=f"{where}.server_label",
        )
    allowed, approval = tool.get("allowed_tools"), tool.get("require_approval")
    if isinstance(allowed, list):
        allowed = {"tool_names": allowed}
    if isinstance(approval, str):
        if approval not in ("always", "never"):
            at, shortened_value = f"{where}.require_approval", shortened(repr(approval))
            raise InvalidArgument(
                f"{at}: expected always, never or an object, got {shortened_value}", param=at
            )
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
        raise InvalidArgument(f"{where}: {error}", param=where) from None


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
        raise InvalidArgument(
            f"tool_choice: {shortened(what)} is not among tools, or has none", param="tool_choice"
        )
    return functions
