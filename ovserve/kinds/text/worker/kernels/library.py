"""The compiled form of `packed_matmul.cpp`, and calls into it.

It is compiled on the machine that uses it, because it has OpenVINO's classes in it, which differ from release
to release. That takes a compiler and 6 s, once. Without a compiler OpenVINO's own kernels compute. For an
image of a container, `python -m ovserve.kinds.text.worker.kernels.library` leaves it next to this file.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino.utils.node_factory import NodeFactory

from ovserve.engine.host.kernels import LIBRARY, find_compiler, kernel_directories
from ovserve.engine.host.memory import memory

SOURCE = Path(__file__).with_name("packed_matmul.cpp")
COMPILE_TIMEOUT_SECONDS = 120
COMPILER_BYTES = 512 << 20  # of memory; g++ 12 takes 0.3 GB
OTHERS_MAY_WRITE = 0o022


class KernelError(Exception):
    """The kernels cannot be had, with the reason."""


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
            raise MemoryError(f"{size} bytes of addresses")
        return handle

    def pack(
        self,
        arena: int,
        shape: tuple[int, int],
        bits: int,
        group: int,
        chunk: int,
        *,
        flip: int,
        zero: int,
        values: NDArray[Any],
        scales: NDArray[np.float16] | None,
        zeros: NDArray[np.float16] | None,
        offsets: NDArray[np.int8] | None,
        row_scales: NDArray[np.float32] | None,
    ) -> int:
        """Copy a matrix [rows, columns] into the arena, in the order of the kernels.

        `group` columns share a scale, and `chunk` share one of activations. `values` are packed, row by row,
        and unsigned after an exclusive or with `flip`. A weight is
        `scale * (value - zero) + offset * row_scale`, with `row_scale` in place of `scale` where there are no
        scales. `row_scales` have shape [rows], and the others [rows, groups].
        """
        rows, columns = shape
        handle = self._library.ovserve_pack(
            ctypes.c_int64(arena),
            *map(ctypes.c_size_t, (rows, columns, bits, group, chunk)),
            ctypes.c_uint32(flip),
            ctypes.c_int32(zero),
            *map(_address, (values, scales, zeros, offsets, row_scales)),
        )
        if not handle:
            raise MemoryError("the matrices are larger than their arena")
        return int(handle)

    def release(self, handle: int) -> None:
        """Forget a number. Operations and matrices that were made of it keep its memory."""
        self._library.ovserve_release(ctypes.c_int64(handle))

    def product(self, activations: openvino.Output, matrix: int, *, narrow: bool = False) -> openvino.Node:
        """Return an operation: activations [..., columns] times the matrix, [..., rows], in f32. `narrow`:
        with AVX2 alone."""
        return self._nodes.create("PackedMatMul", [activations], {"handle": matrix, "narrow": narrow})

    def decode_attention(self, inputs: list[openvino.Output], *, scale: float, window: int) -> openvino.Node:
        """Return the attention of one token of each sequence, [tokens, heads * size] in f32.

        `inputs` are described in `decode_attention.h`. `window`: tokens that one sees; 0: all.
        """
        return self._nodes.create("DecodeAttention", inputs, {"scale": scale, "window": window})


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
    if free.available and free.available < COMPILER_BYTES:
        raise KernelError(
            f"compiling takes {COMPILER_BYTES >> 20} MB, and the {free.limit} has {free.available >> 20}"
        )
    package = Path(openvino.__file__).parent
    libraries = [_only(package / "libs", f"{name}.so.*") for name in ("libopenvino", "libtbb")]
    target = directory / _name()
    # Renamed when it is whole: several processes may compile at once.
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        library = Path(folder, target.name)
        command = [compiler, "-std=c++17", "-O3", "-fPIC", "-shared", "-isystem", str(package / "include")]
        command += [str(SOURCE), "-o", str(library), *libraries]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise KernelError(f"{compiler}: {error}") from error
        if result.returncode:
            raise KernelError(f"{compiler} failed: {' '.join(result.stderr.split()[:60])}")
        library.chmod(0o755)
        library.replace(target)
    return target


def _only(directory: Path, pattern: str) -> str:
    files = sorted(directory.glob(pattern))
    if not files:
        raise KernelError(f"OpenVINO's package has no {pattern}")
    return str(files[0])


def _name() -> str:
    sources = b"".join(path.read_bytes() for path in sorted(SOURCE.parent.glob("*.[ch]*")))
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
    print(compile_into(SOURCE.parent))  # noqa: T201
