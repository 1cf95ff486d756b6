"""Turns what a handler answers into values for the server: tensors by stream, or an HTTP response."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ovserve.engine.backends.calls import Result
from ovserve.engine.backends.python import pyovms
from ovserve.engine.backends.python.http import BINARY, EVENTS, HttpResponse, chunk, encoded, type_of
from ovserve.engine.protocol.python_nodes import Made, Outputs, PythonNode, ResponseValue, TensorValue

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
        if isinstance(item, pyovms.Tensor):
            return True
        if not self._node.response:
            raise WrongAnswer(f"expected pyovms.Tensor, got {type(item).__name__}")
        return False

    def _tensor(self, tensor: pyovms.Tensor) -> Values:
        known = [name for name in self._node.outputs if name != self._node.response]
        if tensor.name not in known:
            raise WrongAnswer(f"{tensor.name[:64]!r} is not an output; the node has {', '.join(known)}")
        if any(size < 0 for size in tensor.shape):
            raise WrongAnswer(f"output {tensor.name!r} has shape {list(tensor.shape)}")
        return TensorValue(tensor.name, tensor.datatype, tensor.shape), pyovms.raw(tensor)

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


def checked(make: Callable[[], Result]) -> Result:
    """Return what `make` does; a value that cannot be encoded is a wrong answer."""
    try:
        return make()
    except (TypeError, ValueError, RecursionError, BufferError) as error:
        raise WrongAnswer(f"{type(error).__name__}: {error}") from error
