"""`pyovms`, the module that handlers import: `Tensor`, and `HttpRequest` and `HttpResponse` over HTTP.

It stands in `sys.modules` of the process of a graph's handlers. A class written in Python can offer the
buffer protocol from Python 3.12 on only, so `Tensor` is a subclass of numpy's array, which has it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from ovserve.engine.protocol.call_backend import Result
from ovserve.kinds.python.spec import Made, Outputs, PythonNode, ResponseValue, TensorValue

__all__ = ["HttpRequest", "HttpResponse", "Tensor"]

CODES = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h",
    "INT32": "i", "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
NAMES = {code: name for name, code in CODES.items()}
# numpy's 64-bit integers have the code of C's `long`, whose size depends on the system.
BITS_PER_LONG = np.dtype("l").itemsize * 8
NAMES |= {"l": f"INT{BITS_PER_LONG}", "L": f"UINT{BITS_PER_LONG}"}
ORDERS = "@=<>!"  # of bytes, before a code
FOREIGN = "<" if sys.byteorder == "big" else ">!"


_Array: Any = np.ndarray  # whose attributes of these names have other types


class Tensor(_Array):  # type: ignore[misc]
    """Named data of any type; read-only.

    `shape` and `datatype` are as its maker gives them, else those of the buffer, which has its own shape and
    format for readers such as `numpy.array(tensor)`. `size` is in bytes.
    """

    _name: str
    _ref: Any
    _shape: tuple[int, ...]
    _datatype: str
    nbytes: int

    def __new__(
        cls, name: str, buffer: Any, shape: Sequence[int] | None = None, datatype: str | None = None
    ) -> Tensor:
        """Raises TypeError for an object without a buffer, or with one that holds references."""
        if not isinstance(name, str):
            raise TypeError(f"name: expected str, got {name!r}")
        if datatype is not None and not isinstance(datatype, str):
            raise TypeError(f"datatype: expected str, got {datatype!r}")
        view = memoryview(buffer)
        array: Any = np.asarray(view)
        if array.dtype.hasobject:
            raise TypeError(f"buffer: an array of {array.dtype} holds references, not data")
        code = view.format
        if code[:1] in FOREIGN and len(code) > 1:
            array = array.astype(array.dtype.newbyteorder("="))
        # A copy where the memory is not in order: what is sent are the bytes from the first one on.
        view_of_array: Any = np.ascontiguousarray(array).reshape(view.shape).view(cls)
        view_of_array.flags.writeable = False
        view_of_array._name, view_of_array._ref = name, buffer
        view_of_array._shape = view.shape if shape is None else tuple(map(_size, shape))
        code = code.lstrip(ORDERS)
        view_of_array._datatype = NAMES.get(code, code) if datatype is None else datatype
        tensor: Tensor = view_of_array
        return tensor

    @property
    def name(self) -> str:
        return self._name

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    @property
    def datatype(self) -> str:
        return self._datatype

    @property
    def size(self) -> int:
        return self.nbytes

    @property
    def data(self) -> memoryview:
        return memoryview(self)

    @property
    def ptr(self) -> int:
        address: int = self.__array_interface__["data"][0]
        return address

    @property
    def ref_obj(self) -> Any:
        return self._ref

    # An array's own would make `if tensor` and `tensor in tensors` depend on the elements.
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return self is other

    def __ne__(self, other: object) -> bool:
        return self is not other

    def __repr__(self) -> str:
        return f"Tensor({self._name!r}, shape={self._shape}, datatype={self._datatype!r})"

    __str__ = __repr__


def _size(value: Any) -> int:
    try:
        return int(value.__index__())
    except AttributeError:
        raise TypeError(f"shape: expected whole numbers, got {value!r}") from None


def tensor_of(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Tensor:
    """Return the tensor of a request. One of a datatype without a format is plain bytes."""
    code = CODES.get(datatype)
    array: Any = np.frombuffer(data, np.dtype(code or "B"))
    return Tensor(name, array.reshape(shape) if code else array, shape, datatype)


def raw(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor, not copied."""
    flat: Any = tensor.view(np.ndarray).reshape(-1)
    return memoryview(flat.view(np.uint8) if flat.nbytes else b"")


# HTTP in handlers: the request that `execute` gets, and how what it answers becomes a response.


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


# What a handler answers becomes values for the server: tensors by stream, or an HTTP response.

NO_BODY = (204, 205, 304)

Values = tuple[Made, bytes | memoryview]


class WrongAnswer(Exception):
    """The handler's answer is not one that its node can send."""


class Answers:
    """Those of one call. Raises WrongAnswer."""

    def __init__(self, node: PythonNode) -> None:
        self._node = node
        self._content_type = ""  # of the response, once it has begun

    def result(self, answer: Any, *, generated: bool) -> Result:
        """Return the item for a list, or for the one answer of an HTTP node."""
        items: Sequence[Any] = answer if isinstance(answer, list) else [answer]
        if not isinstance(answer, list) and not self._node.response:
            what = "the generator yielded" if generated else "execute returned"
            raise WrongAnswer(f"{what} {type(answer).__name__}, expected a list")
        values: list[Made] = []
        blobs: list[bytes | memoryview] = []
        for item in items:
            value, blob = self._tensor(item) if self._is_tensor(item) else self._response(item, generated)
            if any(value.name == other.name for other in values):
                more = "; a list holds outputs, so put a JSON array into HttpResponse"
                raise WrongAnswer(
                    f"output {value.name!r} is given twice{more if self._node.response else ''}"
                )
            values.append(value)
            blobs.append(blob)
        return Result(Outputs(tuple(values), generated), tuple(blobs), last=not generated)

    def _is_tensor(self, item: Any) -> bool:
        if isinstance(item, Tensor):
            return True
        if not self._node.response:
            raise WrongAnswer(f"expected pyovms.Tensor, got {type(item).__name__}")
        return False

    def _tensor(self, tensor: Tensor) -> Values:
        names = [name for name in self._node.outputs if name != self._node.response]
        if tensor.name not in names:
            raise WrongAnswer(f"{tensor.name[:64]!r} is not an output; the node has {', '.join(names)}")
        if any(size < 0 for size in tensor.shape):
            raise WrongAnswer(f"output {tensor.name!r} has shape {list(tensor.shape)}")
        return TensorValue(tensor.name, tensor.datatype, tensor.shape), raw(tensor)

    def _response(self, item: Any, generated: bool) -> Values:
        name = self._node.response
        if item is None:
            raise WrongAnswer("expected an HTTP response, text, bytes or a value for JSON, got None")
        if self._content_type:
            if isinstance(item, HttpResponse):
                raise WrongAnswer("HttpResponse may be the first item of a generator only")
            return ResponseValue(name, begins=False), chunk(item, self._content_type)
        head = item if isinstance(item, HttpResponse) else HttpResponse(item)
        # Checked once more, because its attributes can be set.
        head = HttpResponse(head.body, head.status, head.headers, head.content_type)
        if head.status in NO_BODY and (generated or encoded(head.body)):
            raise WrongAnswer(f"a response of status {head.status} has no body")
        if not generated:
            content_type = head.content_type or type_of(head.body)
            return ResponseValue(name, True, head.status, content_type, head.headers), encoded(head.body)
        binary = type_of(head.body) == BINARY and head.body not in (b"", bytearray())
        self._content_type = content_type = head.content_type or (BINARY if binary else EVENTS)
        first = b"" if head.body == b"" else chunk(head.body, content_type)
        return ResponseValue(name, True, head.status, content_type, head.headers), first
