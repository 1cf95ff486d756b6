"""The body of POST messages and messages/count_tokens: its structs, and what types cannot say about it.

Only fields that have an effect are here; all others (metadata, cache_control, service_tier ...) are unknown,
which is never an error; those at the top are reported. The conversation becomes OpenAI's in `messages.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ovserve.api.anthropic.answer import Error, Event, Message, TokenCount
from ovserve.api.openai.common import BUDGET, Budget, Model, encode, narrow_budget, rfc3339
from ovserve.api.openai.operation import Natural, Operation, Override, Share, Temperature, doc
from ovserve.api.openai.sampling import MAX_STOP, narrow_length, narrow_sampling
from ovserve.api.openai.tools import narrow_tools
from ovserve.errors import InvalidArgument
from ovserve.llm.arrangement import Effort
from ovserve.llm.model import ModelContext


class ImageData(msgspec.Struct):
    type: Annotated[
        str,
        doc(
            "base64; url of an image; text or content of a document, whose other types are dropped and "
            "reported"
        ),
    ]
    media_type: Annotated[str | None, doc("no effect: the type is read from the data")] = None
    data: Annotated[str | None, doc("of type base64, or the plain text of type text")] = None
    url: Annotated[str | None, doc("of type url, where the operator allows it")] = None
    content: Annotated[Any, doc("of type content: a string or blocks of text and images")] = None


class Block(msgspec.Struct):
    """A content block of any type; which fields it must have is checked where its type is known."""

    type: Annotated[
        str,
        doc(
            "text, image, document, thinking, redacted_thinking (dropped), tool_use, tool_result; of others, "
            "such as search_result, the text; those without are dropped and reported"
        ),
    ]
    text: Annotated[str | None, doc("of a text block")] = None
    thinking: Annotated[str | None, doc("goes to templates that read earlier reasoning")] = None
    id: Annotated[str | None, doc("of a tool_use block")] = None
    name: Annotated[str | None, doc("of the tool, in a tool_use block")] = None
    input: Annotated[Any, doc("of a tool_use block: an object")] = None
    tool_use_id: Annotated[str | None, doc("of a tool_result block: which call it answers")] = None
    content: Annotated[Any, doc("of a tool_result block: a string or blocks of text and images")] = None
    source: Annotated[
        ImageData | str | None, doc("of an image block, or a document's PDF or text; of a search_result")
    ] = None
    title: Annotated[str | None, doc("of a document block: stands before its text")] = None
    context: Annotated[str | None, doc("of a document block: what it is, stands before it")] = None
    is_error: Annotated[bool | None, doc('of a tool_result block: puts "Error: " before it')] = None


class SystemText(msgspec.Struct):
    type: Annotated[Literal["text"], doc("the only type there is")]
    text: Annotated[str, doc("the text")]


class Turn(msgspec.Struct):
    role: Annotated[str, doc("user, assistant or system")]
    content: Annotated[
        str | list[Block], doc("text or blocks; a last turn of the assistant is continued where it ends")
    ]


class Tool(msgspec.Struct):
    name: Annotated[str | None, doc("as the model shall call it; required, but of an mcp_toolset")] = None
    type: Annotated[
        str | None, doc("absent or custom; dated bash, text_editor or memory; others: dropped and reported")
    ] = None
    description: Annotated[str | None, doc("what it is for")] = None
    input_schema: Annotated[
        dict[str, Any] | None, doc("JSON schema of its input; required of custom tools")
    ] = None
    strict: Annotated[bool | None, doc("true: a call's input follows the schema")] = None


class ToolChoice(msgspec.Struct):
    type: Annotated[Literal["auto", "any", "tool", "none"], doc("which tools may or must be called")]
    name: Annotated[str | None, doc("with type tool: this one")] = None
    disable_parallel_tool_use: Annotated[bool | None, doc("one call at most")] = None


class Thinking(msgspec.Struct):
    type: Annotated[str, doc("enabled, adaptive, disabled: for templates with enable_thinking or thinking")]
    budget_tokens: Annotated[Budget | None, doc(f"of type enabled: {BUDGET}")] = None


class JsonFormat(msgspec.Struct):
    type: Annotated[Literal["json_schema"], doc("the only format there is")]
    schema: Annotated[dict[str, Any], doc("the answer follows it; 400 if it does not compile")]


class OutputConfig(msgspec.Struct):
    format: Annotated[
        JsonFormat | None, doc("constrains the answer; what of the schema is not enforced is reported")
    ] = None
    effort: Annotated[Effort | None, doc("given to templates that read one; ignored by others")] = None


class Thread(msgspec.Struct):
    type: Annotated[Literal["create", "continue"], doc("create has no effect and is reported")]


class PromptFields(msgspec.Struct, kw_only=True):
    model: Annotated[str, doc("the name under which a graph is served")]
    messages: Annotated[Annotated[list[Turn], Meta(min_length=1)], doc("the conversation")]
    system: Annotated[
        str | list[SystemText] | None,
        doc("a line x-anthropic-billing-header in it is dropped and reported"),
    ] = None
    thinking: Annotated[Thinking | None, doc("ignored if the chat template does not read it")] = None
    tools: Annotated[list[Tool] | None, doc("what the model may call")] = None
    tool_choice: Annotated[ToolChoice | None, doc("any and tool need tools")] = None
    output_config: Annotated[
        OutputConfig | None, doc("format of the answer, and effort of its reasoning")
    ] = None
    output_format: Annotated[JsonFormat | None, doc("the older name of output_config.format")] = None
    thread: Annotated[
        Thread | None,
        doc("no conversation is held: continue is 404 thread_not_found, after which clients send all of it"),
    ] = None


class CountRequest(PromptFields, kw_only=True):
    """The fields that make the prompt."""


class MessagesRequest(PromptFields, kw_only=True):
    max_tokens: Annotated[
        Natural,
        doc("clamped to the room left in the context, which is reported; 0: the prompt is cached alone"),
    ]
    stop_sequences: Annotated[
        Annotated[list[str], Meta(max_length=MAX_STOP)] | None,
        doc("non-empty strings that end the answer, cut exactly at the character"),
    ] = None
    temperature: Annotated[Temperature | None, doc("0 is greedy; Anthropic's own range ends at 1")] = None
    top_p: Annotated[
        Share | None, doc("draws from the most likely tokens of this mass; 0: takes the likeliest")
    ] = None
    top_k: Annotated[Natural | None, doc("draws from so many tokens; 0: all")] = None
    stream: Annotated[bool | None, doc("named events as the answer comes")] = None


def check_stops(body: MessagesRequest) -> None:
    """Raises InvalidArgument naming the index."""
    for i, text in enumerate(body.stop_sequences or ()):
        if not text:
            raise InvalidArgument.at(f"stop_sequences[{i}]", 'expected a non-empty string, got ""')


SHARED = ("temperature", "top_p", "top_k")


def _narrow_count(model: ModelContext) -> dict[str, Override]:
    tools = narrow_tools(model)
    return {name: tools[name] for name in ("tools", "tool_choice") if name in tools}


def _narrow(model: ModelContext) -> dict[str, Override]:
    sampling = narrow_sampling(model)
    return (
        _narrow_count(model)
        | {name: sampling[name] for name in SHARED}
        | narrow_budget(model, "thinking.budget_tokens")
        | {"max_tokens": Override(maximum=narrow_length(model, "max_tokens")["max_tokens"].maximum)}
    )


_EXAMPLE = {"model": "smollm2", "messages": [{"role": "user", "content": "Say hello"}]}

OPERATIONS = (
    Operation(
        "POST",
        "/v3/messages",
        "Anthropic's Messages API.",
        answer=Message,
        error=Error,
        event=Event,
        request=MessagesRequest,
        example=_EXAMPLE | {"max_tokens": 8},
        defaults={"temperature": 1.0, "top_p": 1.0, "top_k": 40, "stream": False},
        specialize=_narrow,
        needs_template=True,
    ),
    Operation(
        "POST",
        "/v3/messages/count_tokens",
        "How many tokens such a request has.",
        answer=TokenCount,
        error=Error,
        request=CountRequest,
        example=_EXAMPLE,
        reported={"thinking.budget_tokens": "no effect: it bounds the answer"},
        specialize=_narrow_count,
        needs_template=True,
    ),
)


VERSION = "anthropic-version"  # the header that every client of Anthropic's sends
DEFAULT_PAGE, MAX_PAGE = 20, 1000


class ModelInfo(msgspec.Struct, kw_only=True):
    type: str = "model"
    id: str
    display_name: str
    created_at: str  # RFC 3339: when it was loaded
    lifecycle: str = "active"
    max_input_tokens: int | None
    max_tokens: int | None
    state: str  # ours, as in OpenAI's shape


class ModelPage(msgspec.Struct, kw_only=True):
    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


def model_info(model: Model) -> bytes:
    return encode(_info(model))


def model_page(models: list[Model], query: Mapping[str, str]) -> bytes:
    """One page of them. Raises InvalidArgument naming the query parameter."""
    limit = _limit(query.get("limit"))
    after, before = query.get("after_id"), query.get("before_id")
    if after is not None and before is not None:
        raise InvalidArgument.at("before_id", "only allowed without after_id")
    rest = models
    if after is not None:
        rest = models[_index(models, "after_id", after) + 1 :]
    elif before is not None:
        rest = models[: _index(models, "before_id", before)]
    page = rest[-limit:] if before is not None else rest[:limit]
    ends = (page[0].id, page[-1].id) if page else (None, None)
    data = [_info(model) for model in page]
    return encode(ModelPage(data=data, has_more=len(rest) > len(page), first_id=ends[0], last_id=ends[1]))


def _info(model: Model) -> ModelInfo:
    return ModelInfo(
        id=model.id,
        display_name=model.id,
        created_at=rfc3339(model.created),
        max_input_tokens=model.max_model_len,
        max_tokens=model.max_model_len,
        state=model.state,
    )


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_PAGE
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MAX_PAGE):
        raise InvalidArgument.expected("limit", f"1 to {MAX_PAGE}", text)
    return int(text)


def _index(models: list[Model], name: str, id_: str) -> int:
    for i, model in enumerate(models):
        if model.id == id_:
            return i
    raise InvalidArgument.at(name, f"{id_!r} is not one of the models")
