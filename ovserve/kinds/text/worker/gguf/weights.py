"""Writes the weights of a .gguf file in the forms of `gguf_forms.py`, tensor by tensor."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ovserve.engine.model.gguf import KINDS, Tensor
from ovserve.engine.model.gguf_forms import MIDDLE_OF_U4, MIDDLE_OF_U8, Form

Bytes = NDArray[np.uint8]
ALIGNMENT_BYTES = 64  # of constants in the file
CHUNK = 4 << 20  # bytes of the source that are converted at once
PAGE = mmap.ALLOCATIONGRANULARITY


class Constant(NamedTuple):
    """Numbers in the file of weights."""

    type: str
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True)
class Matrix:
    """A matrix [rows, columns] as constants of its form."""

    form: Form
    rows: int
    columns: int
    values: Constant
    scales: Constant | None = None
    zeros: Constant | None = None
    offsets: Constant | None = None
    offset_scales: Constant | None = None


class Part(NamedTuple):
    """Rows of a tensor, in this order; None: all as they are."""

    tensor: Tensor
    rows: NDArray[np.int64] | None = None


class WeightsFile:
    """The file that is written. `done` counts bytes of the source."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0
        self.done = 0

    def add(self, parts: Sequence[Part], form: Form) -> Matrix:
        """Write tensors in one form, stacked."""
        columns = parts[0].tensor.dims[0]
        counts = [_count(part) for part in parts]
        rows = sum(counts)
        places = self._reserve(form, rows, columns)
        at = 0
        for part, count in zip(parts, counts, strict=True):
            for first, converted in _converted(part, count, form):
                for name, data in converted.items():
                    row_bytes = places[name].size // rows
                    self._file.seek(places[name].offset + (at + first) * row_bytes)
                    self._file.write(data.data)
            at += count
            self.done += part.tensor.size * count // prod(part.tensor.dims[1:])
        return Matrix(form, rows, columns, **places)

    def append(self, data: bytes) -> int:
        """Write bytes at the end; return where they begin."""
        begin = self._place(len(data))
        self._file.seek(begin)
        self._file.write(data)
        return begin

    def _reserve(self, form: Form, rows: int, columns: int) -> dict[str, Constant]:
        shape = (rows, columns // form.group, form.group) if form.group else (rows, columns)
        scales = (rows, 1) if form.values == "i8" else (*shape[:2], 1)
        kinds = {"values": (form.values, shape), "scales": (form.scales, scales)}
        kinds |= {"offsets": ("i8", shape[:2]), "offset_scales": ("f32", (rows, 1))}
        kinds["zeros"] = "u4" if form.rounded else form.scales, scales
        return {
            name: Constant(*kinds[name], self._place(size), size)
            for name, size in form.bytes_for(rows, columns).items()
        }

    def _place(self, size: int) -> int:
        begin = -(-self.size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.size = begin + size
        return begin


def _count(part: Part) -> int:
    return prod(part.tensor.dims[1:]) if part.rows is None else len(part.rows)


@contextmanager
def mapped(tensor: Tensor) -> Iterator[tuple[Bytes, Callable[[], None]]]:
    """Map the bytes of a tensor. The second value drops the pages that were read, as the end does."""
    begin = tensor.begin // PAGE * PAGE
    with tensor.file.open("rb") as file:
        data = mmap.mmap(
            file.fileno(), tensor.begin - begin + tensor.size, access=mmap.ACCESS_READ, offset=begin
        )

    def drop() -> None:
        data.madvise(mmap.MADV_DONTNEED)

    # Closed by the last view of it: numpy's arrays may live a little longer than this.
    yield np.frombuffer(data, np.uint8, tensor.size, tensor.begin - begin), drop
    drop()


def vector(tensor: Tensor) -> NDArray[np.float32]:
    """Return a plain tensor as f32."""
    with mapped(tensor) as (data, _):
        return _numbers(np.array(data), tensor.type).reshape(tensor.dims[::-1])


def _converted(part: Part, count: int, form: Form) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
    """Yield the first row of each chunk, and its constants."""
    tensor = part.tensor
    row_bytes = tensor.size // prod(tensor.dims[1:])
    step = max(1, CHUNK // row_bytes)
    with mapped(tensor) as (data, drop):
        source = data.reshape(-1, row_bytes)
        for first in range(0, count, step):
            window = slice(first, first + step)
            rows = np.array(source[window if part.rows is None else part.rows[window]])
            drop()
            yield first, _convert(rows, tensor, form)


def _convert(rows: Bytes, tensor: Tensor, form: Form) -> dict[str, NDArray[Any]]:
    if form.values == tensor.type.lower():
        return {"values": rows}
    if form.values == "f16":
        weights = _dequantised(rows, tensor)
        if form.rounded:
            exact = _with_zeros(*_four_bits(rows, tensor.type))
            zeros, scales = (exact[name].astype(np.float32) for name in ("zeros", "scales"))
            weights += np.repeat((scales * (zeros - _rounded(zeros)))[..., 0], 32, axis=1)
        return {"values": weights.astype(np.float16)}
    if form.values == "i8":
        return _by_row(_dequantised(rows, tensor))
    if form.values == "u4":
        return _to_four_bits(rows, tensor, form)
    if tensor.type == "Q8_0":
        blocks = rows.reshape(len(rows), -1, 34)
        # Two's complement plus 128 is the sign bit turned over.
        return {"scales": _half(blocks[..., :2]), "values": np.ascontiguousarray(blocks[..., 2:] ^ 0x80)}
    return _eight_bits(_dequantised(rows, tensor), form.group)


def _to_four_bits(rows: Bytes, tensor: Tensor, form: Form) -> dict[str, NDArray[Any]]:
    if tensor.type == "Q4_0":
        blocks = rows.reshape(len(rows), -1, 18)
        return {"scales": _half(blocks[..., :2]), "values": _packed(blocks[..., 2:])}
    scales, least, values = _four_bits(rows, tensor.type)
    if form.offsets:
        half = scales.astype(np.float16)
        more = _by_row((half.astype(np.float32) * MIDDLE_OF_U4 - least)[..., 0])
        return {"scales": half, "values": values, "offsets": more["values"], "offset_scales": more["scales"]}
    converted = _with_zeros(scales, least, values)
    if form.rounded:
        flat = _rounded(converted["zeros"].astype(np.float32)).astype(np.uint8).reshape(len(rows), -1)
        converted["zeros"] = flat[:, 0::2] | (flat[:, 1::2] << 4)
    return converted


def _four_bits(rows: Bytes, kind: str) -> tuple[NDArray[np.float32], NDArray[np.float32], Bytes]:
    """Return scale, what is subtracted, and the values of each group."""
    size = next(k.size for k in KINDS.values() if k.name == kind)
    blocks = rows.reshape(len(rows), -1, size)
    if kind == "Q4_1":
        scale, least = (_half(blocks[..., at : at + 2]).astype(np.float32) for at in (0, 2))
        return scale, -least, _packed(blocks[..., 4:])
    scales, offsets = _scales_of_q4_k(blocks)
    count = len(rows)
    # 32 bytes hold two groups: the low halves are the first.
    nibbles = blocks[..., 16:].reshape(count, -1, 32)
    low = (nibbles[..., 0::2] & 15) | (nibbles[..., 1::2] << 4)
    high = (nibbles[..., 0::2] >> 4) | (nibbles[..., 1::2] & 0xF0)
    values = np.stack([low, high], axis=2).reshape(count, -1, 16)
    return scales.reshape(count, -1, 1), offsets.reshape(count, -1, 1), values


def _rounded(zeros: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.clip(np.rint(zeros), 0, 15)


def _packed(nibbles: Bytes) -> Bytes:
    """Return pairs of neighbours in a byte, from bytes whose low halves are the first 16 values."""
    low = (nibbles[..., 0::2] & 15) | (nibbles[..., 1::2] << 4)
    high = (nibbles[..., 0::2] >> 4) | (nibbles[..., 1::2] & 0xF0)
    return np.concatenate([low, high], axis=-1)


def _scales_of_q4_k(blocks: Bytes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return scale and what is subtracted for each of a block's eight groups, from six bits each."""
    packed = blocks[..., 4:16]
    scales, offsets = np.empty((2, *blocks.shape[:2], 8), np.float32)
    scales[..., :4], offsets[..., :4] = packed[..., :4] & 63, packed[..., 4:8] & 63
    scales[..., 4:] = (packed[..., 8:] & 15) | (packed[..., :4] >> 6 << 4)
    offsets[..., 4:] = (packed[..., 8:] >> 4) | (packed[..., 4:8] >> 6 << 4)
    scales *= _half(blocks[..., :2])
    offsets *= _half(blocks[..., 2:4])
    return scales, offsets


def _with_zeros(
    scales: NDArray[np.float32], offsets: NDArray[np.float32], values: Bytes
) -> dict[str, NDArray[Any]]:
    """Return `scale * value - offset` as `scale * (value - zero)`."""
    half = scales.astype(np.float16)
    equal = half == 0  # a group of one value, or of values too small for f16
    if equal.any():
        half = np.where(equal, offsets, half).astype(np.float16)
        values = np.where(equal, np.uint8(0), values)
    zeros = np.where(equal, 1, offsets / np.where(half == 0, 1, half).astype(np.float32))
    limit = np.finfo(np.float16).max
    zeros = np.nan_to_num(np.clip(zeros, -limit, limit))
    return {"scales": half, "zeros": zeros.astype(np.float16), "values": np.ascontiguousarray(values)}


def _eight_bits(weights: NDArray[np.float32], group: int) -> dict[str, NDArray[Any]]:
    grouped = weights.reshape(len(weights), -1, group)
    scales = (np.abs(grouped).max(axis=-1, keepdims=True) / 127).astype(np.float16)
    divisor = np.where(scales == 0, 1, scales).astype(np.float32)
    values = np.clip(np.rint(grouped / divisor) + MIDDLE_OF_U8, 1, 255).astype(np.uint8)
    return {"scales": scales, "values": values}


def _by_row(weights: NDArray[np.float32]) -> dict[str, NDArray[Any]]:
    scales = np.abs(weights).max(axis=1, keepdims=True) / np.float32(127)
    scales[scales == 0] = 1
    return {"scales": scales, "values": np.rint(weights / scales).astype(np.int8)}


def _dequantised(rows: Bytes, tensor: Tensor) -> NDArray[np.float32]:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    weights: NDArray[np.float32] = dequantize(rows, GGMLQuantizationType(tensor.kind))
    return weights.reshape(len(rows), tensor.dims[0])


def _half(data: Bytes) -> NDArray[np.float16]:
    return np.ascontiguousarray(data).view(np.float16)


def _numbers(data: Bytes, kind: str) -> NDArray[np.float32]:
    if kind == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return data.view(np.float16 if kind == "F16" else np.float32).astype(np.float32)
