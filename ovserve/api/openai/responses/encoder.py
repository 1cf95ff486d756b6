"""Encodes the events of a streamed response: their shapes, their numbers, their named `event:` lines.

Used for a live answer and by `replay.py` for a stored one. `sequence_number` starts at 0 as OpenAI's does
(OVMS starts at 1). So the number of an event is its place in the stream, and a log of events needs no other
index to resume after any of them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ovserve.api.openai.common import DONE, named_event
from ovserve.api.openai.responses.objects import (
    AGENTS_CALLS,
    AgentsCall,
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
    Message,
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


class CallDelta(Event, gc=False):
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
        begun = msgspec.structs.replace(item, **_BEGUN[type(item)])
        out = self._event("response.output_item.added", {"output_index": index, "item": begun})
        if isinstance(item, McpListTools | McpCall):
            return out + self._of_item(f"{_type(item)}.in_progress", index, item)
        if isinstance(item, Reasoning):
            part: dict[str, Any] = {"type": "summary_text", "text": ""}
            return out + self._of_item(
                "reasoning_summary_part.added", index, item, summary_index=0, part=part
            )
        if isinstance(item, Message):
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
            return out + self._of_item("content_part.added", index, item, content_index=0, part=part)
        return out

    def delta(self, index: int, item: OutputItem, text: str, logprobs: list[Logprob]) -> bytes:
        """More of an item. These are nearly all events of a stream, hence structs of their own."""
        if isinstance(item, McpApprovalRequest | AgentsCall):
            return b""  # it is shown when it is whole
        number = self.next_number
        self.next_number += 1
        if (name := _GROWING.get(type(item))) is not None:
            type_ = f"response.{name}.delta"
            return named_event(type_, CallDelta(type_, number, item.id, index, text))
        if isinstance(item, Reasoning):
            type_ = "response.reasoning_summary_text.delta"
            return named_event(type_, SummaryDelta(type_, number, item.id, index, 0, text))
        type_ = "response.output_text.delta"
        return named_event(type_, TextDelta(type_, number, item.id, index, 0, text, logprobs))

    def called(self, index: int, item: OutputItem) -> bytes:
        assert isinstance(item, McpCall), "no other item has such an event"
        return self._of_item("mcp_call_arguments.done", index, item, arguments=item.arguments)

    def answered(self, index: int, item: OutputItem) -> bytes:
        assert isinstance(item, McpListTools | McpCall), "no other item has such an event"
        state = "completed" if item.error is None else "failed"
        return self._of_item(f"{_type(item)}.{state}", index, item)

    def closed(self, index: int, item: OutputItem) -> bytes:
        out = b""
        if isinstance(item, FunctionCall):
            call = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            out = self._of_item("function_call_arguments.done", index, item, **call)
        elif isinstance(item, CustomToolCall):
            out = self._of_item("custom_tool_call_input.done", index, item, input=item.input)
        elif isinstance(item, Reasoning):
            summary = item.summary[0]
            out = self._of_item(
                "reasoning_summary_text.done", index, item, summary_index=0, text=summary.text
            )
            out += self._of_item("reasoning_summary_part.done", index, item, summary_index=0, part=summary)
        elif isinstance(item, Message):
            part = item.content[0]
            text = {"text": part.text, "logprobs": part.logprobs}
            out = self._of_item("output_text.done", index, item, content_index=0, **text)
            out += self._of_item("content_part.done", index, item, content_index=0, part=part)
        return out + self._event("response.output_item.done", {"output_index": index, "item": item})

    def _of_item(self, name: str, index: int, item: OutputItem, /, **members: Any) -> bytes:
        return self._event(f"response.{name}", {"item_id": item.id, "output_index": index, **members})

    def _event(self, type_: str, members: dict[str, Any]) -> bytes:
        number = self.next_number
        self.next_number += 1
        return named_event(type_, {"type": type_, "sequence_number": number, **members})


def _type(item: OutputItem) -> str:
    return str(item.__struct_config__.tag)


# What grows of a call, in the names of events.
_GROWING: dict[type[OutputItem], str] = {
    McpCall: "mcp_call_arguments",
    FunctionCall: "function_call_arguments",
    CustomToolCall: "custom_tool_call_input",
}
# An item when it begins, where it differs from what it has become. A request for approval is shown whole.
_BEGUN: dict[type[OutputItem], dict[str, Any]] = {
    Message: {"status": "in_progress", "content": []},
    Reasoning: {"status": "in_progress", "summary": []},
    FunctionCall: {"status": "in_progress", "arguments": ""},
    CustomToolCall: {"status": "in_progress", "input": ""},
    **{type_: {"status": "in_progress"} for type_, _ in AGENTS_CALLS.values()},
    McpListTools: {"tools": []},
    McpCall: {"status": "in_progress", "arguments": "", "output": None, "error": None},
    McpApprovalRequest: {},
}
