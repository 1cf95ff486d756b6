"""The one table from error kinds to HTTP statuses, and the error bodies of the two families of paths.

OpenAI's paths answer `{"error": {"message", "type", "param", "code"}}`; `/v2` and `/v1/config` answer
`{"error": "<text>"}`, because KServe and OVMS clients concatenate it.
"""

from __future__ import annotations

import math

from ovserve.errors import Internal, NodeError, OvserveError, Unavailable
from ovserve.openai.common import ErrorBody, ErrorDetail, encode

STATUS = {
    "invalid_argument": 400,
    "not_found": 404,
    "method_not_allowed": 405,
    "payload_too_large": 413,
    "unsupported_media_type": 415,
    "resource_exhausted": 503,
    "unavailable": 503,
    "failed_precondition": 500,
    "internal": 500,
}

INTERNAL_MESSAGE = "internal error; the server's log tells more under this request id"


def status_of(error: OvserveError) -> int:
    return STATUS[error.kind]


def public(error: OvserveError) -> OvserveError:
    """What may be shown: a fault of ours keeps its details in the log."""
    if isinstance(error, NodeError) and error.kind == "internal":
        return Internal(INTERNAL_MESSAGE)
    return error


def headers_of(error: OvserveError) -> dict[str, str]:
    if isinstance(error, Unavailable) and error.retry_after is not None:
        return {
            "Retry-After": str(math.ceil(error.retry_after)),
            "retry-after-ms": str(math.ceil(error.retry_after * 1000)),
        }
    return {}


def openai_body(error: OvserveError) -> bytes:
    status = status_of(error)
    type_ = "invalid_request_error" if status < 500 else "server_error"
    return encode(ErrorBody(ErrorDetail(str(error), type_, error.param, error.code)))


def plain_body(error: OvserveError) -> bytes:
    return encode({"error": str(error)})
