"""`pyovms`, the module that handlers import: `Tensor`, and `HttpRequest` and `HttpResponse` over HTTP.

It stands in `sys.modules` of the process of a graph's handlers. A class written in Python can offer the
buffer protocol from Python 3.12 on only, so `Tensor` is a subclass of numpy's array, which has it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from ovserve.kinds.python.worker.http import HttpRequest, HttpResponse

__all__ = ["HttpRequest", "HttpResponse", "Tensor"]

CODES = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q", "INT8": "b", "INT16": "h",
    "INT32": "i", "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d",
}  # fmt: skip
NAMES = {code: name for name, code in CODES.items()}
# numpy's 64-bit integers have the code of C's `long`, whose size depends on the system.
LONG = np.dtype("l").itemsize * 8
NAMES |= {"l": f"INT{LONG}", "L": f"UINT{LONG}"}
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


def given(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Tensor:
    """Return the tensor of a request. One of a datatype without a format is plain bytes."""
    code = CODES.get(datatype)
    array: Any = np.frombuffer(data, np.dtype(code or "B"))
    return Tensor(name, array.reshape(shape) if code else array, shape, datatype)


def raw(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor, not copied."""
    flat: Any = tensor.view(np.ndarray).reshape(-1)
    return memoryview(flat.view(np.uint8) if flat.nbytes else b"")
