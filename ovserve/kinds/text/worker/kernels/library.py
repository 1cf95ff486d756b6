"""The compiled form of the kernels, and calls into it.

It is compiled on the machine that uses it, because it has OpenVINO's classes in it, which differ from release
to release. That takes a compiler and 11 s, once. Without a compiler OpenVINO's own kernels compute. For an
image of a container, `python -m ovserve.kinds.text.worker.kernels.library` leaves it next to this file.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino.utils.node_factory import NodeFactory

from ovserve.children import bound_command
from ovserve.engine.host.cpu import processor
from ovserve.engine.host.kernels import LIBRARY, find_compiler, kernel_directories
from ovserve.engine.host.memory import memory
from ovserve.scratch import scratch_directory

DIRECTORY = Path(__file__).parent
SOURCES = sorted(map(str, DIRECTORY.glob("*.cpp")))
COMPILE_SECONDS = 120
COMPILER_BYTES = 512 << 20  # of memory for a source; g++ 12 takes 0.4 GB
OTHERS_MAY_WRITE = 0o022
ROWS_PER_BLOCK = 16  # of a block
CHUNKS = (64, 32)  # columns whose activations share a scale
LINE_BYTES = 64
ARRAYS_PER_MATRIX = 7  # of a matrix in the arena
FLIP = {"i4": 0x88888888, "i8": 0x80808080}  # makes signed values unsigned, by adding half their range
K_QUANT_GROUP = 16  # of six bits; of others 32
NUMBERS = "high", "scales", "factors", "zeros", "offsets", "offset_scales", "row_scales"


class KernelError(Exception):
    """The kernels cannot be had, with the reason."""


class Weights(NamedTuple):
    """A matrix in a model. A weight is `scale * (value - zero) + offset`.

    A scale is a number in f16 for `span` columns, times a factor for each group if there are any; without
    scales it is that of the row. Of values in E2M1 the factors are exponents, E8M0. An offset is a number of
    its group times one in f16 for `offset_span`, times `offset_unit`, as these may be too small for f16.
    """

    values: Any  # openvino.op.Constant, packed row by row; of 5 bits the low four
    rows: int
    columns: int
    bits: int
    group: int  # columns that share a factor, a zero point or an offset
    zero: int = 0  # of all groups, without `zeros`
    high: NDArray[np.uint8] | None = None  # the fifth bits, packed
    zeros: NDArray[np.float16] | None = None  # [rows, columns / group], as factors and offsets
    scales: NDArray[np.float16] | None = None  # [rows, columns / span]
    factors: NDArray[np.int8] | None = None
    row_scales: NDArray[np.float32] | None = None  # [rows]
    offsets: NDArray[np.int8] | None = None
    offset_scales: NDArray[np.float16] | None = None  # [rows, columns / offset_span]
    offset_unit: float = 1.0

    @property
    def chunk(self) -> int:
        """Columns whose activations share a scale, or 0 if the kernels cannot have them.

        As many as share one of weights, between 32 and 64. By 32, SmolLM2's outputs are 0.0051 (KL
        divergence) from those with exact activations, and by 64 0.0091; with OpenVINO's kernels they are
        0.0079.
        """
        if self.bits in (5, 6) and self.zeros is not None:
            return 0
        if self.bits == 6:  # of llama.cpp's K-quants alone
            is_k_quant = self.group == K_QUANT_GROUP and self.factors is not None
            return min(CHUNKS) if is_k_quant and self.columns % min(CHUNKS) == 0 else 0
        return next((chunk for chunk in CHUNKS if self.group % chunk == 0), 0)

    @property
    def size(self) -> int:
        """Bytes in the arena, at most."""
        rows = -(-self.rows // ROWS_PER_BLOCK) * ROWS_PER_BLOCK
        numbers = (self.zeros, self.scales, self.factors, self.offsets, self.offset_scales, self.row_scales)
        bytes_of_row = sum(part.nbytes // self.rows for part in numbers if part is not None)
        return rows * (self.columns * self.bits // 8 + bytes_of_row) + ARRAYS_PER_MATRIX * LINE_BYTES

    def span(self, numbers: NDArray[Any] | None) -> int:
        return self.columns if numbers is None else self.columns * self.rows // numbers.size


class _Source(ctypes.Structure):
    """`Source` of packed_matmul.cpp. `is_file`: the values are pages of a file, which are given back."""

    _fields_ = (
        *(
            (name, ctypes.c_size_t)
            for name in ("rows", "columns", "bits", "group", "chunk", "span", "offset_span")
        ),
        ("flip", ctypes.c_uint32),
        ("zero", ctypes.c_int32),
        ("is_file", ctypes.c_int32),
        ("is_float", ctypes.c_int32),
        ("offset_unit", ctypes.c_float),
        ("values", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in NUMBERS),
    )


class Library:
    """Calls into the library. An arena and a matrix are numbers, until they are released."""

    def __init__(self, file: Path) -> None:
        self._nodes = NodeFactory()
        try:
            self._library = ctypes.CDLL(str(file))
            self._nodes.add_extension(str(file))
        except (OSError, RuntimeError) as error:
            raise KernelError(str(error)) from error
        self._library.ovserve_arena.restype = self._library.ovserve_pack.restype = ctypes.c_int64

    def arena(self, size: int) -> int:
        """Reserve addresses for matrices of `size` bytes in all. Memory is used when it is written."""
        if not (handle := int(self._library.ovserve_arena(ctypes.c_size_t(size)))):
            raise MemoryError(f"no {size} bytes of addresses are left (ulimit -v)")
        return handle

    def pack(self, arena: int, weights: Weights, *, is_file: bool) -> int:
        """Copy a matrix into the arena, in the order of the kernels.

        Raises MemoryError if the arena is full, or if no function computes with the form.
        """
        fields = {
            name: getattr(weights, name) for name in ("rows", "columns", "bits", "group", "chunk", "zero")
        }
        fields |= {name: _address(getattr(weights, name)) for name in NUMBERS}
        kind = element_type(weights.values)
        source = _Source(
            **fields,
            span=weights.span(weights.scales),
            offset_span=weights.span(weights.offset_scales),
            flip=FLIP.get(kind, 0),
            is_file=is_file,
            is_float=kind == "f4e2m1",
            offset_unit=weights.offset_unit,
            values=_address(weights.values.data),
        )
        handle = self._library.ovserve_pack(ctypes.c_int64(arena), ctypes.byref(source))
        if not handle:
            raise MemoryError("the matrices are larger than their arena")
        return int(handle)

    def release(self, handle: int) -> None:
        """Forget a number. Operations and matrices that were made of it keep its memory."""
        self._library.ovserve_release(ctypes.c_int64(handle))

    def product(self, activations: openvino.Output, matrix: int) -> openvino.Node:
        """Return an operation: activations [..., columns] times the matrix, [..., rows], in f32."""
        return self._nodes.create("PackedMatMul", [activations], {"handle": matrix})

    def experts(
        self, activations: openvino.Output, ids: openvino.Output, matrix: int, experts: int
    ) -> openvino.Node:
        """Return an operation: activations, [tokens, columns] or [tokens, used, columns], times the rows of
        each token's experts, [tokens, used] of as many: [tokens, used, rows of an expert] in f32."""
        return self._nodes.create("PackedExperts", [activations, ids], {"handle": matrix, "experts": experts})

    def lookup(self, rows: openvino.Output, matrix: int) -> openvino.Node:
        """Return an operation: rows of the matrix by their numbers, [..., columns] in f32."""
        return self._nodes.create("PackedLookup", [rows], {"handle": matrix})

    def attention(self, inputs: list[openvino.Output], **attributes: float) -> openvino.Node:
        """Return the attention of sequences, [tokens, heads * size] in f32.

        `inputs` are described in `attention.h`. Attributes: `scale`, `window`, the tokens that one sees, or 0
        for all, `kv_heads`, and `layer`, whose caches are used.
        """
        return self._nodes.create("PagedAttention", inputs, attributes)


def element_type(node: Any) -> str:
    return str(node.get_output_element_type(0).get_type_name())


def _address(array: NDArray[Any] | None) -> ctypes.c_void_p | None:
    return None if array is None else ctypes.c_void_p(array.ctypes.data)


def open_library() -> Library:
    """Compile the kernels unless that was done, and load them. Raises KernelError."""
    package, cache = kernel_directories()
    for directory in (package, cache):
        if _is_safe(file := directory / _name()):
            return Library(file)
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Library(compile_into(cache))
    except OSError as error:
        raise KernelError(f"{cache}: {error}") from error


def compile_into(directory: Path) -> Path:
    """Return the compiled library in this directory. Raises KernelError."""
    compiler = find_compiler()
    if compiler is None:
        raise KernelError("there is no C++ compiler")
    free = memory()
    at_once = min(processor().logical, free.available // COMPILER_BYTES if free.available else len(SOURCES))
    if not at_once:
        raise KernelError(
            f"compiling takes {COMPILER_BYTES >> 20} MB, and the {free.limit} has {free.available >> 20}"
        )
    package = Path(openvino.__file__).parent
    libraries = [_only(package / "libs", f"{name}.so.*") for name in ("libopenvino", "libtbb")]
    target = directory / _name()
    options = ["-std=c++17", "-O3", "-fPIC", "-isystem", str(package / "include")]
    # Renamed when it is whole: several processes may compile at once.
    with scratch_directory(".compiling-", directory) as folder:
        with ThreadPoolExecutor(min(at_once, len(SOURCES))) as pool:
            list(pool.map(partial(_run, folder, compiler, *options, "-c"), SOURCES))
        objects = (f"{Path(source).stem}.o" for source in SOURCES)
        _run(folder, compiler, "-shared", *objects, "-o", target.name, *libraries)
        (library := Path(folder, target.name)).chmod(0o755)
        library.replace(target)
    return target


def _run(directory: Path, *command: str) -> None:
    bound = bound_command(command, descendants=True)
    try:
        ran = subprocess.run(bound, cwd=directory, capture_output=True, text=True, timeout=COMPILE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KernelError(f"{command[0]}: {error}") from error
    if ran.returncode:
        raise KernelError(f"{command[0]} failed: {' '.join(ran.stderr.split()[:60])}")


def _only(directory: Path, pattern: str) -> str:
    files = sorted(directory.glob(pattern))
    if not files:
        raise KernelError(f"OpenVINO's package has no {pattern}")
    return str(files[0])


def _name() -> str:
    sources = b"".join(path.read_bytes() for path in sorted(DIRECTORY.glob("*.[ch]*")))
    digest = hashlib.sha256(sources + openvino.get_version().encode()).hexdigest()
    return LIBRARY.replace("*", digest[:16])


def _is_safe(file: Path) -> bool:
    """Return whether there is a file that only we and root can have written."""
    try:
        stats = file.stat(), file.parent.stat()
    except OSError:
        return False
    return all(stat.st_uid in (0, os.geteuid()) and not stat.st_mode & OTHERS_MAY_WRITE for stat in stats)


if __name__ == "__main__":
    print(compile_into(DIRECTORY))  # noqa: T201
