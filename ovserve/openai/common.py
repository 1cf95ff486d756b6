"""What every endpoint's answer has: usage, ids, server-sent event framing, error bodies."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.llm.output import Folded, Parsed
from ovserve.llm.request import GenerateRequest

encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokensDetails


class Meter:
    """Counts the tokens of an answer as it streams."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.reasoning_tokens = 0

    def add(self, parsed: Parsed) -> None:
        self.prompt_tokens += parsed.prompt_tokens
        self.completion_tokens += parsed.tokens
        self.reasoning_tokens += parsed.reasoning_tokens

    @property
    def usage(self) -> Usage:
        return usage_of(self)


def usage_of(counted: Meter | Folded) -> Usage:
    return Usage(
        counted.prompt_tokens,
        counted.completion_tokens,
        counted.prompt_tokens + counted.completion_tokens,
        CompletionTokensDetails(counted.reasoning_tokens),
    )


def chunk_usage(request: GenerateRequest, meter: Meter) -> Usage | UnsetType | None:
    """What `usage` says on a chunk before the last: nothing, null, or the count so far, as asked."""
    if not request.include_usage:
        return UNSET
    return meter.usage if request.continuous_usage else None


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def event(value: Any) -> bytes:
    """One server-sent event. JSON never holds a raw newline, so one data line is enough."""
    return b"data: " + encode(value) + b"\n\n"


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None
    details: dict[str, Any] | UnsetType = UNSET  # ours: numbers behind the message


class ErrorBody(msgspec.Struct):
    error: ErrorDetail
