"""The one table from error kinds to gRPC statuses.

The status has the sentence that REST sends, with the field in front if the sentence does not name it.
Trailing metadata has the rest: the request's id, the field, the code, and when to retry.
"""

from __future__ import annotations

from grpc import StatusCode

from ovserve.errors import OvserveError, RateLimited, Unavailable

STATUSES = {
    "invalid_argument": StatusCode.INVALID_ARGUMENT,
    "unauthenticated": StatusCode.UNAUTHENTICATED,
    "permission_denied": StatusCode.PERMISSION_DENIED,
    "not_found": StatusCode.NOT_FOUND,
    "conflict": StatusCode.FAILED_PRECONDITION,
    "method_not_allowed": StatusCode.UNIMPLEMENTED,
    "payload_too_large": StatusCode.RESOURCE_EXHAUSTED,
    "too_slow": StatusCode.DEADLINE_EXCEEDED,
    "unsupported_media_type": StatusCode.INVALID_ARGUMENT,
    "rate_limited": StatusCode.RESOURCE_EXHAUSTED,
    "resource_exhausted": StatusCode.RESOURCE_EXHAUSTED,
    "unavailable": StatusCode.UNAVAILABLE,
    "deadline_exceeded": StatusCode.DEADLINE_EXCEEDED,
    "cancelled": StatusCode.CANCELLED,
    "failed_precondition": StatusCode.FAILED_PRECONDITION,
    "unimplemented": StatusCode.UNIMPLEMENTED,
    "internal": StatusCode.INTERNAL,
}
REQUEST_ID = "x-request-id"
MAX_MESSAGE = 4000  # characters; a client's limit for all metadata is 8 KB


def status_of(error: OvserveError) -> StatusCode:
    return STATUSES[error.kind]


def sentence(error: OvserveError) -> str:
    text = str(error)
    if error.param and error.param not in text:
        text = f"{error.param}: {text}"
    return text[:MAX_MESSAGE]


def details(error: OvserveError) -> list[tuple[str, str]]:
    """Return the trailing metadata; values must be ASCII."""
    fields = [("x-ovserve-param", error.param), ("x-ovserve-code", error.code)]
    if isinstance(error, Unavailable | RateLimited) and error.retry_after is not None:
        fields.append(("retry-after-ms", str(round(error.retry_after * 1000))))
    return [(name, value) for name, value in fields if value and value.isascii() and value.isprintable()]
