"""Response events: what a graph answers a Responses request with.

`endpoint.py` makes them of parsed deltas. The Responses service folds them (`fold.py`) and encodes them for
the client (`encoder.py`); a unary body is the folded response. An item is named by its index, in the order in
which items were added. Texts that the API repeats, such as that of a done item, are the fold's, so a
calculator that changes an `ItemDelta` changes all of them.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from ovserve.api.openai.responses.objects import Failure, Incomplete, Logprob, Response, Usage

ItemKind = Literal[
    "message", "reasoning", "function_call", "custom_tool_call",
    "mcp_list_tools", "mcp_call", "mcp_approval_request",
]  # fmt: skip
Status = Literal["completed", "incomplete", "failed", "cancelled"]


class StoredInput(NamedTuple):
    """The request's own input, in the form of the store and of GET input_items."""

    json: bytes
    ids: list[str]


class ResponseCreated(msgspec.Struct, frozen=True):
    """The request is admitted. `input` is set for a response that is to be stored."""

    response: Response
    input: StoredInput | None = None


class GenerationStarted(msgspec.Struct, frozen=True):
    """The engine has produced the first token."""


class ItemAdded(msgspec.Struct, frozen=True):
    """An output item begins, empty. `call_id`, `name` and `namespace` belong to calls.

    An MCP item has the label of its server as `namespace`, and an approved call the id of the request as
    `call_id`.
    """

    index: int
    kind: ItemKind
    id: str
    call_id: str = ""
    name: str = ""
    namespace: str = ""


class ItemDelta(msgspec.Struct, frozen=True, gc=False):
    """More text of an open item: content, reasoning, or arguments of a call."""

    index: int
    text: str
    logprobs: list[Logprob] = []


class ArgumentsDone(msgspec.Struct, frozen=True):
    """The arguments of an MCP call are whole, so it runs."""

    index: int


class ToolEnded(msgspec.Struct, frozen=True):
    """An MCP server has answered: a call by `output`, a list by `tools`, either by `error`."""

    index: int
    output: str | None = None
    tools: tuple[dict[str, Any], ...] = ()
    error: str | None = None


class ItemDone(msgspec.Struct, frozen=True):
    """An item gets no more text."""

    index: int
    status: Literal["completed", "incomplete", "failed"]


class ItemRetracted(msgspec.Struct, frozen=True):
    """A done item does not belong to the response: its text was not a call after all."""

    index: int


class ItemBecameReasoning(msgspec.Struct, frozen=True):
    """A done message was reasoning: the response has it as a reasoning item with this id."""

    index: int
    id: str


class ResponseEnded(msgspec.Struct, frozen=True):
    """The last event."""

    status: Status
    completed_at: int | None = None
    incomplete_details: Incomplete | None = None
    error: Failure | None = None


ResponseEvent = (
    ResponseCreated
    | GenerationStarted
    | ItemAdded
    | ItemDelta
    | ArgumentsDone
    | ToolEnded
    | ItemDone
    | ItemRetracted
    | ItemBecameReasoning
    | ResponseEnded
)


class ResponseEvents(msgspec.Struct, frozen=True, gc=False):
    """One packet of a graph's answer: events in their order, and the tokens used so far."""

    events: tuple[ResponseEvent, ...]
    usage: Usage
