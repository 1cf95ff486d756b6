"""The response object with the items of its output, and the events of which a graph makes its answer.

Every field that the strict types of the official client require is here, the optional ones as OpenAI sends
them. Output items are mutable on purpose: one item grows while it streams, and the list is the answer.

`endpoint.py` makes events of parsed deltas. The Responses service folds them (`fold.py`) and encodes them for
the client (`encoder.py`); a unary body is the folded response, which `replay.py` reads back from the store.
An item is named by its index, in the order in which items were added. Texts that the API repeats, such as
that of a done item, are the fold's, so a calculator that changes an `ItemDelta` changes all of them.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

TERMINAL = ("completed", "incomplete", "failed", "cancelled")
RUNNING = ("queued", "in_progress")


class TopLogprob(msgspec.Struct, gc=False):
    token: str
    bytes: list[int]
    logprob: float


class Logprob(msgspec.Struct, gc=False):
    token: str
    bytes: list[int]
    logprob: float
    top_logprobs: list[TopLogprob]


class OutputText(msgspec.Struct, tag="output_text"):
    text: str = ""
    annotations: list[Any] = []
    logprobs: list[Logprob] = []


class SummaryText(msgspec.Struct, tag="summary_text"):
    text: str = ""


class Message(msgspec.Struct, tag="message"):
    id: str
    status: str
    content: list[OutputText]
    role: str = "assistant"


class Reasoning(msgspec.Struct, tag="reasoning"):
    id: str
    status: str
    summary: list[SummaryText]


class _Call(msgspec.Struct):
    id: str
    status: str
    call_id: str


class FunctionCall(_Call, tag="function_call"):
    name: str
    arguments: str = ""
    namespace: str | UnsetType = UNSET


class CustomToolCall(_Call, tag="custom_tool_call"):
    name: str
    input: str = ""
    namespace: str | UnsetType = UNSET


class LocalShellCall(_Call, tag="local_shell_call"):
    action: dict[str, Any]


class ShellCall(_Call, tag="shell_call"):
    action: dict[str, Any]


class ApplyPatchCall(_Call, tag="apply_patch_call"):
    operation: dict[str, Any]


AgentsCall = LocalShellCall | ShellCall | ApplyPatchCall
# What their types require, until the arguments are whole or where the model left it out.
AGENTS_CALLS: dict[str, tuple[type[AgentsCall], dict[str, Any]]] = {
    "local_shell_call": (LocalShellCall, {"type": "exec", "command": [], "env": {}}),
    "shell_call": (ShellCall, {"commands": [], "timeout_ms": None, "max_output_length": None}),
    "apply_patch_call": (ApplyPatchCall, {"type": "update_file", "path": "", "diff": ""}),
}


def action_of(kind: str, arguments: str) -> dict[str, Any]:
    """Return what a call of an agent's tool asks for."""
    try:
        value = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        value = None  # it was cut
    return AGENTS_CALLS[kind][1] | (value if isinstance(value, dict) else {})


class McpListTools(msgspec.Struct, tag="mcp_list_tools"):
    id: str
    server_label: str
    tools: list[dict[str, Any]] = []
    error: str | None = None


class McpCall(msgspec.Struct, tag="mcp_call"):
    id: str
    status: str
    server_label: str
    name: str
    arguments: str = ""
    output: str | None = None
    error: dict[str, Any] | None = None
    approval_request_id: str | None = None


class McpApprovalRequest(msgspec.Struct, tag="mcp_approval_request"):
    id: str
    server_label: str
    name: str
    arguments: str = ""


McpItem = McpListTools | McpCall | McpApprovalRequest
OutputItem = Message | Reasoning | FunctionCall | CustomToolCall | AgentsCall | McpItem
CLIENTS_CALLS = (FunctionCall, CustomToolCall, AgentsCall, McpApprovalRequest)  # that the client answers
STATELESS = (McpListTools, McpApprovalRequest)  # items without a status


def text_place(item: OutputItem) -> tuple[msgspec.Struct, str] | None:
    """Return the object that has the text of an item, which grows, and the name of its field."""
    if isinstance(item, Message):
        return item.content[0], "text"
    if isinstance(item, Reasoning):
        return item.summary[0], "text"
    if isinstance(item, McpListTools | AgentsCall):
        return None
    return item, "input" if isinstance(item, CustomToolCall) else "arguments"


class InputDetails(msgspec.Struct, gc=False):
    cached_tokens: int = 0  # 0 also where it is unknown, because clients require a number
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct, gc=False):
    """Predictions as in chat/completions; OpenAI's Responses have no such fields."""

    reasoning_tokens: int
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class Usage(msgspec.Struct, gc=False):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class Failure(msgspec.Struct):
    code: str
    message: str


class Incomplete(msgspec.Struct):
    reason: str
    stop_reason: str | UnsetType = UNSET  # as in chat/completions


class Response(msgspec.Struct, kw_only=True):
    id: str
    object: str = "response"
    created_at: int
    status: str
    completed_at: int | None = None
    error: Failure | None = None
    incomplete_details: Incomplete | None = None
    model: str
    output: list[OutputItem]
    usage: Usage | None = None
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, str | None]
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    truncation: str
    user: str | None


ItemKind = Literal[
    "message", "reasoning", "function_call", "custom_tool_call",
    "local_shell_call", "shell_call", "apply_patch_call",
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
