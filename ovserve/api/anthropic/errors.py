"""Anthropic's error body, whole or as an event of a stream. `http/errors.py` has the statuses."""

from __future__ import annotations

from ovserve.api.anthropic.answer import Error, ErrorDetail
from ovserve.api.anthropic.writer import named_event
from ovserve.api.openai.common import encode
from ovserve.errors import OvserveError


def error_body(error: OvserveError, type_: str, request_id: str) -> bytes:
    return encode(_error(error, type_, request_id))


def error_event(error: OvserveError, type_: str, request_id: str) -> bytes:
    return named_event(_error(error, type_, request_id))


def _error(error: OvserveError, type_: str, request_id: str) -> Error:
    message = str(error)
    if error.code == "context_length_exceeded" and error.details:
        # Agents look for these words to know that they must compact the conversation.
        tokens, room = error.details["prompt_tokens"], error.details["max_length"] - 1
        message = f"prompt is too long: {tokens} tokens > {room} maximum. {message}"
    return Error(ErrorDetail(type_, message), request_id)
