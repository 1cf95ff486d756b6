"""The interface of an endpoint of any API style; calculators know endpoints only through it.

A body becomes a decoded struct (`decode`), the struct the engine's request (`to_request`), and the parsed
output bytes or response events (`writer`). Errors are InvalidArgument or a subclass, and name the field.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeGuard

from ovserve.api.openai.responses.objects import ResponseEvents
from ovserve.llm.model import ModelContext
from ovserve.llm.output import Completion, Parsed
from ovserve.llm.request import GenerateRequest


class Writer(Protocol):
    """Writes the answer of one request as bytes."""

    def chunk(self, parsed: Parsed) -> bytes:
        """Return the server-sent events of one delta, the admission delta first; may be empty."""

    def whole(self, completion: Completion) -> bytes:
        """Return the unary body."""


class EventWriter(Protocol):
    """Writes the answer of one request as response events, which a service folds and encodes."""

    def events(self, parsed: Parsed) -> ResponseEvents | None:
        """Return the events of one delta, the admission delta first; None if there are none."""


def writes_events(writer: Writer | EventWriter) -> TypeGuard[EventWriter]:
    """Return whether the writer is an EventWriter; 25 us sooner than `isinstance` with a Protocol."""
    return hasattr(writer, "events")


class TextEndpoint(Protocol):
    """An endpoint that text generation answers; `kinds.payload.Decoder` is the part any graph has."""

    name: str

    def decode(self, body: bytes) -> Any:
        """Check the body by itself, without a model at hand."""

    def to_request(self, decoded: Any, model: ModelContext) -> GenerateRequest:
        """Check what depends on the model. Messages stay a conversation, which a node has rendered."""

    def writer(self, request: GenerateRequest) -> Writer | EventWriter: ...
