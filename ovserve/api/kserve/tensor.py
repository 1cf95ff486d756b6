"""Tensor: a datatype, a shape, and the elements as the protocol's raw bytes. The packet of tensor graphs.

Raw bytes are row-major and little-endian; an element of BYTES is 4 bytes of length and then itself. Elements
as Python values are made and read with `of` and `values`, arrays with `of_array` and `array`.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from ovserve.errors import InvalidArgument, shortened

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Datatype(NamedTuple):
    size: int  # bytes of an element; 0: each has its own length
    code: str  # of the struct module; empty: the elements have no Python form
    numpy: str


DATATYPES = {
    "BOOL": Datatype(1, "?", "bool"),
    "UINT8": Datatype(1, "B", "uint8"),
    "UINT16": Datatype(2, "H", "uint16"),
    "UINT32": Datatype(4, "I", "uint32"),
    "UINT64": Datatype(8, "Q", "uint64"),
    "INT8": Datatype(1, "b", "int8"),
    "INT16": Datatype(2, "h", "int16"),
    "INT32": Datatype(4, "i", "int32"),
    "INT64": Datatype(8, "q", "int64"),
    "FP16": Datatype(2, "e", "float16"),
    "FP32": Datatype(4, "f", "float32"),
    "FP64": Datatype(8, "d", "float64"),
    "BF16": Datatype(2, "", ""),
    "BYTES": Datatype(0, "", "object"),
}
BYTES = "BYTES"
MOST_DIMENSIONS = 64  # numpy has no more
MOST_IN_ONE = 2**63 - 1
MAX_NONZERO_PRODUCT = 2**60 - 1  # elements of 8 bytes, where libraries multiply the dimensions that are not 0
FLOATS = ("FP16", "FP32", "FP64")
_PYTHON: dict[str, tuple[set[type], str]] = {
    "BOOL": ({bool}, "true or false"),
    **dict.fromkeys(FLOATS, ({int, float}, "a number")),
}
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Tensor:
    """Raises InvalidArgument when datatype, shape and the number of bytes do not go together.

    One with a `fault` is of a kind that only Python nodes take.
    """

    datatype: str
    shape: tuple[int, ...]
    data: bytes | memoryview

    fault: ClassVar[InvalidArgument | None] = None

    def __post_init__(self) -> None:
        kind = _kind(self.datatype)
        count = count_of(self.shape)
        if kind.size:
            if len(self.data) != count * kind.size:
                raise InvalidArgument(
                    f"data: {self.datatype} of shape {list(self.shape)} takes {count * kind.size} bytes, "
                    f"got {len(self.data)}"
                )
        elif (num_elements := sum(1 for _ in self.elements)) != count:
            raise InvalidArgument(
                f"data: BYTES of shape {list(self.shape)} takes {count} elements, got {num_elements}"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        # A view of a body or of shared memory cannot be sent to another process, and needs no second check.
        return tensor_of, (self.datatype, self.shape, bytes(self.data))

    @classmethod
    def unchecked(cls, datatype: str, shape: Sequence[int], data: bytes | memoryview) -> Tensor:
        """Make a tensor of values that are known to go together, such as a model's output."""
        tensor = object.__new__(cls)
        for name, value in (("datatype", datatype), ("shape", tuple(shape)), ("data", data)):
            object.__setattr__(tensor, name, value)
        return tensor

    @classmethod
    def from_handler(cls, datatype: str, shape: Sequence[int], data: bytes | memoryview) -> Tensor:
        """Make a tensor of what a Python handler gave: of any datatype, and of any size.

        Elements of BYTES are not looked at.
        """
        if datatype == BYTES:
            return cls.unchecked(datatype, shape, data)
        try:
            return Tensor(datatype, tuple(shape), data)
        except InvalidArgument as fault:
            return _loose(datatype, shape, data, fault)

    @classmethod
    def of(cls, datatype: str, shape: Sequence[int], values: Sequence[Any]) -> Tensor:
        """Make a tensor of its elements in row-major order: numbers, booleans, or bytes and text for
        BYTES."""
        kind = _kind(datatype)
        count = count_of(shape)
        if len(values) != count:
            raise InvalidArgument(f"data: shape {list(shape)} takes {count} elements, got {len(values)}")
        if datatype == BYTES:
            return cls(datatype, tuple(shape), b"".join(_with_length(v, i) for i, v in enumerate(values)))
        if not kind.code:
            raise InvalidArgument(f"datatype: {datatype} has a binary form only")
        values = _checked(datatype, values)
        try:
            data = struct.pack(f"<{count}{kind.code}", *values)
        except (struct.error, OverflowError) as exc:
            raise InvalidArgument(
                f"data: {display(_first_wrong(kind.code, values))} does not fit {datatype}"
            ) from exc
        return cls(datatype, tuple(shape), data)

    @classmethod
    def of_bytes(cls, *elements: bytes) -> Tensor:
        """BYTES of one dimension."""
        return cls.of(BYTES, (len(elements),), elements)

    @classmethod
    def of_array(cls, array: NDArray[Any]) -> Tensor:
        """Make a tensor of a numpy array; objects are bytes or text. Raises TypeError for a type KServe
        lacks."""
        if array.dtype == object:
            return cls.of(BYTES, array.shape, array.ravel().tolist())
        for name, kind in DATATYPES.items():
            if kind.numpy == array.dtype.name:
                little = array.astype(array.dtype.newbyteorder("<"), copy=False)
                return cls(name, tuple(array.shape), little.tobytes())
        raise TypeError(f"no KServe datatype for numpy's {array.dtype.name}")

    @property
    def elements(self) -> Iterator[bytes]:
        """Those of BYTES."""
        data, at = self.data, 0
        while at < len(data):
            if at + 4 > len(data) or at + 4 + (size := _LENGTH.unpack_from(data, at)[0]) > len(data):
                raise InvalidArgument(
                    f"data: the element of BYTES at byte {at} goes past the end, {len(data)}"
                )
            yield bytes(data[at + 4 : at + 4 + size])
            at += 4 + size

    @property
    def values(self) -> list[Any]:
        """The elements in row-major order; bytes for BYTES. Raises InvalidArgument for BF16."""
        if self.fault is not None:
            raise self.fault
        if self.datatype == BYTES:
            return list(self.elements)
        code = DATATYPES[self.datatype].code
        if not code:
            raise InvalidArgument(f"datatype: {self.datatype} has a binary form only")
        return list(struct.unpack(f"<{count_of(self.shape)}{code}", self.data))

    def array(self) -> NDArray[Any]:
        """Return a read-only numpy array; of objects (bytes) for BYTES. Raises TypeError for BF16."""
        import numpy  # only calculators that compute need it

        if self.fault is not None:
            raise self.fault
        if self.datatype == BYTES:
            out = numpy.empty(count_of(self.shape), dtype=object)
            out[:] = list(self.elements)
            return out.reshape(self.shape)
        kind = DATATYPES[self.datatype]
        if not kind.numpy:
            raise TypeError(f"numpy has no {self.datatype}")
        flat: NDArray[Any] = numpy.frombuffer(self.data, dtype=numpy.dtype(kind.numpy).newbyteorder("<"))
        native = flat if sys.byteorder == "little" else flat.astype(kind.numpy)
        return native.reshape(self.shape)


class LooseTensor(Tensor):
    """A tensor whose datatype is any word, or whose bytes are not what its datatype and shape say."""

    fault: InvalidArgument  # type: ignore[misc]  # of each by itself

    def __reduce__(self) -> tuple[Any, ...]:
        return _loose, (self.datatype, self.shape, bytes(self.data), self.fault)


def _loose(datatype: str, shape: Sequence[int], data: bytes | memoryview, fault: InvalidArgument) -> Tensor:
    tensor = LooseTensor.unchecked(datatype, shape, data)
    object.__setattr__(tensor, "fault", fault)
    return tensor


def received(datatype: str, shape: tuple[int, ...], data: bytes | memoryview) -> Tensor:
    """Return a tensor of a request's raw bytes; BYTES of any form and other words have a `fault`.

    Raises InvalidArgument for numbers whose size is wrong, and for a shape that is not one.
    """
    count_of(shape)
    try:
        return Tensor(datatype, shape, data)
    except InvalidArgument as fault:
        if datatype in DATATYPES and DATATYPES[datatype].size:
            raise
        return _loose(datatype, shape, data, fault)


def display(value: Any) -> str:
    """Return a client's value for a message, which does not repeat megabytes of it."""
    return shortened(repr(value))


def tensor_of(datatype: str, shape: Sequence[int], data: bytes) -> Tensor:
    """Make a tensor of a pickled one."""
    return Tensor.unchecked(datatype, shape, data)


def _kind(datatype: str) -> Datatype:
    kind = DATATYPES.get(datatype)
    if kind is None:
        raise InvalidArgument(f"datatype: expected one of {', '.join(DATATYPES)}, got {display(datatype)}")
    return kind


def count_of(shape: Sequence[int]) -> int:
    """Return the number of elements. The product of many sizes takes time by the square of their number."""
    if len(shape) > MOST_DIMENSIONS:
        raise InvalidArgument(f"shape: expected at most {MOST_DIMENSIONS} dimensions, got {len(shape)}")
    for size in shape:
        if size < 0:
            raise InvalidArgument(f"shape: expected 0 or more in each dimension, got {display(list(shape))}")
        if size > MOST_IN_ONE:
            raise InvalidArgument(f"shape: expected at most {MOST_IN_ONE} in each dimension")
    if 0 in shape and math.prod(filter(None, shape)) > MAX_NONZERO_PRODUCT:
        limit = f"a product of at most {MAX_NONZERO_PRODUCT} without the dimensions of 0"
        raise InvalidArgument.expected("shape", limit, list(shape))
    return math.prod(shape)


def _with_length(value: Any, index: int) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    if not isinstance(raw, bytes):
        raise InvalidArgument(f"data[{index}]: expected text, got {display(value)}")
    return _LENGTH.pack(len(raw)) + raw


def _checked(datatype: str, values: Sequence[Any]) -> Sequence[Any]:
    """The values as struct packs them; 5.0 is an integer. struct takes any truth for BOOL, and True for 1."""
    allowed, word = _PYTHON.get(datatype, ({int}, "a whole number"))
    wrong = set(map(type, values)) - allowed
    if wrong == {float} and allowed == {int}:
        values = [int(v) if isinstance(v, float) and v.is_integer() else v for v in values]
        wrong = set(map(type, values)) - allowed
    if wrong:
        at = next(i for i, v in enumerate(values) if type(v) in wrong)
        raise InvalidArgument(f"data[{at}]: expected {word}, got {display(values[at])}")
    return values


def _first_wrong(code: str, values: Sequence[Any]) -> Any:
    for value in values:
        try:
            struct.pack(f"<{code}", value)
        except (struct.error, OverflowError):
            return value
    return values
