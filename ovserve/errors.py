"""Every error that the server raises on purpose, in one tree of *kinds*.

    OvserveError
    |-- InvalidArgument            the request is wrong; `param` names the field
    |   |-- UnsupportedParameter   a known field that this engine does not support
    |   |-- ContextLengthExceeded  the prompt does not fit the model
    |   `-- ContentFiltered        a node of the graph does not let this content through
    |-- Unauthenticated            no key, or an unknown key
    |-- PermissionDenied           a valid key that does not allow this
    |-- NotFound                   no such model, no such path
    |-- Conflict                   what it names is in another state or in use
    |-- MethodNotAllowed           the path exists, the method does not
    |-- PayloadTooLarge            the body is over the limit
    |-- TooSlow                    the body did not arrive in time
    |-- UnsupportedMediaType       the body is not JSON
    |-- RateLimited                this client sends too many requests; `retry_after` in seconds
    |-- ResourceExhausted          the engine has no room for this request
    |-- Unavailable                not now: loading, restarting, stopping; `retry_after` in seconds
    |   |-- Overloaded             too many requests are waiting
    |   `-- EngineDead             the engine process ended during this request
    |-- DeadlineExceeded           the answer took longer than it may
    |-- Cancelled                  its owner or an administrator cancelled this request
    |-- Unimplemented              a method of a public protocol that this server does not implement
    |-- Internal                   a fault of the server
    |-- EndsEngine                 this request ends the engine, so it is not sent again
    |-- LoadError                  a graph or model that cannot be served; carries file, line, node, field
    `-- NodeError                  a calculator raised; carries node, phase and the cause's kind

A class carries a kind, never an HTTP or gRPC number: each transport holds one table from kind to status.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

from ovserve.installation import extra as extra

MOST_SHOWN = 80  # characters of a client's value that an error repeats
INTERNAL_MESSAGE = "internal error; the server's log has details under this request id"


class OvserveError(Exception):
    """Base of all errors. `str(error)` is the sentence shown to the client or operator."""

    kind: str = "internal"
    code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        # numbers behind the message, for API styles that show them
        self.details: dict[str, Any] | None = None

    @classmethod
    def at(cls, param: str, what: str) -> Self:
        """Return the error of a field, whose name stands before what is wrong with it."""
        return cls(f"{param}: {what}", param=param)

    @classmethod
    def expected(cls, param: str, what: str, value: object) -> Self:
        """Return the error of a field whose value is not `what`."""
        return cls.at(param, f"expected {what}, got {shortened(repr(value))}")


class InvalidArgument(OvserveError):
    kind = "invalid_argument"


class UnsupportedParameter(InvalidArgument):
    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidArgument):
    code = "context_length_exceeded"
    counted = True  # False: the tokens were deliberately not counted


class ContentFiltered(InvalidArgument):
    """A node of the graph does not let this content through."""

    code = "content_filter"


class Unauthenticated(OvserveError):
    """`wrong`: a key was given, but it is not valid."""

    kind = "unauthenticated"
    code = "invalid_api_key"

    def __init__(self, message: str, *, wrong: bool = False) -> None:
        super().__init__(message)
        self.wrong = wrong


class PermissionDenied(OvserveError):
    kind = "permission_denied"
    code = "permission_denied"


class NotFound(OvserveError):
    kind = "not_found"


class ModelNotFound(NotFound):
    code = "model_not_found"


class ThreadNotFound(NotFound):
    """No conversation is held here; Anthropic's clients then send all of theirs."""

    code = "thread_not_found"


class Conflict(OvserveError):
    kind = "conflict"


class MethodNotAllowed(OvserveError):
    kind = "method_not_allowed"

    def __init__(self, message: str, *, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


class PayloadTooLarge(OvserveError):
    kind = "payload_too_large"


class TooSlow(OvserveError):
    kind = "too_slow"


class UnsupportedMediaType(OvserveError):
    kind = "unsupported_media_type"


class RateLimited(OvserveError):
    kind = "rate_limited"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, param=param)
        self.retry_after = retry_after


class ResourceExhausted(OvserveError):
    kind = "resource_exhausted"


class Unavailable(OvserveError):
    kind = "unavailable"

    def __init__(self, message: str, *, param: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, param=param)
        self.retry_after = retry_after


class Overloaded(Unavailable):
    """Rejected before the engine saw it; `cause` is one of telemetry.metrics.REFUSAL_CAUSES."""

    code = "server_overloaded"

    def __init__(self, message: str, *, cause: str, retry_after: float) -> None:
        super().__init__(message, retry_after=retry_after)
        self.cause = cause


class DeadlineExceeded(OvserveError):
    kind = "deadline_exceeded"
    code = "request_timeout"


class Cancelled(OvserveError):
    """The client must not send it again by itself, so its status is not one that clients retry."""

    kind = "cancelled"
    code = "request_cancelled"


class EngineDead(Unavailable):
    """`repeated`: this is the second engine that ended with this request, so the request may be the cause."""

    code = "engine_restarting"

    def __init__(self, message: str, *, retry_after: float | None = None, repeated: bool = False) -> None:
        super().__init__(message, retry_after=retry_after)
        self.repeated = repeated


class Unimplemented(OvserveError):
    kind = "unimplemented"


class Internal(OvserveError):
    kind = "internal"


class EndsEngine(OvserveError):
    kind = "internal"
    code = "request_ends_engine"


class LoadError(OvserveError):
    """A graph or model that cannot be served. Lines and columns count from 1; 0 means unknown.

    `transient`: the same files may be loaded a little later, as when one of them is being written.
    """

    kind = "failed_precondition"

    def __init__(
        self,
        message: str,
        *,
        file: str = "",
        line: int = 0,
        node: str = "",
        field: str = "",
        transient: bool = False,
        column: int = 0,
    ) -> None:
        where = f"{file}:{line}: " if file and line else f"{file}: " if file else ""
        at_node = f"node {node!r}: " if node else ""
        at_field = f"{field}: " if field else ""
        super().__init__(f"{where}{at_node}{at_field}{message}")
        self.reason = message
        self.file, self.line, self.node, self.field = file, line, node, field
        self.transient, self.column = transient, column
        self.others: tuple[LoadError, ...] = ()  # further mistakes in the same file

    @classmethod
    def of(cls, faults: Sequence[LoadError]) -> LoadError:
        """Return the first of the mistakes in a file, with the others."""
        first, *rest = (one for fault in faults for one in (fault, *fault.others))
        first.others = tuple(rest)
        return first


def as_load_error(error: Exception, file: str) -> OvserveError:
    """Return what a load fails with that raised `error`, such as the end of its engine under a question."""
    if isinstance(error, EngineDead):
        return LoadError("the engine process ended during the load", file=file)
    return (
        error if isinstance(error, OvserveError) else LoadError(f"{type(error).__name__}: {error}", file=file)
    )


class NodeError(OvserveError):
    """A calculator raised. `__cause__` keeps the original; an OvserveError's kind shines through."""

    def __init__(self, node: str, phase: str, cause: BaseException) -> None:
        # A KeyError is only 'name'.
        reason = str(cause) if isinstance(cause, OvserveError) else described(cause)
        super().__init__(f"node {node!r} failed in {phase}(): {reason}")
        self.node, self.phase = node, phase
        self.kind = cause.kind if isinstance(cause, OvserveError) else "internal"

    @property
    def public_error(self) -> OvserveError:
        """Return the error for the client: a deliberate error of the calculator without the node's name."""
        return self.__cause__ if isinstance(self.__cause__, OvserveError) else self


def described(error: BaseException) -> str:
    """Return the kind of an error and its text, if it has one."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def for_log(error: OvserveError) -> BaseException:
    """Return the exception whose traceback is logged: what a calculator raised, if it was one."""
    return error.__cause__ or error if isinstance(error, NodeError) else error


def public(error: OvserveError) -> OvserveError:
    """Return what a transport may show: the details of a fault of the server stay in the log."""
    if isinstance(error, NodeError) and error.kind == "internal":
        return Internal(INTERNAL_MESSAGE)
    return error


RETRY_SOON_SECONDS = 1.0  # seconds until an engine that is full may have room

PLACES_IN_SOURCE = ("Exception from ", "Check '", "Invoked with")
FROM_KIND: dict[str, type[OvserveError]] = {
    "invalid_argument": InvalidArgument,
    "context_length_exceeded": ContextLengthExceeded,
    "resource_exhausted": ResourceExhausted,
    "unavailable": Unavailable,
    "deadline_exceeded": DeadlineExceeded,
}


def from_kind(kind: str, message: str, param: str | None = None) -> OvserveError:
    """Return the error for a kind that crossed the process border as text; unknown kinds are Internal."""
    if kind == Unavailable.kind:
        return Unavailable(message, retry_after=RETRY_SOON_SECONDS)
    return FROM_KIND.get(kind, Internal)(message, param=param)


def sentences_of(error: BaseException) -> list[str]:
    """Return the lines of an error of OpenVINO without those about places in its source; never none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    sentences = [line for line in lines if not line.startswith(PLACES_IN_SOURCE)]
    return sentences or lines[:1] or [type(error).__name__]


def shortened(text: str) -> str:
    """Return the beginning of a client's text, for an error that shows it."""
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "..."
