"""The body of POST responses: fields, ranges, which of them are rejected or ignored. And the decoded body,
with what the writer of its response reads of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec

from ovserve.api.openai.common import ReasoningOptions, encode, narrow_budget, narrow_effort, new_id
from ovserve.api.openai.operation import Count, Metadata, Operation, Override, Refused, TopCount, doc
from ovserve.api.openai.responses.encoder import Event
from ovserve.api.openai.responses.items import ADDITIONAL_TOOLS, Item, additional_tools, listed
from ovserve.api.openai.responses.objects import Response, StoredInput
from ovserve.api.openai.responses.tools import McpOffer, Tools, clean_tools
from ovserve.api.openai.sampling import (
    DEFAULTS,
    FIXED_DEFAULTS,
    MAX_TOKENS,
    UNSUPPORTED,
    SamplingFields,
    narrow_length,
    narrow_sampling,
)
from ovserve.api.openai.tools import narrow_tools
from ovserve.errors import InvalidArgument
from ovserve.llm.model import ModelContext
from ovserve.llm.request import Presentation


class ResponseContext(msgspec.Struct, frozen=True, kw_only=True):
    """A request that no service has prepared gets an id of its own, and no history."""

    id: str = msgspec.field(default_factory=lambda: new_id("resp_"))
    created: int = msgspec.field(default_factory=lambda: int(time.time()))
    store: bool = False
    history: tuple[msgspec.Raw, ...] = ()  # items of earlier responses, in the stored form
    # The tools of MCP servers that the request may use; None: the graph has no servers.
    mcp: tuple[McpOffer, ...] | None = None
    done: tuple[msgspec.Raw, ...] = ()  # items of the response itself, of its rounds before


LOGPROBS = "message.output_text.logprobs"


class TextOptions(msgspec.Struct):
    format: Annotated[
        dict[str, Any] | None,
        doc("as response_format of chat/completions, a json_schema without the nesting"),
    ] = None
    verbosity: Annotated[str | None, doc("ignored unless medium")] = None


class ResponseRequest(SamplingFields, kw_only=True):
    model: Annotated[str, doc("the name under which a graph is served")]
    input: Annotated[
        str | list[Item] | None, doc("a text, or items; not needed after instructions or a response")
    ] = None
    instructions: Annotated[str | None, doc("a system message before all others; not carried over")] = None
    previous_response_id: Annotated[str | None, doc("continues this stored response")] = None
    store: Annotated[bool | None, doc("false: the response is not kept")] = None
    background: Annotated[bool | None, doc("true: runs on without its client; needs the response store")] = (
        None
    )
    max_output_tokens: Annotated[Count | None, doc(MAX_TOKENS)] = None
    max_tool_calls: Annotated[Count | None, doc("of tools of MCP servers, which run in the server")] = None
    metadata: Annotated[Metadata | None, doc("kept and echoed")] = None
    user: Annotated[str | None, doc("kept and echoed; users share a full engine fairly")] = None
    safety_identifier: Annotated[str | None, doc("as user, and counts before it")] = None
    prompt_cache_key: str | None = None
    service_tier: Annotated[str | None, doc("auto or default; others are ignored")] = None
    truncation: Annotated[
        Literal["auto", "disabled"] | None,
        doc("auto: the oldest turns are left out if it does not fit, which x-ovserve-truncated reports"),
    ] = None
    include: Annotated[
        list[str] | None,
        doc("message.output_text.logprobs; others are ignored"),
    ] = None
    reasoning: Annotated[
        ReasoningOptions | None, doc("effort is given to templates that read it; ignored by others")
    ] = None
    text: Annotated[TextOptions | None, doc("format constrains the answer; verbosity is ignored")] = None
    tools: Annotated[
        list[dict[str, Any]] | None,
        doc(
            "function and custom tools, in a namespace too, and mcp with the server_label of a server of the "
            "graph; others are dropped and reported"
        ),
    ] = None
    tool_choice: Annotated[
        str | dict[str, Any] | None, doc("none, auto, required, one tool, or allowed_tools with a mode")
    ] = None
    parallel_tool_calls: Annotated[bool | None, doc("false: one call at most")] = None
    logprobs: Annotated[bool | None, doc("of each token of the text, streamed too")] = None
    top_logprobs: Annotated[TopCount | None, doc("above 1 with the paged engine only")] = None
    stream_options: Annotated[
        dict[str, Any] | None, doc("usage is always in the last event; include_obfuscation is ignored")
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, doc("variables for the chat template; not those the server sets")
    ] = None

    @property
    def formats(self) -> list[tuple[str, dict[str, Any] | None]]:
        return [
            ("response_format", self.response_format),
            ("text.format", self.text.format if self.text else None),
        ]

    @property
    def wants_logprobs(self) -> bool:
        return bool(self.logprobs or self.top_logprobs or LOGPROBS in (self.include or ()))


RESPONSES_UNSUPPORTED: dict[str, Refused] = UNSUPPORTED | {
    "conversation": Refused("conversations are chained with previous_response_id"),
    "prompt": Refused("the server keeps no prompt templates"),
    "modalities": Refused("the server answers with text only", (["text"],)),
    "audio": Refused("the server answers with text only"),
}


# Accepted, without effect whatever the value.
REPORTED_FIELDS = {"prompt_cache_key": "echoed; the engine's prefix cache needs no key"}


def check_response(body: ResponseRequest) -> None:
    """Check what types and single ranges cannot express. Raises InvalidArgument."""
    if body.background and body.store is False:
        raise InvalidArgument.at("background", "true needs store, got store: false; the answer would be lost")


def unused_fields(body: ResponseRequest) -> list[str]:
    """Return the fields that ask for something harmless that this server does not do; they are ignored."""
    unused = [name for name in REPORTED_FIELDS if getattr(body, name)]
    if body.service_tier not in (None, "auto", "default"):
        unused.append(f"service_tier={body.service_tier}")
    for i, name in enumerate(body.include or ()):
        if name != LOGPROBS:
            unused.append(f"include[{i}]={name}")
    if body.text and body.text.verbosity not in (None, "medium"):
        unused.append(f"text.verbosity={body.text.verbosity}")
    options = body.stream_options or {}
    # usage is always in the last event, and there never is obfuscation
    unused += [f"stream_options.{n}" for n in sorted(options) if n != "include_usage" and options[n]]
    return unused


_item = msgspec.json.Decoder(Item)
_TOOLS_ITEM = ADDITIONAL_TOOLS.encode()


@dataclass(frozen=True)
class DecodedResponses:
    body: ResponseRequest
    items: tuple[Item, ...]  # this request's own input
    tools: Tools
    ignored: tuple[str, ...]

    context: ResponseContext = field(default_factory=ResponseContext)
    kept: StoredInput | None = None  # of a request without its input

    @property
    def history(self) -> list[Item]:
        return [_item.decode(raw) for raw in self.context.history]

    @property
    def done(self) -> list[Item]:
        return [_item.decode(raw) for raw in self.context.done]

    def within(self, context: ResponseContext) -> DecodedResponses:
        """The same with what the service knows of it. Raises InvalidArgument."""
        body = self.body
        if context.mcp is None and body.previous_response_id is None:
            return replace(self, context=context)
        past = [_item.decode(raw) for raw in context.history if _TOOLS_ITEM in bytes(raw)]
        tools = clean_tools(
            body.tools,
            body.tool_choice,
            body.parallel_tool_calls,
            context.mcp,
            additional=[*additional_tools(past, past=True), *additional_tools(self.items)],
        )
        ignored = tuple(name for name in self.ignored if name not in self.tools.ignored)
        return replace(self, context=context, tools=tools, ignored=(*ignored, *tools.ignored))

    @cached_property
    def stored_input(self) -> StoredInput:
        """This request's own input as the store keeps it and as GET input_items lists it."""
        if self.kept is not None:
            return self.kept
        items = listed(self.items)
        return StoredInput(encode(items), [item["id"] for item in items])

    def without_input(self) -> DecodedResponses:
        """The same without the conversation, which may be large; with what is stored of it."""
        body = msgspec.structs.replace(self.body, input="")
        context = msgspec.structs.replace(self.context, history=(), mcp=None, done=())
        return replace(self, body=body, items=(), context=context, kept=self.stored_input)


class ResponsePresentation(Presentation, frozen=True, kw_only=True):
    """A response echoes most fields of its request."""

    decoded: DecodedResponses

    def without_input(self) -> ResponsePresentation:
        return msgspec.structs.replace(self, decoded=self.decoded.without_input())


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
        optional=("model",),
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
