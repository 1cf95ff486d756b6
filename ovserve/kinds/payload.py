"""Payloads: the first and last packets of an HTTP request's graph. Shared by `http/` and the calculators,
as are the headers that say what the server made of a request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from ovserve.api.openai.responses.objects import ResponseEvents
from ovserve.api.openai.responses.request import ResponseContext
from ovserve.errors import InvalidArgument
from ovserve.graph import Calculator
from ovserve.sandbox.bodies import UNREAD, Head

IGNORED_HEADER = "x-ovserve-ignored-params"
HEADER_LENGTH = 2000  # characters; proxies take 4 to 8 KB for all headers, and a body may have 20,000 fields
EVENT_STREAM = "text/event-stream"
CLAMPED_HEADER = "x-ovserve-clamped"
ADAPTED_HEADER = "x-ovserve-adapted"  # how messages were rearranged, see llm/chat_template.py
REPETITION_HEADER = "x-ovserve-repetition"
TRUNCATED_HEADER = "x-ovserve-truncated"  # how many inputs were cut, or which: "query", "prompt"


class UploadedFile(msgspec.Struct, frozen=True):
    """A file part of a form, stored by the front until the request has ended."""

    path: Path
    size: int  # bytes
    name: str  # the client's; never a path of this machine
    content_type: str = ""


@dataclass(frozen=True)
class HttpPayload:
    """One HTTP request. Header names are lower case. `head` is what the front has read of the body, once.

    Of a form, `body` is a JSON object of its text fields, with the names of its `files`.
    """

    endpoint: str  # the path without its version prefix, e.g. "chat/completions"
    body: bytes  # not decoded; in an open endpoint of any type
    headers: Mapping[str, str] = field(default_factory=dict)
    head: Head = UNREAD
    context: ResponseContext | None = None  # of a request that the Responses service has prepared
    method: str = "POST"
    path: str = ""  # with the version prefix; empty if it came over KServe
    query: str = ""  # as it was sent, without the question mark
    files: Mapping[str, UploadedFile] = field(default_factory=dict)  # of a form, by field


@dataclass(frozen=True)
class HttpResponse:
    """The first packet of an answer: how it begins. With `more`, packets of bytes follow it; `size` are the
    bytes of the whole body, if they are known.

    With `events` the answer is a Responses API response: packets of ResponseEvents follow, and the service in
    `services/responses/` writes the body. A third party's graph may also answer with bytes or str alone: 200,
    application/json.
    """

    body: bytes
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict)
    more: bool = False
    events: ResponseEvents | None = None
    status: int = 200
    size: int | None = None


AnswerPacket = HttpResponse | bytes | ResponseEvents


class Decoder(Protocol):
    """One endpoint of a graph: its name, and the typed request that it makes of a body."""

    @property
    def name(self) -> str:
        """The path without its version, e.g. "chat/completions"."""

    def decode(self, body: bytes) -> Any:
        """Check the body by itself, without a model at hand. Raises InvalidArgument naming the field."""


class JsonEndpoint(NamedTuple):
    """A Decoder that is one function."""

    name: str
    decode: Callable[[bytes], Any]


class HttpCalculator(Calculator):
    """A node that reads HTTP payloads and declares which endpoints it serves.

    A request on another path is a 404 that lists them. A graph in which no node declares endpoints takes
    every request: what its paths mean is its own business.
    """

    endpoints: ClassVar[Mapping[str, Decoder]] = {}
    open_endpoints: ClassVar[bool] = False  # they take any method and any body

    @classmethod
    def endpoints_of(cls, options: Any, servable: str) -> Iterable[str]:
        """Return the endpoints of a node with these parsed options; a name may end in `/*`."""
        return cls.endpoints


def report_headers(ignored: Iterable[str], adapted: Iterable[str]) -> dict[str, str]:
    """The headers about a request: what had no effect, and how its messages were rearranged."""
    listed = ",".join(adapted)
    return ignored_header(ignored) | ({ADAPTED_HEADER: listed} if listed else {})


def ignored_header(names: Iterable[str]) -> dict[str, str]:
    """The header that reports what had no effect; none when all had. Past HEADER_LENGTH it counts."""
    texts = [_header_text(name) for name in names]
    listed = ",".join(texts)
    if len(listed) > HEADER_LENGTH:
        fitting = listed[: HEADER_LENGTH + 1].rpartition(",")[0]
        listed = f"{fitting},... and {len(texts) - fitting.count(',') - 1} more"
    return {IGNORED_HEADER: listed} if listed else {}


def _header_text(name: str) -> str:
    """A body's field name may hold anything; a header may not."""
    return "".join(c if " " < c < "\x7f" and c != "," else "?" for c in name[:64])


def packed(texts: Any, param: str) -> bytes:
    """Return msgpack for the engine. Raises InvalidArgument for half a surrogate pair."""
    try:
        return msgspec.msgpack.encode(texts)
    except UnicodeEncodeError as error:
        raise InvalidArgument.at(param, f"is not valid Unicode: {error.reason}") from None
