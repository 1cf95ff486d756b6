"""The model `dummy`, which adds 1 to ten numbers, in the formats of other frameworks, written by hand.

The packages that write these formats are larger than this whole project. `dummy_models.py` writes the files.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

SHAPE = 1, 10
FLOAT32 = 5  # Paddle's number of the type; ONNX's and TensorFlow's is 1, TFLite's 0
LOD_TENSOR, FEED, FETCH = 7, 9, 10  # Paddle's types of variables
INT, FLOAT, BOOLEAN = 0, 1, 6  # Paddle's types of attributes
ADD_OPTIONS = 11  # TFLite's number of the options of the operator ADD, which is operator 0
ALIGNMENT = 16


def write_formats(directory: Path) -> None:
    """Write a file for each format; Paddle's has one for its weights besides."""
    directory.mkdir(exist_ok=True)
    (directory / "dummy.onnx").write_bytes(onnx_dummy())
    (directory / "dummy.pb").write_bytes(tensorflow_dummy())
    (directory / "dummy.tflite").write_bytes(tflite_dummy())
    (directory / "dummy.pdmodel").write_bytes(paddle_dummy())
    (directory / "dummy.pdiparams").write_bytes(b"")  # it has no weights, and the reader wants the file


# ---- protobuf


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _field(number: int, value: int | float | str | bytes) -> bytes:
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def onnx_dummy() -> bytes:
    def tensor(name: str) -> bytes:
        dims = b"".join(_field(1, _field(1, size)) for size in SHAPE)
        return _field(1, name) + _field(2, _field(1, _field(1, 1) + _field(2, dims)))

    one = _field(2, 1) + _field(8, "one") + _field(9, struct.pack("<f", 1.0))  # a scalar of floats
    node = _field(1, "b") + _field(1, "one") + _field(2, "a") + _field(4, "Add")
    graph = _field(1, node) + _field(2, "dummy") + _field(5, one)
    graph += _field(11, tensor("b")) + _field(12, tensor("a"))
    return _field(1, 8) + _field(7, graph) + _field(8, _field(2, 13))


def tensorflow_dummy() -> bytes:
    def node(name: str, kind: str, inputs: tuple[str, ...] = (), **attributes: bytes) -> bytes:
        out = _field(1, name) + _field(2, kind) + b"".join(_field(3, i) for i in inputs)
        for key, value in attributes.items():
            out += _field(5, _field(1, key) + _field(2, value))
        return _field(1, out)

    floats = _field(6, 1)
    shape = b"".join(_field(2, _field(1, size)) for size in SHAPE)
    one = _field(1, 1) + _field(2, b"") + _field(4, struct.pack("<f", 1.0))
    return (
        node("b", "Placeholder", dtype=floats, shape=_field(7, shape))
        + node("one", "Const", dtype=floats, value=_field(8, one))
        + node("a", "AddV2", ("b", "one"), T=floats)
    )


def paddle_dummy() -> bytes:
    """Return a program of one operator, `scale`, whose bias is 1. It has no weights."""

    def variable(name: str, kind: int) -> bytes:
        dims = b"".join(_field(2, size) for size in SHAPE)
        dense = _field(3, _field(1, _field(1, FLOAT32) + dims)) if kind == LOD_TENSOR else b""
        return _field(3, _field(1, name) + _field(2, _field(1, kind) + dense))

    def operator(kind: str, source: str, target: str, *attributes: bytes) -> bytes:
        ends = _field(1, _field(1, "X") + _field(2, source)) + _field(2, _field(1, "Out") + _field(2, target))
        return _field(4, ends + _field(3, kind) + b"".join(_field(4, a) for a in attributes))

    def attribute(name: str, kind: int, field: int, value: int | float) -> bytes:
        return _field(1, name) + _field(2, kind) + _field(field, value)

    column = attribute("col", INT, 3, 0)
    block = _field(1, 0) + _field(2, 0)
    block += variable("feed", FEED) + variable("fetch", FETCH)
    block += variable("b", LOD_TENSOR) + variable("a", LOD_TENSOR)
    block += operator("feed", "feed", "b", column)
    block += operator(
        "scale", "b", "a", attribute("scale", FLOAT, 4, 1.0), attribute("bias", FLOAT, 4, 1.0),
        attribute("bias_after_scale", BOOLEAN, 10, 1),
    )  # fmt: skip
    block += operator("fetch", "a", "fetch", column)
    return _field(1, block) + _field(4, _field(1, 2_000_000))


# ---- flatbuffers: an object is written before what it refers to, so that every offset is positive


class _Table(NamedTuple):
    """Fields by their number in the schema: scalars of 32 bits at most, or other objects."""

    fields: dict[int, Any]


_Object = _Table | bytes | str | list[_Table] | list[int]


def _object(out: bytearray, value: _Object) -> int:
    """Append an object; return where it is."""
    if isinstance(value, _Table):
        return _table(out, value)
    if isinstance(value, bytes | str):
        data = value.encode() + b"\0" if isinstance(value, str) else value
        length = len(data) - isinstance(value, str)
        out += bytes(-(len(out) + 4) % ALIGNMENT)
        at = len(out)
        out += struct.pack("<I", length) + data
        return at
    out += bytes(-len(out) % 4)
    at = len(out)
    out += struct.pack("<I", len(value))
    out += bytes(4 * len(value))
    items: list[_Table | int] = [*value]
    for place, one in enumerate(items, 1):
        if isinstance(one, int):
            struct.pack_into("<i", out, at + 4 * place, one)
        else:
            _refer(out, at + 4 * place, one)
    return at


def _table(out: bytearray, table: _Table) -> int:
    """Append a table with its directory in front; each field has 4 bytes."""
    count = max(table.fields, default=-1) + 1
    places = {number: 4 * (i + 1) for i, number in enumerate(table.fields)}
    out += bytes(-(len(out) + 4 + 2 * count) % 4)
    directory = len(out)
    out += struct.pack("<HH", 4 + 2 * count, 4 * (len(places) + 1))
    out += struct.pack(f"<{count}H", *(places.get(number, 0) for number in range(count)))
    at = len(out)
    out += struct.pack("<i", at - directory) + bytes(4 * len(places))
    for number, value in table.fields.items():
        if isinstance(value, int):
            struct.pack_into("<i", out, at + places[number], value)
        else:
            _refer(out, at + places[number], value)
    return at


def _refer(out: bytearray, at: int, value: _Object) -> None:
    struct.pack_into("<I", out, at, _object(out, value) - at)


def tflite_dummy() -> bytes:
    def tensor(name: str, shape: tuple[int, ...], buffer: int) -> _Table:
        return _Table({0: list(shape), 2: buffer, 3: name})

    tensors = [tensor("b", SHAPE, 0), tensor("one", (1,), 1), tensor("a", SHAPE, 0)]
    add = _Table({0: 0, 1: [0, 1], 2: [2], 3: ADD_OPTIONS, 4: _Table({})})
    graph = _Table({0: tensors, 1: [0], 2: [2], 3: [add], 4: "dummy"})
    buffers = [_Table({}), _Table({0: struct.pack("<f", 1.0)})]
    out = bytearray(4) + b"TFL3"
    _refer(out, 0, _Table({0: 3, 1: [_Table({0: 0, 2: 1, 3: 0})], 2: [graph], 4: buffers}))
    return bytes(out)
