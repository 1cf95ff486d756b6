"""Encodes the events of a streamed response: their shapes, their numbers, their named `event:` lines.

Used for a live answer and by `replay.py` for a stored one. `sequence_number` starts at 0 as OpenAI's does
(OVMS starts at 1). So the number of an event is its place in the stream, and a log of events needs no other
index to resume after any of them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ovserve.api.openai.common import DONE, encode
from ovserve.api.openai.responses.objects import (
    ArgumentsDone,
    CustomToolCall,
    FunctionCall,
    GenerationStarted,
    ItemAdded,
    ItemDelta,
    ItemDone,
    Logprob,
    McpApprovalRequest,
    McpCall,
    McpListTools,
    OutputItem,
    Reasoning,
    Response,
    ResponseCreated,
    ResponseEnded,
    ResponseEvent,
    ToolEnded,
)


class Event(msgspec.Struct, gc=False):
    """The fields that all events begin with."""

    type: str
    sequence_number: int


class TextDelta(Event, gc=False):
    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[Logprob]


class SummaryDelta(Event, gc=False):
    item_id: str
    output_index: int
    summary_index: int
    delta: str


class ArgumentsDelta(Event, gc=False):
    item_id: str
    output_index: int
    call_id: str
    delta: str


class InputDelta(Event, gc=False):
    item_id: str
    output_index: int
    delta: str


class EventEncoder:
    """Numbers and encodes the events of one stream."""

    def __init__(self) -> None:
        self.next_number = 0

    def encode(self, event: ResponseEvent, response: Response) -> bytes:
        """Return the server-sent events of an event that has been folded into `response` just now."""
        match event:
            case ItemDelta(index, text, logprobs):
                return self.delta(index, response.output[index], text, logprobs)
            case ItemAdded(index):
                return self.opened(index, response.output[index])
            case ItemDone(index):
                return self.closed(index, response.output[index])
            case ArgumentsDone(index):
                return self.called(index, response.output[index])
            case ToolEnded(index):
                return self.answered(index, response.output[index])
            case ResponseCreated():
                out = self.lifecycle("created", response)
                return out + self.lifecycle("queued", response) if response.status == "queued" else out
            case GenerationStarted():
                return self.lifecycle("in_progress", response)
            case ResponseEnded(status):
                # OpenAI has no event for a cancelled response: it is incomplete by name.
                return self.lifecycle("incomplete" if status == "cancelled" else status, response) + DONE
            case _:
                return b""  # it shows in the last event only

    def lifecycle(self, state: str, response: Response) -> bytes:
        """`state` is created, queued, in_progress, completed, incomplete or failed."""
        return self._event(f"response.{state}", {"response": response})

    def opened(self, index: int, item: OutputItem) -> bytes:
        """An item begins, empty: the item itself, and its one part."""
        out = self._event("response.output_item.added", {"output_index": index, "item": _empty(item)})
        if isinstance(item, FunctionCall | CustomToolCall | McpApprovalRequest):
            return out
        if isinstance(item, McpListTools | McpCall):
            where = {"item_id": item.id, "output_index": index}
            return out + self._event(f"response.{_type(item)}.in_progress", where)
        if isinstance(item, Reasoning):
            where = {"item_id": item.id, "output_index": index, "summary_index": 0}
            part: dict[str, Any] = {"type": "summary_text", "text": ""}
            return out + self._event("response.reasoning_summary_part.added", where | {"part": part})
        where = {"item_id": item.id, "output_index": index, "content_index": 0}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return out + self._event("response.content_part.added", where | {"part": part})

    def delta(self, index: int, item: OutputItem, text: str, logprobs: list[Logprob]) -> bytes:
        """More of an item. These are nearly all events of a stream, hence structs of their own."""
        if isinstance(item, McpApprovalRequest):
            return b""  # it is shown when it is whole
        number = self.next_number
        self.next_number += 1
        if isinstance(item, McpCall):
            type_ = "response.mcp_call_arguments.delta"
            return _frame(type_, InputDelta(type_, number, item.id, index, text))
        if isinstance(item, FunctionCall):
            type_ = "response.function_call_arguments.delta"
            return _frame(type_, ArgumentsDelta(type_, number, item.id, index, item.call_id, text))
        if isinstance(item, CustomToolCall):
            type_ = "response.custom_tool_call_input.delta"
            return _frame(type_, InputDelta(type_, number, item.id, index, text))
        if isinstance(item, Reasoning):
            type_ = "response.reasoning_summary_text.delta"
            return _frame(type_, SummaryDelta(type_, number, item.id, index, 0, text))
        type_ = "response.output_text.delta"
        return _frame(type_, TextDelta(type_, number, item.id, index, 0, text, logprobs))

    def called(self, index: int, item: OutputItem) -> bytes:
        """The arguments of an MCP call are whole."""
        assert isinstance(item, McpCall), "no other item has such an event"
        where = {"item_id": item.id, "output_index": index, "arguments": item.arguments}
        return self._event("response.mcp_call_arguments.done", where)

    def answered(self, index: int, item: OutputItem) -> bytes:
        """An MCP server has answered."""
        assert isinstance(item, McpListTools | McpCall), "no other item has such an event"
        state = "completed" if item.error is None else "failed"
        return self._event(f"response.{_type(item)}.{state}", {"item_id": item.id, "output_index": index})

    def closed(self, index: int, item: OutputItem) -> bytes:
        """An item is whole."""
        if isinstance(item, McpListTools | McpCall | McpApprovalRequest):
            out = b""
        elif isinstance(item, FunctionCall):
            where: dict[str, Any] = {"item_id": item.id, "output_index": index}
            more = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            out = self._event("response.function_call_arguments.done", where | more)
        elif isinstance(item, CustomToolCall):
            where = {"item_id": item.id, "output_index": index, "input": item.input}
            out = self._event("response.custom_tool_call_input.done", where)
        elif isinstance(item, Reasoning):
            where = {"item_id": item.id, "output_index": index, "summary_index": 0}
            summary = item.summary[0]
            out = self._event("response.reasoning_summary_text.done", where | {"text": summary.text})
            out += self._event("response.reasoning_summary_part.done", where | {"part": summary})
        else:
            where = {"item_id": item.id, "output_index": index, "content_index": 0}
            part = item.content[0]
            text = {"text": part.text, "logprobs": part.logprobs}
            out = self._event("response.output_text.done", where | text)
            out += self._event("response.content_part.done", where | {"part": part})
        return out + self._event("response.output_item.done", {"output_index": index, "item": item})

    def _event(self, type_: str, members: dict[str, Any]) -> bytes:
        number = self.next_number
        self.next_number += 1
        return _frame(type_, {"type": type_, "sequence_number": number, **members})


def _frame(type_: str, value: Any) -> bytes:
    return b"event: " + type_.encode() + b"\ndata: " + encode(value) + b"\n\n"


def _type(item: OutputItem) -> str:
    return str(item.__struct_config__.tag)


def _empty(item: OutputItem) -> dict[str, Any]:
    if isinstance(item, McpListTools | McpCall | McpApprovalRequest):
        begun = msgspec.structs.replace(item, tools=[]) if isinstance(item, McpListTools) else item
        if isinstance(begun, McpCall):
            begun = msgspec.structs.replace(
                begun, status="in_progress", arguments="", output=None, error=None
            )
        item_fields: dict[str, Any] = msgspec.to_builtins(begun)
        return item_fields
    shared = {"id": item.id, "status": "in_progress"}
    if isinstance(item, FunctionCall | CustomToolCall):
        type_, field = ("function_call", "arguments")
        if isinstance(item, CustomToolCall):
            type_, field = ("custom_tool_call", "input")
        call = {"type": type_, "call_id": item.call_id, "name": item.name, field: ""}
        return shared | call | ({"namespace": item.namespace} if item.namespace else {})
    if isinstance(item, Reasoning):
        return shared | {"type": "reasoning", "summary": []}
    return shared | {"type": "message", "role": "assistant", "content": []}
