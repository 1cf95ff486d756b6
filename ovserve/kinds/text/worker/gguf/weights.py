"""Writes the weights of a .gguf file in the forms of `gguf_forms.py`, tensor by tensor."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from math import prod
from typing import Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ovserve.engine.model.gguf import KINDS, Tensor
from ovserve.engine.model.gguf_forms import MIDDLE_OF_U4, MIDDLE_OF_U8, Form, form_of

Bytes = NDArray[np.uint8]
ALIGNMENT_BYTES = 64  # of constants in the file
CONVERT_CHUNK = 4 << 20  # bytes of the source that are converted at once
PAGE = mmap.ALLOCATIONGRANULARITY
F32, F16 = 0, 1  # keys of KINDS


class Constant(NamedTuple):
    """Numbers in the file of weights."""

    type: str
    shape: tuple[int, ...]
    offset: int
    size: int


class Matrix(msgspec.Struct, frozen=True):
    """A matrix [rows, columns] as constants of its form."""

    form: Form
    rows: int
    columns: int
    values: Constant
    high: Constant | None = None
    scales: Constant | None = None
    factors: Constant | None = None
    zeros: Constant | None = None
    offsets: Constant | None = None
    offset_scales: Constant | None = None


class Part(NamedTuple):
    """Rows of a tensor, in this order; None: all as they are."""

    tensor: Tensor
    rows: NDArray[np.int64] | None = None
    numbers: Bytes | None = None  # in place of those of the file, as bytes of rows


class WeightsFile:
    """The file that is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = 0

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
        kinds = {"values": (form.values, shape), "high": ("u1", shape), "scales": (form.scales, scales)}
        kinds |= {"offsets": ("i8", shape[:2]), "offset_scales": ("f32", (rows, 1))}
        if form.block:
            factors = rows, columns // form.block, form.block // form.group
            of_blocks = (*factors[:2], 1)
            kinds |= {"factors": ("i8", factors), "scales": ("f16", of_blocks)}
            kinds |= {"offsets": ("i8", factors), "offset_scales": ("f16", of_blocks)}
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


def transposed_part(tensor: Tensor) -> tuple[Part, Form]:
    """Return the matrices of a tensor, rows and columns exchanged, in f32, and the form to write them in."""
    with mapped(tensor) as (data, _):
        rows = np.array(data).reshape(prod(tensor.dims[1:]), -1)
    numbers = np.ascontiguousarray(_dequantised(rows, tensor).reshape(tensor.dims[::-1]).swapaxes(1, 2))
    form = form_of(tensor._replace(kind=F32 if tensor.kind == F32 else F16, dims=numbers.shape[::-1]))
    dims = numbers.shape[2], prod(numbers.shape[:2])
    raw = numbers.view(np.uint8).reshape(-1)
    return Part(tensor._replace(kind=F32, dims=dims, size=raw.size), None, raw), form


def _converted(part: Part, count: int, form: Form) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
    """Yield the first row of each chunk, and its constants."""
    tensor = part.tensor
    row_bytes = tensor.size // prod(tensor.dims[1:])
    step = max(1, CONVERT_CHUNK // row_bytes)
    with mapped(tensor) if part.numbers is None else nullcontext((part.numbers, bool)) as (data, drop):
        source = data.reshape(-1, row_bytes)
        for first in range(0, count, step):
            window = slice(first, first + step)
            rows = np.array(source[window if part.rows is None else part.rows[window]])
            drop()
            yield first, _convert(rows, tensor, form)


def _convert(rows: Bytes, tensor: Tensor, form: Form) -> dict[str, NDArray[Any]]:
    if form.values == tensor.type.lower():
        return {"values": rows}
    if form.values in ("u6", "f4e2m1") or form.block or form.high:
        return _exact(rows, tensor.type)
    if form.values == "f16":
        weights = _dequantised(rows, tensor)
        if form.rounded:
            exact = _with_zeros(*_four_bits(rows, tensor.type))
            zeros, scales = (exact[name].astype(np.float32) for name in ("zeros", "scales"))
            weights += np.repeat((scales * (zeros - _rounded(zeros)))[..., 0], 32, axis=1)
        return {"values": weights.astype(np.float16)}
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


def _exact(rows: Bytes, kind: str) -> dict[str, NDArray[Any]]:
    """Return the file's own numbers of rows, in the forms of `gguf_forms.EXACT`."""
    size = next(k.size for k in KINDS.values() if k.name == kind)
    blocks, count = rows.reshape(len(rows), -1, size), len(rows)
    low: NDArray[Any]
    high: NDArray[Any]
    if kind == "Q5_0":
        bits = np.unpackbits(blocks[..., 2:6], axis=-1, bitorder="little")
        return {
            "scales": _half(blocks[..., :2]),
            "values": _packed(blocks[..., 6:]),
            "high": np.packbits(bits, axis=-1),
        }
    if kind == "MXFP4":
        return {"scales": np.ascontiguousarray(blocks[..., :1]), "values": _packed(blocks[..., 1:])}
    if kind == "Q4_K":
        values = _four_bits(rows, kind)[2]
        factors, offsets = _factors_of_q4_k(blocks)
        return {"values": values} | _of_blocks(factors, blocks[..., :2], offsets, blocks[..., 2:4])
    if kind == "Q5_K":
        low, high = _planes(blocks[..., 48:], 4, 32), _planes(blocks[..., 16:48], 1, 32)
        factors, offsets = _factors_of_q4_k(blocks)
        halves = np.ascontiguousarray(low[..., 0::2] | low[..., 1::2] << 4)
        return {"values": halves, "high": np.packbits(high, axis=-1)} | _of_blocks(
            factors, blocks[..., :2], offsets, blocks[..., 2:4]
        )
    if kind == "Q6_K":
        # Each 64 bytes hold 128 values, the low halves first.
        low, high = _planes(blocks[..., :128], 4, 64), _planes(blocks[..., 128:192], 2, 32)
        numbers = _of_blocks(blocks[..., 192:208].view(np.int8), blocks[..., 208:])
    elif kind == "Q3_K":
        low, high = _planes(blocks[..., 32:96], 2, 32), _planes(blocks[..., :32], 1, 32)
        of_groups = blocks[..., 96:108]
        factors = _planes(of_groups[..., :8], 4, 8) | _planes(of_groups[..., 8:], 2, 4) << 4
        numbers = _of_blocks(factors.astype(np.int8) - 32, blocks[..., 108:])
    else:  # Q2_K
        low, high = _planes(blocks[..., 16:80], 2, 32), np.zeros(1, np.uint8)
        of_groups = blocks[..., :16]
        numbers = _of_blocks(of_groups & 15, blocks[..., 80:82], of_groups >> 4, blocks[..., 82:])
    bits_of_low = 2 if kind == "Q3_K" else 4
    return {"values": _six_bits((low | high << bits_of_low).reshape(count, -1))} | numbers


def _of_blocks(
    factors: NDArray[Any],
    scales: NDArray[Any],
    least: NDArray[Any] | None = None,
    of_least: NDArray[Any] | None = None,
) -> dict[str, NDArray[Any]]:
    """Return factors of groups and numbers of blocks; `least` is subtracted, so offsets are negative."""
    numbers: dict[str, NDArray[Any]] = {
        "factors": np.ascontiguousarray(factors.astype(np.int8)),
        "scales": _half(scales),
    }
    if least is None or of_least is None:
        return numbers
    return numbers | {"offsets": -least.astype(np.int8), "offset_scales": _half(of_least)}


def _planes(data: Bytes, bits: int, size: int) -> NDArray[Any]:
    """Return numbers in the order of the file: of each `size` bytes, the lowest bits of all come first."""
    parts = data.reshape(*data.shape[:-1], -1, 1, size)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    numbers: NDArray[np.uint8] = parts >> shifts & np.uint8((1 << bits) - 1)
    return numbers.reshape(*data.shape[:-1], -1)


def _six_bits(values: NDArray[Any]) -> Bytes:
    """Pack four numbers in three bytes, as OpenVINO has them: the low halves, of two the first is high; then
    the high bits, those of the first number highest."""
    first, second, third, fourth = (values[:, at::4] for at in range(4))
    triples = np.empty((len(values), values.shape[1] // 4, 3), np.uint8)
    triples[..., 0] = second & 15 | first << 4
    triples[..., 1] = fourth & 15 | third << 4
    triples[..., 2] = fourth >> 4 | third >> 4 << 2 | second >> 4 << 4 | first >> 4 << 6
    return triples.reshape(len(values), -1)


def _rounded(zeros: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.clip(np.rint(zeros), 0, 15)


def _packed(nibbles: Bytes) -> Bytes:
    """Return pairs of neighbours in a byte, from bytes whose low halves are the first 16 values."""
    low = (nibbles[..., 0::2] & 15) | (nibbles[..., 1::2] << 4)
    high = (nibbles[..., 0::2] >> 4) | (nibbles[..., 1::2] & 0xF0)
    return np.concatenate([low, high], axis=-1)


def _scales_of_q4_k(blocks: Bytes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return scale and what is subtracted for each of a block's eight groups."""
    scales, offsets = (factors.astype(np.float32) for factors in _factors_of_q4_k(blocks))
    scales *= _half(blocks[..., :2])
    offsets *= _half(blocks[..., 2:4])
    return scales, offsets


def _factors_of_q4_k(blocks: Bytes) -> tuple[Bytes, Bytes]:
    """Return the factors of scale and of what is subtracted, six bits each."""
    packed = blocks[..., 4:16]
    scales, offsets = np.empty((2, *blocks.shape[:2], 8), np.uint8)
    scales[..., :4], offsets[..., :4] = packed[..., :4] & 63, packed[..., 4:8] & 63
    scales[..., 4:] = (packed[..., 8:] & 15) | (packed[..., :4] >> 6 << 4)
    offsets[..., 4:] = (packed[..., 8:] >> 4) | (packed[..., 4:8] >> 6 << 4)
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
