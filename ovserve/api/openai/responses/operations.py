"""Operations of the Responses paths, for docs/api.md, capabilities and /openapi.json."""

from __future__ import annotations

from typing import Any

import msgspec

from ovserve.api.openai.common import narrow_budget, narrow_effort
from ovserve.api.openai.operation import Operation, Override
from ovserve.api.openai.responses.encoder import Event
from ovserve.api.openai.responses.objects import Response
from ovserve.api.openai.responses.request import REPORTED_FIELDS, RESPONSES_UNSUPPORTED, ResponseRequest
from ovserve.api.openai.sampling import DEFAULTS, FIXED_DEFAULTS, narrow_length, narrow_sampling
from ovserve.api.openai.tools import narrow_tools
from ovserve.llm.model import ModelContext


class Deleted(msgspec.Struct):
    id: str
    object: str = "response"
    deleted: bool = True


class InputTokens(msgspec.Struct):
    input_tokens: int
    object: str = "response.input_tokens"


class ItemPage(msgspec.Struct, kw_only=True):
    object: str = "list"
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool


def _narrow(model: ModelContext) -> dict[str, Override]:
    narrowed = narrow_sampling(model) | narrow_length(model, "max_output_tokens") | narrow_tools(model)
    narrowed |= narrow_effort(model, "reasoning.effort") | narrow_budget(model, "reasoning.max_tokens")
    return narrowed


OWN_DEFAULTS = {
    "store": True,
    "background": False,
    "truncation": "disabled",
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "logprobs": False,
    "top_logprobs": 0,
}

_EXAMPLE: dict[str, Any] = {"model": "smollm2", "input": "Say hello"}

OPERATIONS = (
    Operation(
        "POST",
        "/v3/responses",
        "Answer with a list of items; continue stored responses; run in the background.",
        answer=Response,
        event=Event,
        request=ResponseRequest,
        example=_EXAMPLE | {"max_output_tokens": 8},
        refused=RESPONSES_UNSUPPORTED,
        reported=REPORTED_FIELDS,
        defaults=DEFAULTS | FIXED_DEFAULTS | OWN_DEFAULTS,
        specialize=_narrow,
        needs_template=True,
    ),
    Operation(
        "POST",
        "/v3/responses/input_tokens",
        "How many tokens the prompt of such a response has, with its history, tools and images.",
        answer=InputTokens,
        request=ResponseRequest,
        example=_EXAMPLE,
        refused=RESPONSES_UNSUPPORTED,
        reported=REPORTED_FIELDS,
        optional=("model", "input"),
        needs_template=True,
        same_as="responses",
    ),
    Operation(
        "GET",
        "/v3/responses/{id}",
        "A stored or running response.",
        answer=Response,
        query={
            "stream": "true: its events, a running response's to the end",
            "starting_after": "with stream: only events after this sequence_number",
        },
    ),
    Operation("DELETE", "/v3/responses/{id}", "Forget a response; a running one is ended.", answer=Deleted),
    Operation("POST", "/v3/responses/{id}/cancel", "End a background response.", answer=Response),
    Operation(
        "GET",
        "/v3/responses/{id}/input_items",
        "What a response was asked, item by item.",
        answer=ItemPage,
        query={
            "limit": "items of a page, 1 to 100, 20 by default",
            "order": "desc, the newest first, or asc",
            "after": "the id of the item that ends the page before",
        },
    ),
)
