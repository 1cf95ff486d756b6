"""What every endpoint's answer has: usage, ids, server-sent event framing, error bodies."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from ovserve.llm.output import Folded

encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


def usage_of(prompt_tokens: int, completion_tokens: int) -> Usage:
    return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens)


def folded_usage(folded: Folded) -> Usage:
    return usage_of(folded.prompt_tokens, folded.completion_tokens)


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


class ErrorBody(msgspec.Struct):
    error: ErrorDetail
