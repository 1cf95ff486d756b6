"""Parts of the answers of all endpoints: usage, ids, server-sent events, error bodies."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.llm.output import Completion, FoldedChoice, Parsed
from ovserve.llm.request import Presentation

encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"
REPETITION = "repetition_detected"  # the stop reason has the name that vLLM gives it


class CompletionTokensDetails(msgspec.Struct):
    """The fields of predictions are present if tokens were drafted. Rejected tokens cost time, but are not
    part of completion_tokens."""

    reasoning_tokens: int
    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int  # found in the prefix cache, so not computed


class Usage(msgspec.Struct):
    """The details of the prompt are present if the engine has a prefix cache and its hits are known."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    completion_tokens_details: CompletionTokensDetails
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET


class UsageCounter:
    """Counts the tokens of an answer as it streams."""

    __slots__ = (
        "accepted", "cached_tokens", "completion_tokens", "drafted", "prompt_tokens", "reasoning_tokens",
    )  # fmt: skip

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.cached_tokens: int | None = None  # of prompt_tokens; None: the engine does not report it
        self.completion_tokens = 0
        self.reasoning_tokens = 0
        self.drafted = 0
        self.accepted = 0

    def add(self, parsed: Parsed) -> None:
        self.prompt_tokens += parsed.prompt_tokens + parsed.other_prompt_tokens
        if parsed.cached_tokens is not None:
            self.cached_tokens = (self.cached_tokens or 0) + parsed.cached_tokens
        self.completion_tokens += parsed.tokens
        self.reasoning_tokens += parsed.reasoning_tokens
        self.drafted += parsed.drafted
        self.accepted += parsed.accepted

    @property
    def usage(self) -> Usage:
        return usage_of(self)


def usage_of(counted: UsageCounter | Completion) -> Usage:
    cached = counted.cached_tokens
    return Usage(
        counted.prompt_tokens,
        counted.completion_tokens,
        counted.prompt_tokens + counted.completion_tokens,
        CompletionTokensDetails(counted.reasoning_tokens, *predictions(counted)),
        UNSET if cached is None else PromptTokensDetails(cached),
    )


def predictions(counted: UsageCounter | Completion) -> tuple[int | UnsetType, int | UnsetType]:
    """Return accepted and rejected tokens; the latter are unknown if a confidence threshold ends drafts."""
    accepted = counted.accepted if counted.drafted or counted.accepted else UNSET
    return accepted, counted.drafted - counted.accepted if counted.drafted else UNSET


def chunk_usage(presentation: Presentation, meter: UsageCounter) -> Usage | UnsetType | None:
    """Return `usage` of a chunk before the last: absent, null, or the count so far, as requested."""
    if not presentation.include_usage:
        return UNSET
    return meter.usage if presentation.continuous_usage else None


def stop_reason(end: Parsed | FoldedChoice) -> str | UnsetType:
    """Return why a choice ended early, if neither the model nor a limit of the request is the reason."""
    return REPETITION if end.repetitive else UNSET


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
