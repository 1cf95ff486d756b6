"""The description of an endpoint: the one source of docs/api.md, GET capabilities and /openapi.json.

Each API style declares its endpoints with `Operation`, next to the structs that decode them. The fields of
the request struct are the supported parameters; `refused` and `reported` are the exceptions, each with its
reason. The decoder uses the same tables, so the published table cannot differ from what the server does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeGuard

import msgspec
from msgspec import Meta

from ovserve.llm.model import ModelContext
from ovserve.llm.output import Completion, Parsed
from ovserve.llm.request import GenerateRequest

if TYPE_CHECKING:
    from ovserve.api.openai.responses.objects import ResponseEvents

SUPPORTED, IGNORED, REJECTED = "supported", "ignored", "rejected"


def doc(text: str, **schema: Any) -> Meta:
    """The sentence on a field, in its annotation: `x: Annotated[int | None, about("...")] = None`; and what
    JSON schema can say of its values that the type does not (checked elsewhere)."""
    return Meta(description=text, extra_json_schema=schema or None)


# Ranges of values that bodies of several APIs have.
Natural = Annotated[int, Meta(ge=0, le=2**31 - 1)]
NaturalOrMinusOne = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
TopCount = Annotated[int, Meta(ge=0, le=20)]  # of likely tokens in logprobs
Share = Annotated[float, Meta(ge=0, le=1)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
MetadataKey = Annotated[str, Meta(max_length=64)]
MetadataValue = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[MetadataKey, MetadataValue], Meta(max_length=16)]


class Refused(msgspec.Struct, frozen=True):
    """A known parameter that is not supported; `neutral` values, like null, ask for nothing."""

    why: str
    neutral: tuple[Any, ...] = ()


class Override(msgspec.Struct, frozen=True):
    """The change that one model makes to a parameter; None leaves it as it is."""

    status: str | None = None
    why: str | None = None
    maximum: int | None = None
    default: Any = None


@dataclass(frozen=True, eq=False)
class Operation:
    """One method of one path. A path under /v3 is served under every version prefix; others as they are."""

    method: str
    path: str  # "/v3/chat/completions", "/v3/models/{model}"
    summary: str
    answer: Any = None  # type of the body of a 200, or a tuple of types; None: it is empty
    request: type[msgspec.Struct] | None = None
    error: Any = None  # type of the body of an error; None: the one of the path's family
    statuses: tuple[int, ...] = ()  # of errors, besides those of the table in http/errors.py
    also: Mapping[int, str] = field(default_factory=dict)  # other statuses of success, and their meaning
    event: Any = None  # type of a streamed answer's events, where `stream: true` gives one
    example: Mapping[str, Any] = field(default_factory=dict)  # a request
    refused: Mapping[str, Refused] = field(default_factory=dict)
    reported: Mapping[str, str] = field(default_factory=dict)  # accepted and checked, but without effect: why
    defaults: Mapping[str, Any] = field(default_factory=dict)  # what absence means, if the model says nothing
    of_models: bool = True  # an endpoint of every language model, which capabilities lists
    same_as: str = ""  # the name of the operation whose parameters these are: they are not listed twice
    optional: tuple[str, ...] = ()  # fields the struct requires and the front fills in
    specialize: Callable[[ModelContext], Mapping[str, Override]] = lambda model: {}
    needs_template: bool = False  # a model without a chat template cannot answer
    form: bool = False  # the body is multipart/form-data; `file` is a file
    declared: bool = False  # answered by graphs whose nodes declare it, not by text generation
    without_vision: bool = False  # a vision model cannot answer
    query: Mapping[str, str] = field(default_factory=dict)  # optional query parameters: what they do

    @property
    def name(self) -> str:
        """The name in tables: the path without its version, if it has one."""
        return self.path.removeprefix("/v3/")

    def unavailable_reason(self, model: ModelContext) -> str | None:
        """Return why this model cannot answer here, or None."""
        if self.needs_template and model.template is None:
            return "the model has no chat template"
        if self.without_vision and model.vision is not None:
            return "it is a vision model, which answers conversations only"
        return None


class Writer(Protocol):
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
