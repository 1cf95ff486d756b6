"""What an endpoint of any dialect must offer; the calculators know endpoints only through this.

A body becomes a decoded struct (`decode`), that becomes the engine's request (`to_request`), and the parsed
output becomes bytes again (`writer`). Errors are InvalidArgument and its kin, naming the field.
"""

from __future__ import annotations

from typing import Any, Protocol

from ovserve.llm.model import ModelContext
from ovserve.llm.output import Completion, Parsed
from ovserve.llm.request import GenerateRequest


class Writer(Protocol):
    """Writes the answer of one request."""

    def chunk(self, parsed: Parsed) -> bytes:
        """The server-sent events of one delta, the admission delta first; may be empty."""

    def whole(self, completion: Completion) -> bytes:
        """The unary body."""


class TextEndpoint(Protocol):
    """An endpoint that text generation answers; `calculators.payload.Decoder` is the part any graph has."""

    name: str

    def decode(self, body: bytes) -> Any:
        """Check the body by itself, without a model at hand."""

    def to_request(self, decoded: Any, model: ModelContext) -> GenerateRequest:
        """Check what depends on the model. Messages stay a conversation, which a node has rendered."""

    def writer(self, request: GenerateRequest) -> Writer: ...
