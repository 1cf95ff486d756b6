"""The files of models that this process has mapped, held against changes in place.

The libraries map weights. A program that writes into such a file (`cp`, `rsync --inplace`) changes the
weights of a served model. One that cuts it short ends the process with SIGBUS, and all models in it. So
each mapped file has a read lease of the kernel: whoever opens it for writing waits until this process has
copied what it has mapped into memory, in the same place, and given up the lease. That costs memory only where
a file is overwritten, and until the model is loaded anew. Files that are replaced (`mv`) need nothing of it.

Network file systems have no leases, and neither have files of another user. There, a process that many models
share copies the files at once; one with a single model copies small ones, and ends alone with its model
otherwise.

Source: https://man7.org/linux/man-pages/man2/fcntl_locking.2.html, section Leases, read 2026-11-26.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import mmap
import os
import signal
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from ovserve.engine.host.mappings import MADV_DONTNEED, Mapping, file_mappings
from ovserve.engine.host.memory import memory
from ovserve.engine.protocol.specs import Spec
from ovserve.errors import LoadError

BREAK_SIGNAL = signal.SIGRTMIN + 6 if sys.platform == "linux" else 0  # someone opens a file for writing
F_SETOWN_EX, F_OWNER_TID = 15, 0  # of fcntl.h; Python does not name them
MREMAP_MAYMOVE, MREMAP_FIXED = 1, 2  # of sys/mman.h
MAX_FILES = 1000  # of a model; a directory with more is not one
LEAST_BYTES = 1 << 12  # smaller files are read
WRITABLE = ".gguf"  # the library opens these for writing while it reads them, and copies their weights
COPIED_BYTES = 64 << 20  # of a file without a lease, for the only model of a process
READ_CHUNK = 64 << 20  # bytes that are read at once
# On these, a lease that is refused with EAGAIN means that the file is open for writing.
LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "overlay", "zfs"))

T = TypeVar("T")


class MappedFiles:
    """The leases of this process. To be made in the main thread."""

    def __init__(self) -> None:
        self._leases: dict[str, int] = {}  # descriptors, by path
        self._broken: set[str] = set()  # since they were leased
        self._loading = 0
        self._lock = threading.RLock()
        self._watcher = 0  # thread id
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = self._libc.mremap.restype = ctypes.c_void_p
        if sys.platform == "linux":
            for number in (BREAK_SIGNAL, signal.SIGIO):  # the watcher waits for them; elsewhere they end us
                signal.signal(number, signal.SIG_IGN)

    def guard(self, spec: Spec, load: Callable[[], T], *, shared: bool) -> T:
        """Return the result of `load`, with the files that it maps held against changes.

        Raises LoadError, to be tried again, for a file that is being written. `shared`: other models are in
        this process.
        """
        if sys.platform != "linux":
            return load()
        files = list(_files(spec.model_paths))
        with self._lock:
            self._loading += 1
        try:
            before = [(file, _identity(file)) for file in files]
            for file in files:
                self._lease(file)
            loaded = load()
            for file, identity in before:
                if file in self._broken or _identity(file) != identity:
                    raise _changing(file, "was written while it was loaded")
            self._hold(spec, {*files}, shared=shared)
            self._drop_pages({*files})
            return loaded
        finally:
            with self._lock:
                self._loading -= 1
                self._give_up_unmapped()

    def _hold(self, spec: Spec, files: set[str], *, shared: bool) -> None:
        """Lease what is mapped, or copy it. External data of ONNX has any name, next to the model."""
        beside = {
            os.path.realpath(os.path.dirname(path)) for path in spec.model_paths if os.path.isfile(path)
        }
        for mapping in list(file_mappings()):
            if mapping.path.endswith(WRITABLE):
                continue
            is_model_file = mapping.path in files or os.path.dirname(mapping.path) in beside
            if not is_model_file or ".so" in mapping.path or self._lease(mapping.path):
                continue
            if shared or mapping.end - mapping.start <= COPIED_BYTES:
                with suppress(FileNotFoundError):  # it was replaced, which changes nothing
                    descriptor = os.open(mapping.path, os.O_RDONLY)
                    try:
                        self._copy(mapping, descriptor)
                    finally:
                        os.close(descriptor)

    def _drop_pages(self, files: set[str]) -> None:
        """Unmap what was read for the load: the runtime has its own copy of most weights. It stays in the
        kernel's cache, but no longer counts as memory of this process, 2.1 GB for 3 B parameters. What is
        used again, such as the rows of the embedding, is mapped again."""
        with self._lock:  # a mapping that is being replaced by a copy would lose it
            for mapping in file_mappings():
                if mapping.path in files and "w" not in mapping.access:
                    self._libc.madvise(
                        ctypes.c_void_p(mapping.start),
                        ctypes.c_size_t(mapping.end - mapping.start),
                        MADV_DONTNEED,
                    )

    def _lease(self, path: str) -> bool:
        """Return whether there is a lease now. Raises LoadError if the file is open for writing."""
        if path.endswith(WRITABLE):
            return False
        with self._lock:
            if path in self._leases:
                return True
            self._start_watcher()
            self._broken.discard(path)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False
            try:
                fcntl.fcntl(descriptor, F_SETOWN_EX, struct.pack("ii", F_OWNER_TID, self._watcher))
                fcntl.fcntl(descriptor, fcntl.F_SETSIG, BREAK_SIGNAL)
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            except OSError as error:
                os.close(descriptor)
                if error.errno == errno.EAGAIN and _file_system(path) in LOCAL:
                    raise _changing(path, "is open for writing") from error
                return False
            self._leases[path] = descriptor
            return True

    def _start_watcher(self) -> None:
        if not self._watcher:
            ready = threading.Event()
            threading.Thread(target=self._watch, args=(ready,), name="leases", daemon=True).start()
            ready.wait()

    def _watch(self, ready: threading.Event) -> None:
        signals = (BREAK_SIGNAL, signal.SIGIO)
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        self._watcher = threading.get_native_id()
        ready.set()
        while True:
            signal.sigwaitinfo(signals)
            with self._lock:
                for path, descriptor in list(self._leases.items()):
                    if fcntl.fcntl(descriptor, fcntl.F_GETLEASE) == fcntl.F_UNLCK:
                        self._give_way(path, descriptor)

    def _give_way(self, path: str, descriptor: int) -> None:
        """Copy what is mapped of a file, and let its writer go on."""
        now = os.readlink(f"/proc/self/fd/{descriptor}")  # it may have been moved
        mapped = [mapping for mapping in file_mappings() if mapping.path == now]
        size = sum(mapping.end - mapping.start for mapping in mapped)
        try:
            if size:
                print(f"{path} is about to be overwritten: {size} bytes of it are copied into memory")  # noqa: T201
            available = memory().available
            if available and size > available:
                raise MemoryError(f"{available} bytes are free")
            for mapping in mapped:
                self._copy(mapping, descriptor)
        except (OSError, MemoryError) as error:
            print(f"{path} is overwritten, and cannot be copied: {error}", flush=True)  # noqa: T201
            os._exit(1)
        self._broken.add(path)
        self._give_up(path)

    def _give_up(self, path: str) -> None:
        os.close(self._leases.pop(path))

    def _give_up_unmapped(self) -> None:
        if self._loading:
            return
        mapped = {mapping.path for mapping in file_mappings()}
        for path, descriptor in list(self._leases.items()):
            if os.readlink(f"/proc/self/fd/{descriptor}") not in mapped:
                self._give_up(path)
        self._broken.clear()

    def _copy(self, mapping: Mapping, descriptor: int) -> None:
        """Put private memory with the same content in the place of a mapping.

        It is read from the file, because a read of one that was cut is short, and does not end the process.
        Raises OSError.
        """
        size = mapping.end - mapping.start
        new = self._mmap(size)
        view = memoryview((ctypes.c_char * size).from_address(new)).cast("B")
        if "w" in mapping.access:
            ctypes.memmove(new, mapping.start, size)
        else:
            position = 0
            while part := os.preadv(
                descriptor, [view[position : position + READ_CHUNK]], mapping.offset + position
            ):
                position += part
            if position + mmap.PAGESIZE <= size:
                raise OSError(errno.EIO, "it was cut short")
            self._libc.mprotect(ctypes.c_void_p(new), ctypes.c_size_t(size), mmap.PROT_READ)
        moved = self._libc.mremap(
            ctypes.c_void_p(new),
            ctypes.c_size_t(size),
            ctypes.c_size_t(size),
            MREMAP_MAYMOVE | MREMAP_FIXED,
            ctypes.c_void_p(mapping.start),
        )
        if moved != mapping.start:
            raise OSError(ctypes.get_errno(), "mremap")

    def _mmap(self, size: int) -> int:
        access = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        new = self._libc.mmap(None, ctypes.c_size_t(size), access, flags, -1, ctypes.c_long(0))
        if new in (None, ctypes.c_void_p(-1).value):
            raise OSError(ctypes.get_errno(), "mmap")
        return int(new)


def _changing(file: str, how: str) -> LoadError:
    return LoadError(f"{file} {how}; it is loaded once it has settled", transient=True)


def _files(paths: Iterable[str]) -> Iterator[str]:
    """Yield the files of models: a file and those next to it with its name, or those of a directory."""
    for path in paths:
        if os.path.isdir(path):
            candidates = (os.path.join(place, name) for place, _, names in os.walk(path) for name in names)
        else:
            beside = Path(path)
            candidates = (str(file) for file in beside.parent.glob(f"{glob.escape(beside.stem)}.*"))
        for count, file in enumerate(candidates):
            real = os.path.realpath(file)
            if count < MAX_FILES and os.path.isfile(real) and os.path.getsize(real) >= LEAST_BYTES:
                yield real


def _identity(file: str) -> tuple[int, ...]:
    try:
        stat = os.stat(file)
    except OSError:
        return ()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def _file_system(path: str) -> str:
    """Return the type of the file system that a file is on."""
    best, kind = "", ""
    with suppress(OSError), open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            left, _, right = line.partition(" - ")
            point = left.split()[4].encode().decode("unicode_escape")
            if len(point) >= len(best) and f"{path}/".startswith(f"{point.rstrip('/')}/"):
                best, kind = point, right.split()[0]
    return kind
