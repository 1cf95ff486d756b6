"""ServerTools: tools that a model of the graph calls and the server runs, in the operator's Python.

    @calculator("AssistantToolsCalculator")
    class AssistantTools(ServerTools):
        @tool
        async def room_temperature(self, room: Literal["kitchen", "bath"]) -> float:
            \"\"\"Measure the temperature of a room in degrees Celsius.\"\"\"
            return await sensors.read(room)

| port | type | |
|---|---|---|
| output side packet `TOOLS` | `Toolbox` | to the node that generates, which calls `answer_with_tools` |

The model sees the method's name, its docstring, and a JSON schema of its parameters, which need types:
`Annotated[str, msgspec.Meta(description="...")]` describes one. Arguments are checked against them; those of
no parameter are ignored. A plain method runs on a thread of its own. Text is the result as it is, any other
value as JSON.

Options: `max_rounds` (4) of calls for an answer, `max_calls` (8) in a round, `call_seconds` (10) for a call
and `max_output_characters` (4000) of a result. What a tool raises is in the log, and its last line is the
result that the model gets. The node counts `calls` and `failed_calls`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

import msgspec

from ovserve.errors import described
from ovserve.graph import Calculator, Context, SideOutput
from ovserve.graph.graph import on_thread
from ovserve.kinds.text.resource import LlmResources, Messages
from ovserve.llm.output import Completion, FoldedChoice, Parsed, ToolCall, ToolResult
from ovserve.llm.request import Sampling, ToolPolicy

log = logging.getLogger(__name__)

F = TypeVar("F", bound=Callable[..., Any])
MARK = "__ovserve_tool__"
THREAD = "tool"
MOST_THREADS = 32  # of plain methods in the process: one that hangs keeps its thread


class CallLimits(msgspec.Struct, frozen=True):
    """The options of nodes that run tools."""

    max_rounds: Annotated[int, msgspec.Meta(ge=1, le=100)] = 4
    max_calls: Annotated[int, msgspec.Meta(ge=1, le=100)] = 8
    call_seconds: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    max_output_characters: Annotated[int, msgspec.Meta(ge=1)] = 4000


class ServerToolsOptions(CallLimits, frozen=True):
    """Those of tools of the server's own."""


def tool(method: F) -> F:
    """Declare a method of a `ServerTools` as a tool."""
    setattr(method, MARK, True)
    return method


class _Tool(msgspec.Struct, frozen=True):
    method: str
    arguments: type[msgspec.Struct]
    definition: Mapping[str, Any]
    waits: bool


class Toolbox:
    def __init__(
        self, tools: Mapping[str, _Tool], owner: ServerTools, options: CallLimits, count: Any
    ) -> None:
        self.options = options
        self._tools, self._owner, self._count = tools, owner, count

    def policy(self, *, allowed: bool = True) -> ToolPolicy | None:
        """Return the tools as a request has them; None without any. `allowed`: the model may call them."""
        if not self._tools:
            return None
        definitions = tuple(t.definition for t in self._tools.values())
        if not allowed:
            return ToolPolicy(definitions, "none")
        return ToolPolicy(definitions, "auto", tuple(self._tools), parallel=self.options.max_calls > 1)

    async def run(self, call: ToolCall) -> ToolResult:
        """Run one call. What goes wrong is its output, for the model to read."""
        return await run_call(call, self._value(call), self.options, self._count)

    async def _value(self, call: ToolCall) -> Any:
        registered = self._tools.get(call.name)
        if registered is None:
            raise LookupError(f"there is no tool {call.name!r}; there are {', '.join(self._tools)}")
        decoded = msgspec.json.decode(call.arguments or "{}", type=registered.arguments, strict=False)
        arguments = {name: getattr(decoded, name) for name in registered.arguments.__struct_fields__}
        method = getattr(self._owner, registered.method)
        if registered.waits:
            return await method(**arguments)
        return await _in_thread(method, arguments)


async def run_call(
    call: ToolCall, value: Awaitable[Any], options: CallLimits, count: Callable[[str], None]
) -> ToolResult:
    """Await the value of a call within the limits of a node, and count it. An error is its output."""
    began, failed, seconds = time.monotonic(), False, options.call_seconds
    try:
        try:
            async with asyncio.timeout(seconds):
                result = await value
        except TimeoutError:
            raise TimeoutError(f"no result within {seconds:g} s") from None
        output = result if isinstance(result, str) else msgspec.json.encode(result).decode()
    except Exception as error:  # the operator's code: the model reads the reason
        output, failed = f"error: {described(error)}", True
        log.warning("tool %r failed: %s", call.name, described(error), exc_info=error)
    if len(output) > options.max_output_characters:
        output = output[: options.max_output_characters] + " ..."
    count("failed_calls" if failed else "calls")
    return ToolResult(call, output, time.monotonic() - began, failed)


class Rounds:
    """Decides whether a model may call once more: for `most` rounds, while they find out something new."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._known: set[tuple[str, str]] = set()  # names and outputs of calls

    @property
    def may_call(self) -> bool:
        return self._left > 0

    def add(self, results: Iterable[ToolResult]) -> None:
        pairs = {(result.call.name, result.output) for result in results}
        self._left = 0 if pairs <= self._known else self._left - 1  # else it goes in circles
        self._known |= pairs


async def _in_thread(method: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    if sum(thread.name.startswith(THREAD) for thread in threading.enumerate()) >= MOST_THREADS:
        raise RuntimeError(f"{MOST_THREADS} calls of tools are running")
    return await on_thread(lambda kwargs: method(**kwargs), arguments, THREAD)


class ServerTools(Calculator):
    """Base of a node with tools. Each request has an instance, so `self` may keep what belongs to it."""

    options_type = ServerToolsOptions
    declared: ClassVar[Mapping[str, _Tool]] = {}

    tools = SideOutput("TOOLS", Toolbox)

    def open(self, cc: Context) -> None:
        cc.set_side(self.tools, Toolbox(self.declared, self, cc.options(ServerToolsOptions), cc.count))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = {name: _declared(name, value) for name, value in vars(cls).items() if hasattr(value, MARK)}
        cls.declared = {**cls.declared, **own}


def _declared(name: str, method: Callable[..., Any]) -> _Tool:
    """Return the tool of a method. Raises TypeError for one whose parameters cannot be JSON."""
    hints = get_type_hints(method, include_extras=True)
    fields: list[Any] = []
    for parameter in list(inspect.signature(method).parameters.values())[1:]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"tool {name!r}: {parameter} cannot be given by name")
        if parameter.name not in hints:
            raise TypeError(f"tool {name!r}: parameter {parameter.name!r} has no type")
        kind = hints[parameter.name]
        has_default = parameter.default is not parameter.empty
        fields.append((parameter.name, kind, parameter.default) if has_default else (parameter.name, kind))
    # Parameters that a small model makes up are left out: without them the call is often right.
    arguments = msgspec.defstruct(name, fields, kw_only=True)
    (_,), components = msgspec.json.schema_components([arguments])
    schema = dict(components.pop(name))
    schema.pop("title", None)
    if components:
        schema["$defs"] = components
    function = {"name": name, "description": inspect.getdoc(method) or "", "parameters": schema}
    waits = inspect.iscoroutinefunction(method)
    return _Tool(name, arguments, {"type": "function", "function": function}, waits)


async def answer_with_tools(
    llm: LlmResources,
    messages: Messages,
    tools: Toolbox | None,
    *,
    max_tokens: int = 256,
    sampling: Sampling | None = None,
    client: ToolPolicy | None = None,
    sure: asyncio.Event | None = None,
) -> AsyncGenerator[Parsed | ToolResult]:
    """Yield the packets of each round, then the results of its calls. `max_tokens` are of one round.

    A round that calls a tool of the `client`, who runs it, is the last. No call runs before `sure` is set.
    """
    history: list[Any] = list(messages)
    rounds = Rounds(tools.options.max_rounds if tools is not None else 0)
    results: list[ToolResult] = []
    while True:
        may_call = rounds.may_call
        if results and not may_call:
            history = _with_results(messages, results)
        own = tools.policy(allowed=may_call) if tools is not None else None
        policy = _joined(own, client)
        answer = Completion()
        packets = llm.stream(history, max_tokens=max_tokens, sampling=sampling, tools=policy)
        async with aclosing(packets):
            async for parsed in packets:
                answer.add(parsed)
                yield parsed
        choice = answer.choices[0]
        if tools is None or not may_call or not choice.tool_calls:
            return
        if client is not None and any(call.name in client.names for call in choice.tool_calls):
            return
        if sure is not None:
            await sure.wait()
        calls = choice.tool_calls[: tools.options.max_calls]
        new = await asyncio.gather(*(tools.run(call) for call in calls))
        history += _turn(choice, new)
        results += new
        rounds.add(new)
        for result in new:
            yield result


def _joined(own: ToolPolicy | None, client: ToolPolicy | None) -> ToolPolicy | None:
    """Return both parties' tools. What the client demands counts; of two with one name, its own is shown."""
    if own is None or client is None or not own.calls:
        return client or own
    client_names = {tool["function"]["name"] for tool in client.tools}
    added = tuple(tool for tool in own.tools if tool["function"]["name"] not in client_names)
    names = tuple(name for name in own.names if name not in client_names) if client.choice == "auto" else ()
    return msgspec.structs.replace(client, tools=(*client.tools, *added), names=(*client.names, *names))


def _turn(choice: FoldedChoice, results: list[ToolResult]) -> list[dict[str, Any]]:
    """Return the messages of a round. Calls beyond `max_calls` are left out."""
    calls = [
        {
            "id": r.call.id,
            "type": "function",
            "function": {"name": r.call.name, "arguments": r.call.arguments or "{}"},
        }
        for r in results
    ]
    turn: list[dict[str, Any]] = [{"role": "assistant", "content": choice.content, "tool_calls": calls}]
    return turn + [
        {"role": "tool", "tool_call_id": r.call.id, "name": r.call.name, "content": r.output} for r in results
    ]


def _with_results(messages: Messages, results: list[ToolResult]) -> list[Any]:
    """Return the conversation with the results in its last message."""
    lines = dict.fromkeys(f"{r.call.name}({r.call.arguments or '{}'}): {r.output}" for r in results)
    last = dict(messages[-1])
    last["content"] = f"{last.get('content') or ''}\n\nKnown facts:\n" + "\n".join(lines)
    return [*messages[:-1], last]
