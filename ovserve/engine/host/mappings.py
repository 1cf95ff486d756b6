"""The files that this process has mapped."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Iterator
from typing import NamedTuple

MADV_DONTNEED = 4  # of sys/mman.h


class Mapping(NamedTuple):
    """A range of addresses. `access` is as "r--s", and `path` as the kernel writes it."""

    start: int
    end: int
    access: str
    offset: int
    path: str


def file_mappings() -> Iterator[Mapping]:
    """Yield what is mapped and cannot be executed."""
    with open("/proc/self/maps") as lines:
        for line in lines.readlines():
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith("/") and "x" not in fields[1]:
                start, _, end = fields[0].partition("-")
                path = fields[5].replace("\\012", "\n")
                yield Mapping(int(start, 16), int(end, 16), fields[1], int(fields[2], 16), path)


def is_in_a_file(mappings: Iterable[Mapping], start: int, size: int) -> bool:
    """Return whether a range is of a file whose pages can be read again."""
    return any(
        mapping.start <= start and start + size <= mapping.end and "w" not in mapping.access
        for mapping in mappings
    )


def unmap_pages(mappings: Iterable[Mapping], start: int, size: int) -> None:
    """Give back the whole pages of these files within this range. They are read again when they are used."""
    for mapping in mappings:
        first = max(start, mapping.start) + mmap.PAGESIZE - 1 & -mmap.PAGESIZE
        last = min(start + size, mapping.end) & -mmap.PAGESIZE
        if first < last and "w" not in mapping.access:  # of private memory, the content would be lost
            ctypes.CDLL(None).madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_DONTNEED)
