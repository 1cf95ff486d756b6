"""McpServersCalculator: MCP servers whose tools the clients of the Responses API may give to the model.

    node {
      name: "Mcp"
      calculator: "McpServersCalculator"
      node_options: {
        [type.googleapis.com / google.protobuf.Struct]: {
          servers: { label: "files" command: ["python", "files.py"] env: "TOKEN=${FILES_TOKEN}" }
          servers: { label: "wiki" url: "https://wiki.example/mcp" headers: "Authorization: Bearer ${WIKI}" }
        }
      }
    }

The node has no ports. `command` is started in the directory of the graph and speaks over stdin and stdout;
`url` speaks streamable HTTP. `allowed_tools` of a server are those that clients may use; all by default.
`${NAME}` in `env`, `headers` and `url` is a variable of the server's environment. The limits are those of
`ServerTools`, and `connect_seconds` (30), in which a server has to start and to list its tools. The node
counts `calls` and `failed_calls`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ovserve import installation
from ovserve.api.openai.responses.tools import McpTool
from ovserve.calculators.library.mcp_connection import McpConnection, Target
from ovserve.calculators.library.server_tools import CallLimits, run_call
from ovserve.errors import LoadError
from ovserve.graph import Calculator, Contract, LoadContext, Node, calculator
from ovserve.llm.output import ToolCall, ToolResult

LABEL = r"^[A-Za-z][A-Za-z0-9_-]{0,63}$"
_VARIABLE = re.compile(r"\$\{(\w+)\}")


class McpServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One server. Its repr is shown by the console, so it has no values of env or headers."""

    label: Annotated[str, msgspec.Meta(pattern=LABEL)]
    command: tuple[str, ...] = ()
    env: tuple[str, ...] = ()  # NAME=value
    url: str = ""
    headers: tuple[str, ...] = ()  # Name: value
    allowed_tools: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{self.label}: {self.url.partition('?')[0] or ' '.join(self.command[:1])}"


class McpServersOptions(CallLimits, frozen=True):
    servers: tuple[McpServerOptions, ...] = ()
    connect_seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0


class McpServers:
    """The servers of a loaded graph, by label."""

    def __init__(self, options: McpServersOptions, targets: Mapping[str, Target]) -> None:
        self.options = options
        self._servers = {one.label: one for one in options.servers}
        self._connections = {
            label: McpConnection(target, options.connect_seconds) for label, target in targets.items()
        }

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(self._servers)

    def facts(self) -> Mapping[str, object]:
        return {"mcp_servers": list(self._servers)}

    async def tools(self, label: str) -> tuple[McpTool, ...]:
        """Return the tools that the operator allows. Raises McpError."""
        listed = await self._connections[label].tools()
        allowed = self._servers[label].allowed_tools
        return tuple(tool for tool in listed if not allowed or tool.name in allowed)

    async def call(self, label: str, call: ToolCall, count: Callable[[str], None]) -> ToolResult:
        """Run a call of a tool that `tools` has listed. What goes wrong is its output."""
        return await run_call(call, self._value(label, call), self.options, count)

    async def _value(self, label: str, call: ToolCall) -> str:
        arguments = msgspec.json.decode(call.arguments or "{}", type=dict[str, Any])
        return await self._connections[label].call(call.name, arguments)

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()


@calculator("McpServersCalculator")
class McpServersNode(Calculator):
    options_type = McpServersOptions

    @classmethod
    def get_contract(cls, node: Node) -> Contract:
        if sum(one.calculator == node.calculator for one in node.config.message.node) > 1:
            raise node.error("a graph has one such node, with all its servers", "calculator")
        return super().get_contract(node)

    @classmethod
    async def load(cls, lc: LoadContext) -> McpServers:
        options = lc.options(McpServersOptions)
        if importlib.util.find_spec("mcp") is None:
            raise lc.error(f"needs the package mcp; {installation.extra('mcp')}", "servers")
        labels = [one.label for one in options.servers]
        for label in labels:
            if labels.count(label) > 1:
                raise lc.error(f"two servers have the label {label!r}", "servers")
        return McpServers(options, {one.label: _target(one, lc) for one in options.servers})

    @classmethod
    async def unload(cls, state: McpServers) -> None:
        await state.close()


def _target(server: McpServerOptions, lc: LoadContext) -> Target:
    """Return what the options ask for. Raises LoadError, without a value that may be secret."""
    if bool(server.command) == bool(server.url):
        raise _wrong(server, lc, "expected either a command or a url")
    env = _pairs(server, lc, "env", "=")
    headers = _pairs(server, lc, "headers", ":")
    if server.url:
        if not server.url.startswith(("http://", "https://")):
            raise _wrong(server, lc, f"url: expected http:// or https://, got {server.url!r}")
        return Target(label=server.label, url=_expanded(server, lc, server.url), headers=headers)
    directory, program = lc.directory.resolve(), server.command[0]
    if "/" in program and not Path(program).is_absolute():
        program = str(directory / program)
    if shutil.which(program, path=env.get("PATH")) is None:
        raise _wrong(server, lc, f"command: there is no program {server.command[0]!r}")
    return Target(label=server.label, command=(program, *server.command[1:]), cwd=str(directory), env=env)


def _wrong(server: McpServerOptions, lc: LoadContext, why: str) -> LoadError:
    return lc.error(f"{server.label!r}: {why}", "servers")


def _expanded(server: McpServerOptions, lc: LoadContext, text: str) -> str:
    for name in _VARIABLE.findall(text):
        if name not in os.environ:
            raise _wrong(server, lc, f"the environment has no variable {name}")
    return _VARIABLE.sub(lambda match: os.environ[match[1]], text)


def _pairs(server: McpServerOptions, lc: LoadContext, field: str, mark: str) -> dict[str, str]:
    texts = getattr(server, field)
    if texts and (field == "env") == bool(server.url):
        raise _wrong(server, lc, f"{field} is of a {'command' if field == 'env' else 'url'}")
    pairs = {}
    for text in texts:
        name, separator, value = text.partition(mark)
        if not name.strip() or not separator:
            raise _wrong(server, lc, f"{field}: expected NAME{mark}value")
        pairs[name.strip()] = _expanded(server, lc, value.strip())
    return pairs
