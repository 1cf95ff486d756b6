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


class KernelError(Exception):
    """The kernels cannot be had, with the reason."""


class Source(NamedTuple):
    """A matrix. A weight is `scale * (value - zero) + offset`.

    A scale is a number in f16 for `span` columns, times a factor for each group if there are any; without
    scales it is that of the row. Of values in E2M1 the factors are exponents, E8M0. An offset is a number of
    its group times one in f16 for `offset_span`.
    """

    rows: int
    columns: int
    bits: int
    group: int  # columns that share a factor, a zero point or an offset
    chunk: int  # columns whose activations share a scale
    span: int
    offset_span: int
    flip: int  # bits of four bytes of values that are turned over, which makes signed ones unsigned
    zero: int  # of all groups, without `zeros`
    is_file: bool  # the values are pages of a file, which are given back
    is_float: bool  # values are E2M1, which the kernels make twice that plus 12, and factors E8M0
    offset_unit: float  # times `offset_scales`, which may be too small for f16
    values: NDArray[Any]  # packed, row by row; of 5 bits the low four
    high: NDArray[np.uint8] | None  # the fifth bits, packed
    scales: NDArray[np.float16] | None  # [rows, columns / span]
    factors: NDArray[np.int8] | None  # [rows, columns / group]
    zeros: NDArray[np.float16] | None  # [rows, columns / group]
    offsets: NDArray[np.int8] | None  # [rows, columns / group]
    offset_scales: NDArray[np.float16] | None  # [rows, columns / offset_span]
    row_scales: NDArray[np.float32] | None  # [rows]


class _Source(ctypes.Structure):
    """`Source` of packed_matmul.cpp."""

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
        *((name, ctypes.c_void_p) for name in Source._fields[-8:]),
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

    def pack(self, arena: int, source: Source) -> int:
        """Copy a matrix into the arena, in the order of the kernels.

        Raises MemoryError if the arena is full, or if no function computes with the form.
        """
        fields = {
            name: _address(value) if value is None or isinstance(value, np.ndarray) else value
            for name, value in source._asdict().items()
        }
        handle = self._library.ovserve_pack(ctypes.c_int64(arena), ctypes.byref(_Source(**fields)))
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
