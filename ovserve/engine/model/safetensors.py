"""Tensors of a .safetensors file: a length of 8 bytes, a JSON header, then raw little-endian values.

The format is small enough that reading it needs no library.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovserve.engine.model.files import safetensors_header
from ovserve.errors import LoadError

TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}


class Tensors:
    """The tensors of one file by name, mapped into memory and read as float32. Raises LoadError."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._entries, self._start = safetensors_header(file)
        self._raw = np.memmap(file, np.uint8, mode="r")

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
