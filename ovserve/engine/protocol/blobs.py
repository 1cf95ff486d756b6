"""Large binary values between server and engine: in the frame if small, else in shared memory.

A frame is copied four times on its way (encode, write, read, decode), a shared segment once on each side.
A receiver that reads in place copies nothing. Making a segment costs more than these copies, because its
pages are new: 0.22 ms of the server against 0.11 for 110 kB, 1.6 against 1.0 for 1.2 MB (2026-11-22). So each
side keeps its segments and uses them again. The first byte of a kept segment says whether it is in use: the
sender sets it, and the receiver clears it when it has read the value.

Without a kept segment, a value up to FRAME_BYTES goes into the frame. A larger one gets a segment of its own,
whose name the receiver removes when it has mapped it. Where no room is left for one (Docker's /dev/shm has
64 MB by default), it goes into the frame all the same, up to SPILLED_BYTES of a message.

`Segments.clear` removes all names of a connection; the server calls it when an engine process has ended. A
starting server removes what a killed one has left. The lock file of each connection says which that is: the
kernel releases it with its server, whatever ended that, and in whichever container it was. A pid says less,
because containers that share /dev/shm count their processes from 1.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import mmap
import os
import tempfile
import threading
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from operator import itemgetter
from pathlib import Path

import msgspec

from ovserve.errors import Unavailable

INLINE_BYTES = 32 << 10
FRAME_BYTES = 2 << 20
SPILLED_BYTES = 128 << 20  # half of the largest frame
KEPT_BYTES = 32 << 20  # of each side; half of what a container has as /dev/shm by default
SIZE_STEP = 64 << 10  # sizes of kept segments are multiples of it
MAX_WASTE_RATIO = 4  # a value may use a kept segment of so many times its size
HEADER_BYTES = 64  # bytes before the value in a kept segment, so that tensors are aligned
PREFIX = "ovserve"
LOCK = "lock"  # ends the name of a lock file

log = logging.getLogger(__name__)


def _directory() -> Path:
    shared = Path("/dev/shm")  # memory-backed on Linux, and the only place for it
    if shared.is_dir() and os.access(shared, os.W_OK):
        return shared
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:  # none can be written: all values go into frames
        return shared


class SharedBlob(msgspec.Struct, tag="shared", frozen=True):
    """Bytes in a named shared memory segment, which may be `reusable` for other values."""

    name: str
    size: int
    reusable: bool = False


Blob = bytes | SharedBlob
Buffer = bytes | bytearray | memoryview


class Segments:
    """The segments of one side of an engine connection. `owner` is the pid of the server.

    `pack` may be called from any thread, the rest from one. The server's side calls `hold` first.
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
        self._held = -1  # descriptor of the lock file
        self._spilled = False  # a value had to go into the frame

    def hold(self) -> None:
        """Mark the connection as that of a living server, until `clear` or the end of this process."""
        path = self._directory / (self.stem + LOCK)
        with suppress(OSError):  # without a lock file, the pid in the names counts
            while self._held < 0:
                held = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
                fcntl.flock(held, fcntl.LOCK_EX)
                if _is_file(path, held):
                    self._held = held
                else:  # a starting server has removed it before it was locked
                    os.close(held)

    def pack_all(self, values: Iterable[Buffer]) -> tuple[Blob, ...]:
        """Return the values of one message in their form for the wire.

        Raises Unavailable when neither shared memory nor the frame has room for them.
        """
        packed: list[Blob] = []
        spilled = 0
        for value in values:
            blob = self.pack(value)
            spilled += len(blob) if isinstance(blob, bytes) and len(blob) > FRAME_BYTES else 0
            if spilled > SPILLED_BYTES:
                self.free(packed)
                raise Unavailable(
                    f"no shared memory for {spilled} bytes: {self._directory} is full, give it more room "
                    "(--shm-size of a container)"
                )
            packed.append(blob)
        return tuple(packed)

    def pack(self, data: Buffer) -> Blob:
        """Return the data in its form for the wire."""
        view = memoryview(data).cast("B")
        if view.nbytes <= INLINE_BYTES:
            return bytes(view)
        if name := self._idle(view.nbytes):
            self._mapped[name][HEADER_BYTES : HEADER_BYTES + view.nbytes] = view
            return SharedBlob(name, view.nbytes, reusable=True)
        if view.nbytes <= FRAME_BYTES:
            return bytes(view)
        try:
            name, mapped = self._make(view.nbytes)
        except OSError as error:
            if not self._spilled:
                self._spilled = True
                log.warning(
                    "%s: no room for %d bytes (%s): they are copied through a socket, which is slower; "
                    "--shm-size gives a container more", self._directory, view.nbytes, error.strerror,
                )  # fmt: skip
            return bytes(view)
        with mapped:
            mapped[:] = view
        return SharedBlob(name, view.nbytes)

    def unpack(self, blob: Blob, *, in_place: bool = False) -> memoryview:
        """Return the bytes, once. With `in_place`, those of a kept segment are valid until `free`.

        Raises FileNotFoundError for a segment that was removed.
        """
        if isinstance(blob, bytes):
            return memoryview(blob)
        if blob.reusable:
            view = memoryview(self._map(blob.name))[HEADER_BYTES : HEADER_BYTES + blob.size]
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
                    if blob.reusable:
                        self._map(blob.name)[0] = 0
                    else:
                        (self._directory / blob.name).unlink()

    def clear(self) -> None:
        """Remove the names of all segments, also of those that the other side never opened."""
        _remove(self._directory.glob(self.stem + "*"))
        if self._held >= 0:
            os.close(self._held)
            self._held = -1

    def _idle(self, size: int) -> str:
        """Take a kept segment that is not in use, or make one; return its name. Empty: there is none."""
        with self._lock:
            for room, name in self._kept:
                if size <= room <= max(SIZE_STEP, size * MAX_WASTE_RATIO) and not self._mapped[name][0]:
                    self._mapped[name][0] = 1
                    return name
            whole = -(-(size + HEADER_BYTES) // SIZE_STEP) * SIZE_STEP
            if self._kept_bytes + whole > KEPT_BYTES:
                return ""
            try:
                name, mapped = self._make(whole)
            except OSError:
                return ""
            mapped[0] = 1
            self._mapped[name] = mapped
            self._kept_bytes += whole
            insort(self._kept, (whole - HEADER_BYTES, name), key=itemgetter(0))
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
    connections: dict[tuple[str, str], list[Path]] = defaultdict(list)
    for path in _directory().glob(f"{PREFIX}-*-*-*"):
        owner, connection = path.name.split("-")[1:3]
        connections[owner, connection].append(path)
    for (owner, connection), paths in connections.items():
        lock = paths[0].with_name(f"{PREFIX}-{owner}-{connection}-{LOCK}")
        try:
            descriptor = os.open(lock, os.O_RDWR)
        except FileNotFoundError:
            if owner.isdigit() and not _alive(int(owner)):
                _remove(paths)
            continue
        except OSError:  # another user's
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_file(lock, descriptor):
                _remove(paths)
        except BlockingIOError:  # its server lives
            pass
        finally:
            os.close(descriptor)


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with suppress(OSError):  # another user's, or it has been removed
            path.unlink()


def _is_file(path: Path, descriptor: int) -> bool:
    """Return whether the path still leads to this open file."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
