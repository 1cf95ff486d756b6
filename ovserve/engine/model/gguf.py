"""Read the key-values of a GGUF file and check that the file is complete.

The `gguf` package takes 2.4 s for the default model, because it builds numpy views of all
tensors. This reader takes milliseconds, because it keeps only small values and array lengths. OpenVINO's
reader crashes the process (SIGSEGV) on a file that is truncated or not GGUF, so the file is checked
first. Layout: github.com/ggml-org/ggml docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import NamedTuple

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_COUNT = 1 << 24  # limit of key-values, array items, tensors; real files stay below a million
MAX_DEPTH = 4
MAX_DIMS = 8

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9


class GGUFError(ValueError):
    """The file is not readable as GGUF; the message names the fault."""


class ArrayLength(NamedTuple):
    """A placeholder for an array: vocabularies are megabytes, and only their size is needed."""

    items: int


Value = str | int | float | bool | ArrayLength


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.at = 0

    def skip(self, count: int) -> int:
        start = self.at
        if count > len(self._data) - start:
            raise GGUFError("the file is truncated")
        self.at = start + count
        return start

    def scalar(self, code: str) -> int | float | bool:
        start = self.skip(struct.calcsize(code))
        value: int | float | bool = struct.unpack_from(code, self._data, start)[0]
        return value

    def count(self, what: str) -> int:
        value = int(self.scalar("<Q"))
        if value > MAX_COUNT:
            raise GGUFError(f"the file is damaged: it announces {value} {what}")
        return value

    def text(self) -> str:
        length = int(self.scalar("<Q"))
        start = self.skip(length)
        return self._data[start : start + length].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Value:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.array(MAX_DEPTH)
        return self.scalar(self._code(kind))

    def array(self, depth: int) -> ArrayLength:
        kind, count = int(self.scalar("<I")), self.count("array items")
        if kind == _STRING:
            for _ in range(count):
                self.skip(int(self.scalar("<Q")))
        elif kind == _ARRAY:
            if not depth:
                raise GGUFError("the file is damaged: arrays nest too deep")
            for _ in range(count):
                self.array(depth - 1)
        else:
            self.skip(count * struct.calcsize(self._code(kind)))
        return ArrayLength(count)

    @staticmethod
    def _code(kind: int) -> str:
        if code := _SCALARS.get(kind):
            return code
        raise GGUFError(f"the file is damaged: unknown value type {kind}")


class Tensor(NamedTuple):
    """One tensor. `kind` is ggml's number of the type, such as 8 for Q8_0; `begin` counts from the first
    tensor."""

    name: str
    dims: tuple[int, ...]
    kind: int
    begin: int


def read_tensors(path: str) -> list[Tensor]:
    """Return the tensors' descriptions. Raises as `read_metadata`."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise GGUFError("the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Reader(data), data)[1]


def read_metadata(path: str) -> dict[str, Value]:
    """Return all key-values. Raises GGUFError for an incomplete or other file, OSError if it cannot be
    opened."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise GGUFError("the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Reader(data), data)[0]


def _read(reader: _Reader, data: mmap.mmap) -> tuple[dict[str, Value], list[Tensor]]:
    if data[:4] != MAGIC:
        raise GGUFError("not a GGUF file (it does not begin with 'GGUF')")
    reader.skip(4)
    version = int(reader.scalar("<I"))
    if version not in VERSIONS:
        raise GGUFError(f"GGUF version {version} is not supported (only {VERSIONS[0]} and {VERSIONS[1]})")
    tensors = reader.count("tensors")
    found: dict[str, Value] = {}
    for _ in range(reader.count("key-values")):
        key = reader.text()
        found[key] = reader.value(int(reader.scalar("<I")))
    listed = [_tensor(reader) for _ in range(tensors)]
    _check_tensors_are_inside(reader, listed, found, len(data))
    return found, listed


def _tensor(reader: _Reader) -> Tensor:
    name, dims = reader.text(), int(reader.scalar("<I"))
    if dims > MAX_DIMS:
        raise GGUFError(f"the file is damaged: a tensor of {dims} dimensions")
    lengths = tuple(int(reader.scalar("<Q")) for _ in range(dims))
    return Tensor(name, lengths, int(reader.scalar("<I")), int(reader.scalar("<Q")))


def _check_tensors_are_inside(
    reader: _Reader, tensors: list[Tensor], found: dict[str, Value], size: int
) -> None:
    furthest = max((tensor.begin for tensor in tensors), default=0)
    alignment = found.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise GGUFError("the file is damaged: general.alignment is not a positive number")
    begin = -(-reader.at // alignment) * alignment
    if tensors and begin + furthest >= size:
        raise GGUFError(
            f"the file is truncated: it has {size} bytes, its last tensor begins at {begin + furthest}"
        )
