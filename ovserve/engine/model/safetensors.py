"""Tensors of a safetensors file: an 8-byte header length, a JSON header, then raw little-endian values.

The format is small enough that reading it needs no library.
Source: https://huggingface.co/docs/safetensors/index, read 2026-11-22
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ovserve.errors import LoadError

HEADER_LIMIT = 100 << 20  # bytes; the format's own bound
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}


class _Entry(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


class Tensors:
    """The tensors of one file by name, mapped into memory and read as float32."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._raw = np.memmap(file, np.uint8, mode="r")
        try:
            (length,) = struct.unpack("<Q", bytes(self._raw[:8]))
            if length > min(HEADER_LIMIT, self._raw.size - 8):
                raise ValueError(f"a header of {length} bytes")
            header = msgspec.json.decode(bytes(self._raw[8 : 8 + length]), type=dict[str, msgspec.Raw])
            header.pop("__metadata__", None)
            self._entries = {n: msgspec.json.decode(raw, type=_Entry) for n, raw in header.items()}
        except (struct.error, ValueError, msgspec.MsgspecError) as error:
            raise LoadError(f"not a safetensors file: {error}", file=str(file)) from error
        self._start = 8 + length

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._entries)

    def float32(self, name: str) -> NDArray[np.float32]:
        """Return a tensor. Raises LoadError for one that is missing or of another type."""
        entry = self._entries.get(name)
        if entry is None or entry.dtype not in TYPES:
            what = "is missing" if entry is None else f"has the type {entry.dtype}"
            raise LoadError(f"tensor {name!r} {what}", file=str(self._file))
        begin, end = (self._start + offset for offset in entry.data_offsets)
        values: NDArray[Any] = self._raw[begin:end].view(TYPES[entry.dtype])
        if entry.dtype == "BF16":  # the upper half of a float32
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return np.ascontiguousarray(values.reshape(entry.shape), dtype=np.float32)
