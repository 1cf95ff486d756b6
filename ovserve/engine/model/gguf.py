"""Read GGUF files: key-values, and where each tensor is. Every offset is checked against the file's size.

Nothing is kept of vocabularies until `GGUF.array` reads one, and no weight is read. The `gguf` package takes
2.4 s for the default model, because it builds numpy views of all tensors. A model may be split into several
files; they are read as one. Layout: github.com/ggml-org/ggml docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections import Counter
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

Number = TypeVar("Number", int, float)
MAGIC = b"GGUF"
VERSIONS = (2, 3)
# Limits of what is read one by one, which takes up to 14 us each. Real files have up to 20,000 tensors, and a
# million texts of tokens and merges in 20 MB.
MAX_ENTRIES = 1 << 17  # of key-values, of tensors
MAX_ITEMS_READ = 1 << 21  # texts in all arrays of a file, and arrays in them, which count ARRAY_COST each
ARRAY_COST = 16
MAX_TEXT_BYTES = 1 << 26  # of all texts that are kept
MAX_COUNT = 1 << 24  # of numbers in an array, which are skipped at once
MAX_DEPTH = 4
MAX_DIMS = 4
MAX_ITEMS = 1 << 48  # of a tensor
MAX_PARTS = 1000
MAX_SIZE = 1 << 24  # of a dimension
PART_NAME = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")

_SCALARS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9


class TensorKind(NamedTuple):
    """A type of tensors: `items` values are a block of `size` bytes."""

    name: str
    items: int
    size: int


# By ggml's numbers; a test compares them with ggml's package.
KINDS = {
    0: TensorKind("F32", 1, 4),
    1: TensorKind("F16", 1, 2),
    2: TensorKind("Q4_0", 32, 18),
    3: TensorKind("Q4_1", 32, 20),
    6: TensorKind("Q5_0", 32, 22),
    7: TensorKind("Q5_1", 32, 24),
    8: TensorKind("Q8_0", 32, 34),
    10: TensorKind("Q2_K", 256, 84),
    11: TensorKind("Q3_K", 256, 110),
    12: TensorKind("Q4_K", 256, 144),
    13: TensorKind("Q5_K", 256, 176),
    14: TensorKind("Q6_K", 256, 210),
    16: TensorKind("IQ2_XXS", 256, 66),
    17: TensorKind("IQ2_XS", 256, 74),
    18: TensorKind("IQ3_XXS", 256, 98),
    19: TensorKind("IQ1_S", 256, 50),
    20: TensorKind("IQ4_NL", 32, 18),
    21: TensorKind("IQ3_S", 256, 110),
    22: TensorKind("IQ2_S", 256, 82),
    23: TensorKind("IQ4_XS", 256, 136),
    24: TensorKind("I8", 1, 1),
    25: TensorKind("I16", 1, 2),
    26: TensorKind("I32", 1, 4),
    27: TensorKind("I64", 1, 8),
    28: TensorKind("F64", 1, 8),
    29: TensorKind("IQ1_M", 256, 56),
    30: TensorKind("BF16", 1, 2),
    34: TensorKind("TQ1_0", 256, 54),
    35: TensorKind("TQ2_0", 256, 66),
    39: TensorKind("MXFP4", 32, 17),
}


class GGUFError(ValueError):
    """The file is not readable as GGUF; the message names the fault."""


class ArrayLength(NamedTuple):
    """A placeholder for an array: vocabularies are megabytes, and only their size is needed."""

    items: int


Value = str | int | float | bool | ArrayLength


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._items = MAX_ITEMS_READ
        self._text = MAX_TEXT_BYTES
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

    def count(self, what: str, limit: int) -> int:
        value = int(self.scalar("<Q"))
        if value > limit:
            raise GGUFError(f"the file is damaged: it announces {value} {what}")
        return value

    def items(self) -> tuple[int, int]:
        """Return the type and the number of an array's items."""
        kind, count = int(self.scalar("<I")), self.count("array items", MAX_COUNT)
        if kind in (_STRING, _ARRAY):
            self._items -= count * (ARRAY_COST if kind == _ARRAY else 1)
            if self._items < 0:
                raise GGUFError("the file is damaged: its arrays have more texts and arrays than any model's")
        return kind, count

    def text(self) -> str:
        length = int(self.scalar("<Q"))
        start = self.skip(length)
        self._text -= length
        if self._text < 0:
            raise GGUFError(f"the file is damaged: its texts have more than {MAX_TEXT_BYTES} bytes")
        return self._data[start : start + length].decode("utf-8", errors="replace")

    def value(self, kind: int) -> Value:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.array(MAX_DEPTH)
        return self.scalar(self.code(kind))

    def array(self, depth: int) -> ArrayLength:
        kind, count = self.items()
        if kind == _STRING:
            for _ in range(count):
                self.skip(int(self.scalar("<Q")))
        elif kind == _ARRAY:
            if not depth:
                raise GGUFError("the file is damaged: arrays nest too deep")
            for _ in range(count):
                self.array(depth - 1)
        else:
            self.skip(count * struct.calcsize(self.code(kind)))
        return ArrayLength(count)

    @staticmethod
    def code(kind: int) -> str:
        if code := _SCALARS.get(kind):
            return code
        raise GGUFError(f"the file is damaged: unknown value type {kind}")


class Tensor(NamedTuple):
    """One tensor of a model. `kind` is a key of KINDS; `begin` counts from the start of the file."""

    name: str
    dims: tuple[int, ...]  # the row's length first, unlike numpy
    kind: int
    file: Path
    begin: int
    size: int

    @property
    def type(self) -> str:
        return KINDS[self.kind].name

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes, of which a vector may be written as a matrix of one row."""
        return self.dims[:1] if len(self.dims) == 2 and self.dims[1] == 1 else self.dims

    @property
    def is_plain(self) -> bool:
        """Return whether it is read as numbers: a vector, a router, biases of experts."""
        return len(self.sizes) == 1 or "ffn_gate_inp" in self.name or self.name.endswith(".bias")


class GGUF(msgspec.Struct, frozen=True):
    """A model: of its first file all key-values, and the tensors of all of its files."""

    path: Path
    metadata: dict[str, Value]
    tensors: dict[str, Tensor]
    files: tuple[Path, ...]
    arrays: dict[str, int]  # where each array is in the first file

    @property
    def size(self) -> int:
        return sum(file.stat().st_size for file in self.files)

    def array(self, key: str) -> list[str] | Sequence[int | float | bool]:
        """Read an array of texts or numbers. Raises GGUFError for an array of arrays, KeyError."""
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            reader = _Reader(data)
            reader.at = self.arrays[key]
            kind, count = reader.items()
            if kind == _STRING:
                return [reader.text() for _ in range(count)]
            if kind == _ARRAY:
                raise GGUFError(f"{key} is an array of arrays")
            code = reader.code(kind)
            begin = reader.skip(count * struct.calcsize(code))
            return struct.unpack_from(f"<{count}{code[1:]}", data, begin)


class _Head(NamedTuple):
    metadata: dict[str, Value]
    tensors: list[Tensor]
    arrays: dict[str, int]


def read_metadata(path: str) -> dict[str, Value]:
    """Return all key-values. Raises GGUFError for an incomplete or other file, OSError if it cannot be
    opened."""
    return _read_head(Path(path)).metadata


def read_gguf(path: str | Path) -> GGUF:
    """Read a model, of which `path` is the first or only file. Raises GGUFError, OSError."""
    path = Path(path)
    first = _read_head(path)
    files, tensors = [path], list(first.tensors)
    for part in _parts(path, first.metadata):
        try:
            head = _read_head(part)
            if (number := head.metadata.get("split.no")) != len(files):
                raise GGUFError(f"split.no is {number}, expected {len(files)}")
        except GGUFError as error:
            raise GGUFError(f"{part.name}: {error}") from error
        files.append(part)
        tensors += head.tensors
    announced = first.metadata.get("split.tensors.count")
    if isinstance(announced, int) and announced != len(tensors):
        raise GGUFError(f"split.tensors.count is {announced}, and the files have {len(tensors)} tensors")
    by_name = {tensor.name: tensor for tensor in tensors}
    if len(by_name) < len(tensors):
        (twice, _), *_ = Counter(tensor.name for tensor in tensors).most_common(1)
        raise GGUFError(f"the file is damaged: it has the tensor {twice} twice")
    return GGUF(path, first.metadata, by_name, tuple(files), first.arrays)


def first_part(path: Path) -> Path:
    """Return the first file of the model that `path` is a file of."""
    return path.with_name(PART_NAME.sub(r"-00001-of-\2.gguf", path.name))


def _parts(path: Path, metadata: dict[str, Value]) -> list[Path]:
    """Return the other files of a split model."""
    count = metadata.get("split.count", 1)
    if not isinstance(count, int) or not 0 <= count <= MAX_PARTS:
        raise GGUFError(f"the file is damaged: split.count is {count}")
    if count <= 1:
        return []
    match = PART_NAME.search(path.name)
    if match is None or int(match[2]) != count:
        raise GGUFError(
            f"it is a part of a model in {count} files, whose names must end in -00001-of-{count:05}.gguf"
        )
    if metadata.get("split.no") != 0:
        raise GGUFError(f"it is part {match[1]} of {count}; give the first, {first_part(path).name}")
    parts = [
        path.with_name(PART_NAME.sub(f"-{number:05}-of-{count:05}.gguf", path.name))
        for number in range(2, count + 1)
    ]
    if missing := [part.name for part in parts if not part.is_file()]:
        raise GGUFError(f"the model is in {count} files, and {', '.join(missing[:3])} is not next to it")
    return parts


def _read_head(path: Path) -> _Head:
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            raise GGUFError("the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Reader(data), data, path)


def _read(reader: _Reader, data: mmap.mmap, path: Path) -> _Head:
    if data[:4] != MAGIC:
        raise GGUFError("not a GGUF file (it does not begin with 'GGUF')")
    reader.skip(4)
    version = int(reader.scalar("<I"))
    if version not in VERSIONS:
        fault = "big-endian numbers are" if not version & 0xFFFF else f"GGUF version {version} is"
        raise GGUFError(
            f"{fault} not supported (only versions {VERSIONS[0]} and {VERSIONS[1]}, little-endian)"
        )
    tensors = reader.count("tensors", MAX_ENTRIES)
    metadata: dict[str, Value] = {}
    arrays: dict[str, int] = {}
    for _ in range(reader.count("key-values", MAX_ENTRIES)):
        key = reader.text()
        kind = int(reader.scalar("<I"))
        if kind == _ARRAY:
            arrays[key] = reader.at
        metadata[key] = reader.value(kind)
    listed = [_tensor(reader, path) for _ in range(tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise GGUFError("the file is damaged: general.alignment is not a positive number")
    begin = -(-reader.at // alignment) * alignment
    placed = [tensor._replace(begin=begin + tensor.begin) for tensor in listed]
    for tensor in placed:
        if tensor.begin + tensor.size > len(data):
            raise GGUFError(
                f"the file is truncated: it has {len(data)} bytes, and its tensor {tensor.name} ends at "
                f"{tensor.begin + tensor.size}"
            )
    return _Head(metadata, placed, arrays)


def _tensor(reader: _Reader, path: Path) -> Tensor:
    name, dims = reader.text(), int(reader.scalar("<I"))
    if not 1 <= dims <= MAX_DIMS:
        raise GGUFError(f"the file is damaged: the tensor {name} has {dims} dimensions")
    lengths = tuple(int(reader.scalar("<Q")) for _ in range(dims))
    kind, begin = int(reader.scalar("<I")), int(reader.scalar("<Q"))
    layout = KINDS.get(kind)
    if layout is None:
        raise GGUFError(f"the tensor {name} is of the type {kind}, which is not known")
    if prod(lengths) > MAX_ITEMS:
        raise GGUFError(f"the file is damaged: the tensor {name} has the dimensions {list(lengths)}")
    if lengths[0] % layout.items:
        raise GGUFError(
            f"the tensor {name} has rows of {lengths[0]} values, and {layout.name} has blocks of "
            f"{layout.items}"
        )
    return Tensor(name, lengths, kind, path, begin, prod(lengths) // layout.items * layout.size)


class Fields:
    """Reads values of an architecture, and says which is missing or wrong."""

    def __init__(self, gguf: GGUF, name: str) -> None:
        self._gguf, self._metadata, self._name = gguf, gguf.metadata, name

    def number(self, key: str, default: Number | None, low: float, high: float, kind: type[Number]) -> Number:
        full = f"{self._name}.{key}"
        value = self._metadata.get(full, default)
        if value is None:
            raise GGUFError(f"{full} is missing")
        if isinstance(value, ArrayLength):  # of all layers
            value, *others = set(self._gguf.array(full)) or {""}
            if others:
                raise GGUFError(f"{full} differs between layers, which is not supported")
        if not isinstance(value, (int, kind)) or isinstance(value, bool) or not low <= value <= high:
            raise GGUFError(f"{full}: expected a number from {low:g} to {high:g}, got {value!r}")
        return kind(value)

    def size(self, key: str, default: int | None = None, *, low: int = 1, high: int = MAX_SIZE) -> int:
        return self.number(key, default, low, high, int)

    def real(self, key: str, default: float | None = None, *, low: float = 0.0, high: float = 1e12) -> float:
        return self.number(key, default, low, high, float)

    def text(self, key: str, default: str) -> str:
        value = self._metadata.get(f"{self._name}.{key}", default)
        return value if isinstance(value, str) else repr(value)
