"""The response object and the items of its output; built by `fold.py`, read back from the store by
`replay.py`.

Every field that the strict types of the official client require is here, the optional ones as OpenAI sends
them. Output items are mutable on purpose: one item grows while it streams, and the list is the answer.
"""

from __future__ import annotations

from typing import Any

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


class FunctionCall(msgspec.Struct, tag="function_call"):
    id: str
    status: str
    call_id: str
    name: str
    arguments: str = ""
    namespace: str | UnsetType = UNSET


class CustomToolCall(msgspec.Struct, tag="custom_tool_call"):
    id: str
    status: str
    call_id: str
    name: str
    input: str = ""
    namespace: str | UnsetType = UNSET


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


OutputItem = Message | Reasoning | FunctionCall | CustomToolCall | McpListTools | McpCall | McpApprovalRequest
STATELESS = (McpListTools, McpApprovalRequest)  # items without a status


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
