"""The forms of an answer: the message, its blocks, and the events of a stream. Made by `writer.py`."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class Usage(msgspec.Struct):
    """`input_tokens` excludes what was read from the cache, so the prompt is the sum of both. The cache
    fields are absent where the engine does not report hits."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int | UnsetType = UNSET


class Text(msgspec.Struct, tag="text"):
    text: str = ""


class Thinking(msgspec.Struct, tag="thinking"):
    thinking: str = ""
    signature: str = ""  # proves to Anthropic that the thoughts are its own; ours need no proof


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


class InputJsonDelta(msgspec.Struct, tag="input_json_delta", gc=False):
    partial_json: str


BlockDelta = TextDelta | ThinkingDelta | InputJsonDelta


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


class Error(msgspec.Struct, tag="error"):
    """An error: a body of its own, or the last event of a stream that failed."""

    error: ErrorDetail
    request_id: str


Event = MessageStart | BlockStart | BlockDeltaEvent | BlockStop | MessageDelta | MessageStop | Error


class TokenCount(msgspec.Struct):
    input_tokens: int
