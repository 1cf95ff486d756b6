"""Responses that call tools of the graph's MCP servers: an answer in rounds, as one response.

Each round is a run of the graph. Its conversation ends with the items of the rounds before, calls with their
results among them; the events of all rounds are those of one response. `Rounds` of `ServerTools` decides
whether the model may call once more. A round with calls of the client, or with calls that it has to approve
of, is the last one.

Servers list their tools before the first round, and calls that the client has approved of are run then.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import Raw

from ovserve.api.openai.common import encode, new_id
from ovserve.api.openai.responses.endpoint import Responses
from ovserve.api.openai.responses.fold import ResponseFold
from ovserve.api.openai.responses.objects import (
    CLIENTS_CALLS,
    ArgumentsDone,
    GenerationStarted,
    Incomplete,
    InputDetails,
    ItemAdded,
    ItemBecameReasoning,
    ItemDelta,
    ItemDone,
    ItemRetracted,
    McpCall,
    OutputDetails,
    ResponseCreated,
    ResponseEnded,
    ResponseEvent,
    ResponseEvents,
    ToolEnded,
    Usage,
)
from ovserve.api.openai.responses.tools import McpOffer, McpRequest, mcp_requests
from ovserve.calculators.library.mcp_connection import McpError
from ovserve.calculators.library.mcp_servers import McpServers
from ovserve.calculators.library.server_tools import Rounds
from ovserve.errors import ContextLengthExceeded, InvalidArgument
from ovserve.kinds.payload import HttpResponse
from ovserve.llm.output import ToolCall, ToolResult
from ovserve.services.responses.input import ResolvedRequest, own_items
from ovserve.serving.servable import GraphResponse, Servable

# Begins a round after items of this response, with fields in place of those of the body.
StartRound = Callable[[list[Raw], dict[str, Raw]], GraphResponse]
FAILED = "error: "


class _Item(msgspec.Struct):
    """The fields that are read of an item of the conversation."""

    type: str | None = None
    id: str | None = None
    name: str = ""
    arguments: str = ""
    server_label: str | None = None
    error: Any = None
    approval_request_id: str | None = None
    approve: bool | None = None


def _read(raw: Raw) -> _Item:
    try:
        return msgspec.json.decode(raw, type=_Item)
    except msgspec.ValidationError:
        return _Item()  # the graph's endpoint says what is wrong with it


@dataclass
class McpSession:
    """The servers as one request uses them, and what has been done before its first round."""

    servers: McpServers
    count: Callable[[str], None]
    offers: tuple[McpOffer, ...] = ()
    begun: list[ResponseEvent] = field(default_factory=list)
    done: list[Raw] = field(default_factory=list)  # calls, as items
    items: int = 0  # that `begun` adds
    calls: int = 0  # that have been run

    async def run(self, label: str, call: ToolCall) -> ToolResult:
        self.calls += 1
        return await self.servers.call(label, call, self.count)


async def session_of(
    servable: Servable, resolved: ResolvedRequest, *, runs: bool = True
) -> McpSession | None:
    """Return the request's use of the graph's MCP servers, if any. Without `runs`, approved calls are not
    run. Raises InvalidArgument."""
    servers = servable.mcp
    if servers is None or resolved.fields is None:
        return None
    tools = msgspec.json.decode(resolved.fields.get("tools", Raw(b"null")))
    requests = mcp_requests(tools, servers.labels)
    own = own_items(resolved)
    past = [_read(raw) for raw in resolved.context.history]
    items = [_read(raw) for raw in own]
    approved = _approved(past, items, requests)
    if not requests:
        return None
    session = McpSession(servers, servable.count_mcp)
    listed = {i.server_label for i in (*past, *items) if i.type == "mcp_list_tools" and i.error is None}
    listings = await asyncio.gather(*(_listed(servers, request) for request in requests))
    session.offers = tuple(offer for offer, _ in listings)
    for request, (offer, events) in zip(requests, listings, strict=True):
        if request.label not in listed or any(e.error for e in events):
            _begin(
                session,
                ItemAdded(session.items, "mcp_list_tools", new_id("mcpl_"), "", "", offer.label),
                events,
            )
    if not runs or not approved:
        return session
    # Nothing is run for a body that is wrong.
    await servable.bodies.run(resolved.large, _check, resolved.body)
    await _run_approved(session, approved)
    return session


def _check(body: bytes) -> None:
    Responses().decode(body)


async def _run_approved(session: McpSession, approved: list[tuple[_Item, str]]) -> None:
    """Run calls that the client has approved of. Raises InvalidArgument for a tool that is not offered."""
    offered = {(o.label, f["function"]["name"]) for o in session.offers for f in o.functions}
    for item, where in approved:
        if (item.server_label, item.name) not in offered:
            raise InvalidArgument.at(
                where, f"tool {item.name!r} of server {item.server_label!r} is not among tools"
            )
    calls = [(i.server_label or "", ToolCall("", i.name, i.arguments)) for i, _ in approved]
    results = await asyncio.gather(*(session.run(label, call) for label, call in calls))
    for (item, _), (label, call), result in zip(approved, calls, results, strict=True):
        added = ItemAdded(session.items, "mcp_call", new_id("mcp_"), item.id or "", call.name, label)
        _begin(session, added, [ItemDelta(0, call.arguments), ArgumentsDone(0)], result)
        call_item = McpCall(added.id, "completed", label, call.name, call.arguments, result.output)
        session.done.append(Raw(encode(call_item)))


def _begin(
    session: McpSession, added: ItemAdded, events: Sequence[Any], result: ToolResult | None = None
) -> None:
    index = session.items
    session.begun += [added, *(msgspec.structs.replace(event, index=index) for event in events)]
    session.begun += [ItemDone(index, "completed")] if result is None else _ended(index, result)
    session.items += 1


def _approved(past: list[_Item], items: list[_Item], requests: list[McpRequest]) -> list[tuple[_Item, str]]:
    """Return the calls that this request approves of, with the field that does. Raises InvalidArgument."""
    approvals = {item.id: item for item in (*past, *items) if item.type == "mcp_approval_request"}
    ran = {item.approval_request_id for item in (*past, *items) if item.type == "mcp_call"}
    labels, approved = {request.label for request in requests}, []
    for i, item in enumerate(items):
        if item.type != "mcp_approval_response" or item.approval_request_id is None:
            continue
        where, id_ = f"input[{i}].approval_request_id", item.approval_request_id
        if id_ not in approvals:
            raise InvalidArgument.at(where, f"there is no mcp_approval_request {id_!r}")
        if approvals[id_].server_label not in labels:
            label = approvals[id_].server_label
            raise InvalidArgument.at(where, f"its server {label!r} is not among tools")
        if item.approve and id_ not in ran:
            ran.add(id_)
            approved.append((approvals[id_], where))
    return approved


async def _listed(servers: McpServers, request: McpRequest) -> tuple[McpOffer, list[ToolEnded]]:
    try:
        tools = await servers.tools(request.label)
    except McpError as error:
        return McpOffer(request.index, request.label), [ToolEnded(0, error=str(error))]
    offer = request.offer(tools)
    names = {function["function"]["name"] for function in offer.functions}
    visible = tuple(msgspec.to_builtins(tool) for tool in tools if tool.name in names)
    return offer, [ToolEnded(0, tools=visible)]


def _ended(index: int, result: ToolResult) -> list[ResponseEvent]:
    if result.failed:
        return [ToolEnded(index, error=result.output), ItemDone(index, "failed")]
    return [ToolEnded(index, output=result.output), ItemDone(index, "completed")]


class McpAnswer:
    """A running response in rounds; it is used as a GraphResponse is."""

    def __init__(self, session: McpSession, start: StartRound, fields: Mapping[str, Raw]) -> None:
        self._session, self._start, self._fields = session, start, fields
        self._rounds = Rounds(session.servers.options.max_rounds)
        self._most = self._number("max_tool_calls")
        self._stack = AsyncExitStack()
        self._fold: ResponseFold | None = None
        self._offset = 0  # of the indices of this round's items
        self._before: Usage | None = None  # of earlier rounds
        self._pending: list[int] = []  # calls to run when the round has ended
        self._end: ResponseEnded | None = None
        self._queue: deque[ResponseEvents] = deque()
        self._over = False

    async def __aenter__(self) -> McpAnswer:
        self._answer = await self._stack.enter_async_context(self._start(self._session.done, {}))
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.__aexit__(*error)

    async def first(self) -> HttpResponse:
        """Return how it begins. Raises what went wrong before that."""
        first = await self._answer.first()
        if first.events is None:
            raise InvalidArgument.at("tools", "this graph writes its own responses, without MCP")
        self._fold = ResponseFold(first.events)
        return replace(first, events=self._packet(first.events))

    async def next(self) -> bytes | None:
        raise AssertionError("it answers with events")

    async def next_events(self) -> ResponseEvents | None:
        """Return the next packet; None at the end."""
        while True:
            if self._queue:
                return self._queue.popleft()
            if self._over:
                return None
            packet = await self._answer.next_events()
            if packet is not None:
                return self._packet(packet)
            await self._end_round()

    def _packet(self, packet: ResponseEvents) -> ResponseEvents:
        """Return the events of a round as those of the response."""
        events: list[ResponseEvent] = []
        first = self._before is None
        for event in packet.events:
            match event:
                case ResponseCreated():
                    if first:
                        events += [event, *self._session.begun]
                        self._offset = self._session.items
                case GenerationStarted():
                    events += [event] if first else []
                case ResponseEnded():
                    self._end = event
                case ItemDone(index, "completed") if self._is_call(events, index + self._offset):
                    events.append(ArgumentsDone(index + self._offset))
                    self._pending.append(index + self._offset)
                case ItemAdded() | ItemDelta() | ItemDone() | ItemRetracted() | ItemBecameReasoning():
                    events.append(msgspec.structs.replace(event, index=event.index + self._offset))
                case _:
                    events.append(event)
        return self._add(events, self._usage(packet.usage))

    def _add(self, events: list[ResponseEvent], usage: Usage) -> ResponseEvents:
        assert self._fold is not None, "the first packet made it"
        response_events = ResponseEvents(tuple(events), usage)
        self._fold.add(response_events)
        return response_events

    def _is_call(self, new: list[ResponseEvent], index: int) -> bool:
        """Return whether an item is an MCP call; it may be among the new events."""
        for event in new:
            if isinstance(event, ItemAdded) and event.index == index:
                return event.kind == "mcp_call"
        assert self._fold is not None, "the first packet made it"
        output = self._fold.response.output
        return index < len(output) and isinstance(output[index], McpCall)

    async def _end_round(self) -> None:
        fold, end = self._fold, self._end
        assert fold is not None and end is not None, "a graph's answer has both"  # noqa: PT018
        output, begun = fold.response.output, self._offset
        pending, self._pending = self._pending, []
        results = await asyncio.gather(*(self._call(i, n) for n, i in enumerate(pending)))
        if pending:
            events = [e for i, result in zip(pending, results, strict=True) for e in _ended(i, result)]
            self._queue.append(self._add(events, fold.usage))
            self._rounds.add(results)
        waits = any(isinstance(i, CLIENTS_CALLS) for i in output[begun:])
        if not pending or waits or end.status != "completed":
            self._finish(end)
            return
        self._before, self._offset, self._end = fold.usage, len(output), None
        remaining = self._number("max_output_tokens")
        if remaining is not None and remaining <= fold.usage.output_tokens:
            self._finish(ResponseEnded("incomplete", incomplete_details=Incomplete("max_output_tokens")))
            return
        fields = {"tool_choice": self._choice()}
        if remaining is not None:
            fields["max_output_tokens"] = Raw(encode(remaining - fold.usage.output_tokens))
        items = [Raw(encode(item)) for item in fold.items()]
        await self._stack.aclose()
        try:
            self._answer = await self._stack.enter_async_context(self._start(items, fields))
            first = await self._answer.first()
        except ContextLengthExceeded:  # by the results of tools: what there is stays
            self._finish(ResponseEnded("incomplete", incomplete_details=Incomplete("max_output_tokens")))
            return
        assert first.events is not None, "the first round had some"
        self._queue.append(self._packet(first.events))

    def _finish(self, end: ResponseEnded) -> None:
        assert self._fold is not None, "the first packet made it"
        self._queue.append(self._add([end], self._fold.usage))
        self._over = True

    async def _call(self, index: int, number: int) -> ToolResult:
        assert self._fold is not None, "the first packet made it"
        item = self._fold.response.output[index]
        assert isinstance(item, McpCall), "it is pending"
        call = ToolCall(item.id, item.name, item.arguments)
        most = self._session.servers.options.max_calls
        if number >= most:
            return ToolResult(call, f"{FAILED}more than {most} calls at once", 0.0, failed=True)
        if self._most is not None and self._session.calls >= self._most:
            return ToolResult(call, f"{FAILED}more than max_tool_calls {self._most}", 0.0, failed=True)
        return await self._session.run(item.server_label, call)

    def _choice(self) -> Raw:
        """Return the tool_choice of a further round, in which nothing is required any more."""
        choice = msgspec.json.decode(self._fields.get("tool_choice", Raw(b"null")))
        spent = self._most is not None and self._session.calls >= self._most
        if not self._rounds.may_call or spent or choice == "none":
            return Raw(b'"none"')
        if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
            return Raw(encode({**choice, "mode": "auto"}))
        return Raw(b'"auto"')

    def _number(self, name: str) -> int | None:
        value = msgspec.json.decode(self._fields.get(name, Raw(b"null")))
        return value if isinstance(value, int) else None

    def _usage(self, usage: Usage) -> Usage:
        """Add the tokens of earlier rounds."""
        old = self._before
        if old is None:
            return usage
        cached = old.input_tokens_details.cached_tokens + usage.input_tokens_details.cached_tokens
        reasoning = old.output_tokens_details.reasoning_tokens + usage.output_tokens_details.reasoning_tokens
        return Usage(
            old.input_tokens + usage.input_tokens,
            InputDetails(cached),
            old.output_tokens + usage.output_tokens,
            OutputDetails(reasoning),
            old.total_tokens + usage.total_tokens,
        )
