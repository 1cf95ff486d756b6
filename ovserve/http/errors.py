"""Converts error kinds to HTTP: one table of statuses, and one body per API style, chosen by the request.

    openai      `{"error": {"message", "type", "param", "code"}}`; the default
    encoders    the same with "message", which Cohere's clients read, and "detail", which Voyage's do
    plain       `{"error": "<text>"}`; /v2 and /v1/config, whose clients (KServe, OVMS) concatenate it
    ollama      the same; /api, where a stream is lines and not events
    azure       `{"error", "message", "status", "code", "detail"}` and x-ms-error-code; see api/azure.py
    anthropic   `{"type": "error", "error": {"type", "message"}}`; /messages and /messages/count_tokens,
                and /models with the header anthropic-version

A class of error carries a kind; only this module maps it to a number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from ovserve.api import azure
from ovserve.api.anthropic.answer import error_of, tagged_event
from ovserve.api.anthropic.body import VERSION
from ovserve.api.azure import is_azure, may_be_azure
from ovserve.api.openai.common import ErrorBody, ErrorDetail, encode
from ovserve.errors import MethodNotAllowed, OvserveError, RateLimited, Unauthenticated, Unavailable
from ovserve.log import request_id

MAX_PATHS = 256  # whose style is remembered
OLLAMA_PREFIX = "/api/"
PLAIN_PREFIXES = ("/v2", "/v1/config")
_MESSAGES = re.compile(r"(/openai)?(/v3)?(/v1)?/messages(/.*)?")  # batches too, which are a 404
_TENSORFLOW = re.compile(r"/v1/models/.+(:(predict|classify|regress)|/metadata|/(versions|labels)/[^/]+)")
_MODELS = re.compile(r"(/openai)?(/v3)?(/v1)?/models(/.+)?")
_ENCODERS = re.compile(r"(/openai)?(/v3)?(/v1)?(/v2)?/(embed|embeddings|rerank)")


class Row(NamedTuple):
    status: int
    type: str


_INVALID, _FAULT, _API = "invalid_request_error", "server_error", "api_error"
# The status of a kind, and its name in the bodies of OpenAI, Anthropic and Azure.
_KINDS = {
    "invalid_argument": (400, _INVALID, _INVALID, "bad_request"),  # Azure's is 422 for values: azure.refine
    "unauthenticated": (401, _INVALID, "authentication_error", "unauthorized"),
    "permission_denied": (403, _INVALID, "permission_error", "forbidden"),
    "not_found": (404, _INVALID, "not_found_error", "not_found"),
    "conflict": (409, _INVALID, _INVALID, "conflict"),
    "method_not_allowed": (405, _INVALID, _INVALID, "method_not_allowed"),
    "payload_too_large": (413, _INVALID, "request_too_large", "payload_too_large"),
    "too_slow": (408, _INVALID, _INVALID, "request_timeout"),
    "unsupported_media_type": (415, _INVALID, _INVALID, "unsupported_media_type"),
    "rate_limited": (429, "rate_limit_error", "rate_limit_error", "too_many_requests"),
    "resource_exhausted": (503, _FAULT, "overloaded_error", "service_unavailable"),
    "unavailable": (503, _FAULT, "overloaded_error", "service_unavailable"),
    "deadline_exceeded": (504, _FAULT, "timeout_error", "gateway_timeout"),
    "cancelled": (499, _INVALID, _INVALID, "request_cancelled"),  # as Google maps gRPC's CANCELLED
    "failed_precondition": (500, _FAULT, _API, "internal_server_error"),
    "unimplemented": (501, _FAULT, _API, "not_implemented"),
    "internal": (500, _FAULT, _API, "internal_server_error"),
}
OPENAI = {kind: Row(status, name) for kind, (status, name, _, _) in _KINDS.items()}
# Anthropic has a status of its own where OpenAI has 503.
ANTHROPIC = {kind: Row(529 if row[0] == 503 else row[0], row[2]) for kind, row in _KINDS.items()}
# OVMS's status for an invalid configuration.
PLAIN = OPENAI | {"failed_precondition": Row(412, _INVALID)}
AZURE = {kind: Row(status, name) for kind, (status, _, _, name) in _KINDS.items()}


HOPELESS = (
    "conflict",
    "internal",
    "failed_precondition",
    "unimplemented",
    "resource_exhausted",
    "deadline_exceeded",
    "cancelled",
    "unauthenticated",
)


class ErrorResponse(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class ApiStyle(msgspec.Struct, frozen=True):
    name: str
    rows: Mapping[str, Row]
    body: Callable[[OvserveError, Row], ErrorResponse]
    event: Callable[[OvserveError, Row], bytes]  # in a started stream
    id_headers: tuple[str, ...] = ("x-request-id",)
    pings: bool = True  # its streams have comments

    def answer(self, error: OvserveError) -> ErrorResponse:
        status, headers, body = self.body(error, self.rows[error.kind])
        return ErrorResponse(status, headers | _advice(error), body)

    def in_stream(self, error: OvserveError) -> bytes:
        return self.event(error, self.rows[error.kind])


# The style of a request; `middleware.identify` sets it, and everything that depends on the style reads it.
API_STYLE = web.RequestKey("API_STYLE", ApiStyle)


def style_of(path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> ApiStyle:
    """Return the API style of a request. `headers` must be case-insensitive, as aiohttp's are."""
    if (style := _style_of_path(path)) is not None:
        return style
    if is_azure(path, query, headers):
        return AZURE_STYLE
    if _ENCODERS.fullmatch(path):
        return ENCODERS_STYLE
    return ANTHROPIC_STYLE if VERSION in headers and _MODELS.fullmatch(path) else OPENAI_STYLE


@lru_cache(MAX_PATHS)
def _style_of_path(path: str) -> ApiStyle | None:
    """Return the style where the path alone decides, else None."""
    if _ENCODERS.fullmatch(path):
        return None if may_be_azure(path) else ENCODERS_STYLE
    if path.startswith(PLAIN_PREFIXES) or _TENSORFLOW.fullmatch(path):
        return PLAIN_STYLE
    if path.startswith(OLLAMA_PREFIX):
        return OLLAMA_STYLE
    if may_be_azure(path):
        return None
    if _MESSAGES.fullmatch(path):
        return ANTHROPIC_STYLE
    return None if _MODELS.fullmatch(path) else OPENAI_STYLE


def openai_body(error: OvserveError, text: str | UnsetType = UNSET) -> bytes:
    """Return the body; its own fields message and detail have `text`."""
    details = error.details or UNSET
    type_ = OPENAI[error.kind].type
    return encode(ErrorBody(ErrorDetail(str(error), type_, error.param, error.code, details), text, text))


def _advice(error: OvserveError) -> dict[str, str]:
    """Return the headers that advise the client.

    They are `Retry-After`, or `x-should-retry: false`, the allowed methods, or the authentication scheme.
    """
    # OpenAI's and Anthropic's clients retry after any 5xx, and Claude Code for minutes after 401.
    advice = {"x-should-retry": "false"} if error.kind in HOPELESS else {}
    if isinstance(error, Unauthenticated):
        wrong = ', error="invalid_token"' if error.wrong else ""
        return advice | {"WWW-Authenticate": f'Bearer realm="ovserve"{wrong}'}
    if isinstance(error, MethodNotAllowed) and error.allowed:
        return {"Allow": ", ".join(error.allowed)}
    if isinstance(error, Unavailable | RateLimited) and error.retry_after is not None:
        return {
            "Retry-After": str(math.ceil(error.retry_after)),
            "retry-after-ms": str(math.ceil(error.retry_after * 1000)),
        }
    return advice


def _openai(error: OvserveError, row: Row) -> ErrorResponse:
    return ErrorResponse(row.status, {}, openai_body(error))


def _openai_event(error: OvserveError, row: Row) -> bytes:
    return b"data: " + openai_body(error) + b"\n\n"


def _encoders(error: OvserveError, row: Row) -> ErrorResponse:
    return ErrorResponse(row.status, {}, openai_body(error, str(error)))


def _plain(error: OvserveError, row: Row) -> ErrorResponse:
    return ErrorResponse(row.status, {}, encode({"error": str(error)}))


def _line(error: OvserveError, row: Row) -> bytes:
    return encode({"error": str(error)}) + b"\n"


def _azure(error: OvserveError, row: Row) -> ErrorResponse:
    status, code = azure.refine(error, row.status, row.type)
    return ErrorResponse(status, {"x-ms-error-code": code}, azure.error_body(error, status, code))


def _anthropic(error: OvserveError, row: Row) -> ErrorResponse:
    return ErrorResponse(row.status, {}, encode(error_of(error, row.type, request_id.get())))


def _anthropic_event(error: OvserveError, row: Row) -> bytes:
    return tagged_event(error_of(error, row.type, request_id.get()))


OPENAI_STYLE = ApiStyle("openai", OPENAI, _openai, _openai_event)
ENCODERS_STYLE = ApiStyle("encoders", OPENAI, _encoders, _openai_event)
PLAIN_STYLE = ApiStyle("plain", PLAIN, _plain, _openai_event)
OLLAMA_STYLE = ApiStyle("ollama", OPENAI, _plain, _line, pings=False)
AZURE_STYLE = ApiStyle("azure", AZURE, _azure, _openai_event)
ANTHROPIC_STYLE = ApiStyle(
    "anthropic", ANTHROPIC, _anthropic, _anthropic_event, ("x-request-id", "request-id")
)
API_STYLES = (OPENAI_STYLE, ENCODERS_STYLE, PLAIN_STYLE, AZURE_STYLE, ANTHROPIC_STYLE, OLLAMA_STYLE)
