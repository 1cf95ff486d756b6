"""HTTP in handlers: the request that `execute` gets, and how what it answers becomes a response."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

JSON, TEXT, BINARY = "application/json", "text/plain; charset=utf-8", "application/octet-stream"
EVENTS = "text/event-stream"
# Those of the connection are the server's business.
RESERVED = frozenset(
    ("connection", "content-length", "content-type", "server", "transfer-encoding", "upgrade")
)
TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
LINES = re.compile(r"\r\n|\n|\r")  # as readers of events split them
FIELD = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


class HttpRequest:
    """A request. `headers` have lower-case names; `query` holds the last value of each name."""

    def __init__(
        self, name: str, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> None:
        self.name = name  # of the stream, as that of a tensor
        self.method = method
        self.path = path
        self.query_string = query
        self.query = dict(parse_qsl(query, keep_blank_values=True))
        self.headers = dict(headers)
        self.body = body

    @property
    def text(self) -> str:
        """The body as UTF-8. Raises UnicodeDecodeError."""
        return self.body.decode()

    def json(self) -> Any:
        """Return the body as JSON. Raises ValueError."""
        return json.loads(self.body)

    def __repr__(self) -> str:
        return f"HttpRequest({self.method} {self.path}, {len(self.body)} bytes)"


class HttpResponse:
    """A response: bytes, text, or any value for JSON. With a generator it is the first item, the head."""

    def __init__(
        self,
        body: Any = b"",
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
    ) -> None:
        """Raises TypeError or ValueError for a status or a header that HTTP does not have."""
        if isinstance(status, bool) or not isinstance(status, int) or not 200 <= status <= 599:
            raise ValueError(f"status: expected 200 to 599, got {status!r}")
        self.body = body
        self.status = status
        self.headers = {_name(name): _field(name, value) for name, value in (headers or {}).items()}
        self.content_type = None if content_type is None else _field("content_type", content_type)

    def __repr__(self) -> str:
        return f"HttpResponse({self.status}, {self.content_type})"


def _name(name: str) -> str:
    if not isinstance(name, str) or not TOKEN.fullmatch(name):
        raise ValueError(f"headers: {name!r} is not the name of a header")
    if name.lower() in RESERVED:
        hint = "; give content_type" if name.lower() == "content-type" else ""
        raise ValueError(f"headers: {name!r} is set by the server{hint}")
    return name


def _field(name: str, value: str) -> str:
    if not isinstance(value, str) or not FIELD.fullmatch(value):
        raise ValueError(f"{name}: {value!r} is not the value of a header")
    return value


def type_of(body: Any) -> str:
    """Return the content type of a value that names none."""
    if isinstance(body, bytes | bytearray | memoryview):
        return BINARY
    return TEXT if isinstance(body, str) else JSON


def encoded(body: Any) -> bytes:
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    return body.encode() if isinstance(body, str) else _json(body)


def chunk(item: Any, content_type: str) -> bytes:
    """Return an item of a generator: as an event, as a line of JSON, or as it is. Bytes are always as they
    are."""
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)
    if content_type.partition(";")[0] != EVENTS:
        return item.encode() if isinstance(item, str) else _json(item) + b"\n"
    text = item if isinstance(item, str) else _json(item).decode()
    return "".join(f"data: {line}\n" for line in LINES.split(text)).encode() + b"\n"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    """Return numpy's values as Python's."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a value of JSON")
