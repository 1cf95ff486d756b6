"""Large binary values between server and engine: in the frame if small, else in shared memory.

A frame is copied four times on its way (encode, write, read, decode), a shared segment once on each side.
A receiver that reads in place copies nothing. Making a segment costs more than these copies, because its
pages are new: 0.22 ms of the server against 0.11 for 110 kB, 1.6 against 1.0 for 1.2 MB (2026-11-22). So each
side keeps its segments and uses them again. The first byte of a kept segment says whether it is in use: the
sender sets it, and the receiver clears it when it has read the value.

Without a kept segment, a value up to FRAME_BYTES goes into the frame. A larger one gets a segment of its own,
whose name the receiver removes when it has mapped it.

`Segments.clear` removes all names of a connection; the server calls it when an engine process has ended. The
names begin with the pid of the server, so a starting server removes what a killed one has left.
"""

from __future__ import annotations

import itertools
import mmap
import os
import tempfile
import threading
from bisect import insort
from collections.abc import Iterable
from contextlib import suppress
from operator import itemgetter
from pathlib import Path

import msgspec

from ovserve.errors import Unavailable

INLINE_BYTES = 32 << 10
FRAME_BYTES = 2 << 20
KEPT_BYTES = 32 << 20  # of each side; half of what a container has as /dev/shm by default
STEP = 64 << 10  # sizes of kept segments are multiples of it
WASTE = 4  # a value may use a kept segment of so many times its size
HEADER = 64  # bytes before the value in a kept segment, so that tensors are aligned
PREFIX = "ovserve"


def _directory() -> Path:
    shared = Path("/dev/shm")  # memory-backed on Linux, and the only place for it
    return shared if shared.is_dir() and os.access(shared, os.W_OK) else Path(tempfile.gettempdir())


class SharedBlob(msgspec.Struct, tag="shared", frozen=True):
    """Bytes in a named shared memory segment, which may be `kept` for other values."""

    name: str
    size: int
    kept: bool = False


Blob = bytes | SharedBlob
Buffer = bytes | bytearray | memoryview


class Segments:
    """The segments of one side of an engine connection. `owner` is the pid of the server.

    `pack` may be called from any thread, the rest from one.
    """

    def __init__(self, owner: int, connection: str) -> None:
        self._directory = _directory()
        self.connection = connection
        self.stem = f"{PREFIX}-{owner}-{connection}-"
        self._numbers = itertools.count()
        self._kept: list[tuple[int, str]] = []  # room and name of those made here, sorted
        self._kept_bytes = 0
        self._mapped: dict[str, mmap.mmap] = {}  # kept ones of both sides
        self._lock = threading.Lock()

    def pack(self, data: Buffer) -> Blob:
        """Return the data in its form for the wire. Raises Unavailable when shared memory is full."""
        view = memoryview(data).cast("B")
        if view.nbytes <= INLINE_BYTES:
            return bytes(view)
        if name := self._idle(view.nbytes):
            self._mapped[name][HEADER : HEADER + view.nbytes] = view
            return SharedBlob(name, view.nbytes, kept=True)
        if view.nbytes <= FRAME_BYTES:
            return bytes(view)
        try:
            name, mapped = self._make(view.nbytes)
        except OSError as error:
            raise Unavailable(f"no shared memory for {view.nbytes} bytes: {error.strerror}") from error
        with mapped:
            mapped[:] = view
        return SharedBlob(name, view.nbytes)

    def unpack(self, blob: Blob, *, in_place: bool = False) -> memoryview:
        """Return the bytes, once. With `in_place`, those of a kept segment are valid until `free`.

        Raises FileNotFoundError for a segment that was removed.
        """
        if isinstance(blob, bytes):
            return memoryview(blob)
        if blob.kept:
            view = memoryview(self._map(blob.name))[HEADER : HEADER + blob.size]
            if in_place:
                return view
            copy = memoryview(bytes(view))
            self.free((blob,))
            return copy
        path = self._directory / blob.name
        descriptor = os.open(path, os.O_RDWR)
        try:
            path.unlink()
            return memoryview(mmap.mmap(descriptor, blob.size, access=mmap.ACCESS_COPY))
        finally:
            os.close(descriptor)

    def free(self, blobs: Iterable[Blob]) -> None:
        """Let kept segments be used again, and remove others that were not opened."""
        for blob in blobs:
            if isinstance(blob, SharedBlob):
                with suppress(FileNotFoundError):
                    if blob.kept:
                        self._map(blob.name)[0] = 0
                    else:
                        (self._directory / blob.name).unlink()

    def clear(self) -> None:
        """Remove the names of all segments, also of those that the other side never opened."""
        for path in self._directory.glob(self.stem + "*"):
            with suppress(FileNotFoundError):
                path.unlink()

    def _idle(self, size: int) -> str:
        """Take a kept segment that is not in use, or make one; return its name. Empty: there is none."""
        with self._lock:
            for room, name in self._kept:
                if size <= room <= max(STEP, size * WASTE) and not self._mapped[name][0]:
                    self._mapped[name][0] = 1
                    return name
            whole = -(-(size + HEADER) // STEP) * STEP
            if self._kept_bytes + whole > KEPT_BYTES:
                return ""
            try:
                name, mapped = self._make(whole)
            except OSError:
                return ""
            mapped[0] = 1
            self._mapped[name] = mapped
            self._kept_bytes += whole
            insort(self._kept, (whole - HEADER, name), key=itemgetter(0))
            return name

    def _make(self, size: int) -> tuple[str, mmap.mmap]:
        """Raises OSError."""
        name = f"{self.stem}{os.getpid()}-{next(self._numbers)}"
        path = self._directory / name
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            # Reserved first: a write to a mapping of full storage ends the process with SIGBUS.
            os.posix_fallocate(descriptor, 0, size)
            return name, mmap.mmap(descriptor, size)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)

    def _map(self, name: str) -> mmap.mmap:
        """Return a kept segment. Raises FileNotFoundError."""
        if (mapped := self._mapped.get(name)) is None:
            descriptor = os.open(self._directory / name, os.O_RDWR)
            try:
                mapped = self._mapped[name] = mmap.mmap(descriptor, 0)
            finally:
                os.close(descriptor)
        return mapped


def clear_abandoned() -> None:
    """Remove the segments of servers that no longer exist."""
    for path in _directory().glob(f"{PREFIX}-*"):
        owner = path.name.split("-")[1]
        if owner.isdigit() and not _alive(int(owner)):
            with suppress(OSError):  # another user's, or another server has removed it
                path.unlink()


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
