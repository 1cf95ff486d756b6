"""The answers of Anthropic's API: a message whole or as named events, and the body of an error.

Blocks follow one another and never overlap: thinking, text and tool_use, in the order of the parsed output.

A call's events are sent when it is certain: Anthropic's clients read half a JSON as the input so far, and
would carry out a call that broke off (the rules are in llm/output.py).
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.api.openai.common import UncertainCall, UsageCounter, arguments_of, encode, named_event
from ovserve.errors import OvserveError, ThreadNotFound
from ovserve.llm import output as parts
from ovserve.llm.output import Completion, FoldedChoice, Parsed, ToolCall
from ovserve.llm.request import GenerateRequest


class Usage(msgspec.Struct):
    """The prompt is the sum of all but `output_tokens`. The cache's are 0 where the engine reports no hits:
    strict clients require them, and others add them up. What is written to the cache is counted as input."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


# A proof to Anthropic that thoughts are its own. Ours need none, but clients leave thoughts without one out
# of the next request, or send them as text; and in a stream they know only the one that comes as a delta.
SIGNATURE = "b3ZzZXJ2ZQ=="


class Text(msgspec.Struct, tag="text"):
    text: str = ""


class Thinking(msgspec.Struct, tag="thinking"):
    thinking: str = ""
    signature: str = ""


class ToolUse(msgspec.Struct, tag="tool_use", kw_only=True):
    id: str
    name: str
    input: dict[str, Any]


Block = Text | Thinking | ToolUse


class Message(msgspec.Struct, tag="message", kw_only=True):
    id: str
    role: str = "assistant"
    model: str
    content: list[Block]
    stop_reason: str | None = None
    stop_sequence: str | None = None
    usage: Usage


class TextDelta(msgspec.Struct, tag="text_delta", gc=False):
    text: str


class ThinkingDelta(msgspec.Struct, tag="thinking_delta", gc=False):
    thinking: str


class SignatureDelta(msgspec.Struct, tag="signature_delta", gc=False):
    signature: str


class InputJsonDelta(msgspec.Struct, tag="input_json_delta", gc=False):
    partial_json: str


BlockDelta = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class MessageStart(msgspec.Struct, tag="message_start"):
    message: Message


class BlockStart(msgspec.Struct, tag="content_block_start"):
    index: int
    content_block: Block


class BlockDeltaEvent(msgspec.Struct, tag="content_block_delta", gc=False):
    index: int
    delta: BlockDelta


class BlockStop(msgspec.Struct, tag="content_block_stop"):
    index: int


class StopDelta(msgspec.Struct):
    stop_reason: str
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag="message_delta"):
    delta: StopDelta
    usage: Usage


class MessageStop(msgspec.Struct, tag="message_stop"):
    pass


class ErrorDetail(msgspec.Struct):
    type: str
    message: str
    details: dict[str, str] | UnsetType = UNSET


class Error(msgspec.Struct, tag="error"):
    """An error: a body of its own, or the last event of a stream that failed."""

    error: ErrorDetail
    request_id: str


Event = MessageStart | BlockStart | BlockDeltaEvent | BlockStop | MessageDelta | MessageStop | Error


class TokenCount(msgspec.Struct):
    input_tokens: int


def tagged_event(event: Event) -> bytes:
    """One server-sent event under its own name; Anthropic's clients skip those without."""
    return named_event(str(event.__struct_config__.tag), event)


class MessagesWriter:
    def __init__(self, request: GenerateRequest) -> None:
        self._request, self._shown = request, request.presentation
        self._meter = UsageCounter()
        self._max_tokens = 0
        self._begun = False
        self._index = -1  # of the block that was begun last
        self._open: str | None = None  # "text", "thinking", or the id of a call
        self._call = UncertainCall()

    # ---- as events

    def chunk(self, parsed: Parsed) -> bytes:
        self._meter.add(parsed)
        out = b""
        self._max_tokens = parsed.max_tokens or self._max_tokens
        if not self._begun:
            self._begun = True
            out += tagged_event(MessageStart(self._message([], None, None, self._meter)))
        for part in parsed.parts:
            out += self._send(self._call.take(part))
            match part:
                case parts.Content(text):
                    out += self._begin("text", Text()) + self._delta(TextDelta(text))
                case parts.Reasoning(text):
                    out += self._begin("thinking", Thinking()) + self._delta(ThinkingDelta(text))
        if parsed.last:
            out += self._send(self._call.end())
            reason, stop = self._reason(parsed)
            out += self._end()
            out += tagged_event(MessageDelta(StopDelta(reason, stop), _usage(self._meter)))
            out += tagged_event(MessageStop())
        return out

    def _begin(self, kind: str, block: Block) -> bytes:
        """The events that make `kind` the open block, if it is not."""
        if self._open == kind:
            return b""
        out = self._end()
        self._open = kind
        self._index += 1
        return out + tagged_event(BlockStart(self._index, block))

    def _end(self) -> bytes:
        if self._open is None:
            return b""
        proof = self._delta(SignatureDelta(SIGNATURE)) if self._open == "thinking" else b""
        self._open = None
        return proof + tagged_event(BlockStop(self._index))

    def _delta(self, delta: BlockDelta) -> bytes:
        return tagged_event(BlockDeltaEvent(self._index, delta))

    def _send(self, call: ToolCall | None) -> bytes:
        if call is None:
            return b""
        out = self._begin(call.id, ToolUse(id=call.id, name=call.name, input={}))
        return out + (self._delta(InputJsonDelta(call.arguments)) if call.arguments else b"")

    # ---- as one body

    def whole(self, completion: Completion) -> bytes:
        choice = completion.choices[0]
        self._max_tokens = completion.max_tokens
        blocks: list[Block] = [Thinking(choice.reasoning, SIGNATURE)] if choice.reasoning else []
        for part in choice.parts:
            if isinstance(part, ToolCall):
                blocks.append(ToolUse(id=part.id, name=part.name, input=arguments_of(part)))
            else:
                blocks.append(Text(part))
        return encode(self._message(blocks, *self._reason(choice), completion))

    # ---- both

    def _message(
        self, content: list[Block], reason: str | None, stop: str | None, counted: UsageCounter | Completion
    ) -> Message:
        return Message(
            id=self._request.id,
            model=self._shown.model,
            content=content,
            stop_reason=reason,
            stop_sequence=stop,
            usage=_usage(counted),
        )

    def _reason(self, end: Parsed | FoldedChoice) -> tuple[str, str | None]:
        """Return why the answer ended, and the stop sequence if that ended it and the client asked for it."""
        if end.finish_reason == "length":
            requested = self._shown.requested_max_tokens
            cut_short = requested is not None and 0 < self._max_tokens < requested
            return "model_context_window_exceeded" if cut_short else "max_tokens", None
        if end.finish_reason == "tool_calls":
            return "tool_use", None
        if end.finish_reason == "content_filter":
            return "refusal", None
        return (
            ("stop_sequence", end.stop_string)
            if end.stop_string in self._shown.stop_sequences
            else ("end_turn", None)
        )


def _usage(counted: UsageCounter | Completion) -> Usage:
    cached = counted.cached_tokens or 0
    return Usage(counted.prompt_tokens - cached, counted.completion_tokens, cache_read_input_tokens=cached)


def error_of(error: OvserveError, type_: str, request_id: str) -> Error:
    message = str(error)
    if error.code == "context_length_exceeded" and error.details:
        # Agents look for these words to know that they must compact the conversation.
        tokens, room = error.details["prompt_tokens"], error.details["max_length"] - 1
        message = f"prompt is too long: {tokens} tokens > {room} maximum. {message}"
    details = {"error_code": error.code} if isinstance(error, ThreadNotFound) else UNSET
    return Error(ErrorDetail(type_, message, details), request_id)
