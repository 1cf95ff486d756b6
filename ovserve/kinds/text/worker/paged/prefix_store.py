"""A file of KV cache blocks, so that prompts are not computed again after a reload, a restart or an eviction.

`BlockPool` offers each block that becomes known. A thread copies it and writes it here. A prompt that the
pool does not know is looked up here, block by block.

The file is an array of slots, each with a header and a block: the keys and values of its tokens in all
layers. The header has the block's digest and a checksum of the whole slot. So a slot that was only partly
written, by a process that was killed or on a full disk, is a block that is not there. The least recently
used one goes first.

The name of the file has a digest of the model's weights, of the runtime's version and of the cache's
layout. With other ones the blocks would be wrong, so another file is begun and the old one is removed. One
process has the file at a time. While a reload has two, the new one goes without until the old one has
ended.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import struct
import sys
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ovserve.engine.host.cpu import below_the_steps
from ovserve.engine.host.memory import BYTES_PER_GIB
from ovserve.engine.protocol.specs import PagedTextSpec
from ovserve.errors import LoadError

HEADER = struct.Struct("<8s32sIq12x")  # mark, digest, checksum, time of the write in ns
MARK = b"ovskv\x00\x00\x01"
PAGE_BYTES = 4096  # slots begin at multiples of it
DISK_RESERVE_BYTES = 1 << 30  # that the file leaves free on its disk
RETRY_SECONDS = 1.0  # between two attempts to lock a file that another process has
SAMPLES, SAMPLE_BYTES = 64, 1 << 16  # of the weights: models of one size differ there


class PrefixStore:
    """`caches`: arrays [blocks, ...], one for keys and one for values of each layer."""

    def __init__(self, file: Path, max_bytes: int, caches: Sequence[NDArray[np.uint8]]) -> None:
        self._path, self._caches = file, caches
        self._slot_bytes = (
            -(-(HEADER.size + sum(cache[0].nbytes for cache in caches)) // PAGE_BYTES) * PAGE_BYTES
        )
        self._max_slots = max_bytes // self._slot_bytes
        self._file = -1
        self._next_attempt = 0.0
        self._slots: OrderedDict[bytes, int] = OrderedDict()  # by digest, the least recently used one first
        self._free: list[int] = []
        self._end = 0  # slots of the file
        self._full = False  # the disk is
        self._pending: OrderedDict[bytes, int] = OrderedDict()  # blocks that are to be written, by digest
        self._lock = threading.Lock()  # of the fields above, and of a block while it is copied
        self._offered = threading.Condition(self._lock)
        self._buffer = [np.empty_like(cache[0]) for cache in caches]
        self._open()
        threading.Thread(target=self._run, name="prefix store", daemon=True).start()

    # ---- the pool's side, on the thread of the steps

    def offer(self, digest: bytes, block: int) -> None:
        """Have a full block written, unless it is there."""
        with self._lock:
            if digest in self._slots:
                self._slots.move_to_end(digest)
            else:
                self._pending[digest] = block
                self._offered.notify()

    def withdraw(self, digest: bytes) -> None:
        """The block is about to get other contents. Waits while it is copied, for less than 1 ms."""
        with self._lock:
            self._pending.pop(digest, None)

    def touch(self, digests: Iterable[bytes]) -> None:
        """Record a use of blocks, the most important one last, also of those that were found in memory."""
        with self._lock:
            for digest in digests:
                if digest in self._slots:
                    self._slots.move_to_end(digest)

    def load(self, digest: bytes, block: int) -> bool:
        """Read into a block; return whether it was there and whole."""
        with self._lock:
            if (slot := self._slots.get(digest)) is None:
                return False
            views = [cache[block] for cache in self._caches]
            if self._read(slot, digest, views):
                return True
            del self._slots[digest]
            self._free.append(slot)
            return False

    def has(self, digest: bytes) -> bool:
        if self._file < 0:
            self._open()
        return digest in self._slots

    # ---- the file

    def _open(self) -> None:
        """Lock the file and read its headers; later again, if another process has it."""
        now = time.monotonic()
        if self._full or now < self._next_attempt:
            return
        self._next_attempt = now + RETRY_SECONDS
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self._give_up(error)
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            return
        with self._lock:
            self._file = file
            try:
                self._index()
            except OSError as error:
                self._give_up(error)
            self._offered.notify()

    def _index(self) -> None:
        size, max_size = os.fstat(self._file).st_size, self._max_slots * self._slot_bytes
        if size > max_size:  # the bound was a larger one
            os.ftruncate(self._file, max_size)
        self._end = -(-min(size, max_size) // self._slot_bytes)
        slots: list[tuple[int, bytes, int]] = []
        for slot in range(self._end):
            header = os.pread(self._file, HEADER.size, slot * self._slot_bytes)
            mark, digest, _, timestamp = HEADER.unpack(header.ljust(HEADER.size, b"\0"))
            if mark == MARK:
                slots.append((timestamp, digest, slot))
            else:
                self._free.append(slot)
        for _, digest, slot in sorted(slots):
            if (twin := self._slots.pop(digest, None)) is not None:
                self._free.append(twin)
            self._slots[digest] = slot

    def _read(self, slot: int, digest: bytes, views: list[NDArray[np.uint8]]) -> bool:
        header = bytearray(HEADER.size)
        try:
            count = os.preadv(self._file, [header, *(view.data for view in views)], slot * self._slot_bytes)
        except OSError as error:  # of a disk that is failing: the prompt is computed
            self._give_up(error)
            return False
        if count < HEADER.size + sum(view.nbytes for view in views):
            return False
        expected = MARK, digest, checksum(digest, views)
        return HEADER.unpack(header)[:3] == expected

    # ---- the thread that writes

    def _run(self) -> None:
        below_the_steps()
        while True:
            with self._lock:
                while self._file < 0 or not self._pending:
                    self._offered.wait()
                digest, block = self._pending.popitem(last=False)
                if self._full or digest in self._slots:
                    continue
                for buffer, cache in zip(self._buffer, self._caches, strict=True):
                    buffer[...] = cache[block]
                try:
                    slot = self._slot()
                except OSError as error:
                    self._give_up(error)
                    continue
            if slot is None:
                continue
            try:
                self._write(slot, digest)
            except OSError as error:
                self._give_up(error)
                continue
            with self._lock:
                if (twin := self._slots.pop(digest, None)) is not None:
                    self._free.append(twin)
                self._slots[digest] = slot

    def _slot(self) -> int | None:
        """Return a slot to write to: a free one, a new one, or the least recently used one."""
        if self._free:
            return self._free.pop()
        if self._end < self._max_slots and shutil.disk_usage(self._path.parent).free > DISK_RESERVE_BYTES:
            self._end += 1
            return self._end - 1
        return self._slots.popitem(last=False)[1] if self._slots else None

    def _write(self, slot: int, digest: bytes) -> None:
        place = slot * self._slot_bytes
        header = HEADER.pack(MARK, digest, checksum(digest, self._buffer), time.time_ns())
        size = len(header) + sum(part.nbytes for part in self._buffer)
        if os.pwritev(self._file, [header, *(part.data for part in self._buffer)], place) < size:
            raise OSError(f"only a part of {size} bytes was written")

    def _give_up(self, error: OSError) -> None:
        self._full = True
        print(f"prefixes are no longer written to {self._path}: {error}", file=sys.stderr)  # noqa: T201  this process's log


def checksum(digest: bytes, parts: Sequence[NDArray[np.uint8]]) -> int:
    crc = zlib.crc32(digest)
    for part in parts:
        crc = zlib.crc32(part.data, crc)
    return crc


def identity(weights: Path, layout: str) -> str:
    """Return a digest of a model's weights and of the layout of its cache.

    Of the weights the graph, size, time and samples count: reading all of 5 GB would take seconds.
    """
    digest = hashlib.blake2b(layout.encode(), digest_size=16)
    with suppress(OSError):
        digest.update(weights.with_suffix(".xml").read_bytes())
    status = weights.stat()
    digest.update(f"{status.st_size} {status.st_mtime_ns}".encode())
    with weights.open("rb") as file:
        for at in range(SAMPLES):
            file.seek(status.st_size * at // SAMPLES)
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def open_store(
    spec: PagedTextSpec, weights: Path, layout: str, cache_bytes: Callable[[], list[NDArray[np.uint8]]]
) -> PrefixStore | None:
    """Return the store of a graph, None if it has none. Raises LoadError."""
    if not spec.prefix_cache_path:
        return None
    # Of `deterministic` graphs, a block depends on the parts in which its prompt was computed.
    parts = spec.max_num_batched_tokens if spec.deterministic else 0
    try:
        file = store_file(Path(spec.prefix_cache_path), weights, f"{layout} {parts}")
    except OSError as error:
        raise LoadError(str(error), field="prefix_cache_path") from error
    return PrefixStore(file, spec.prefix_cache_size * BYTES_PER_GIB, cache_bytes())


def store_file(directory: Path, weights: Path, layout: str) -> Path:
    """Return the file of a model in `directory`, which is made. What earlier weights left is removed."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    place = hashlib.blake2b(str(weights.resolve()).encode(), digest_size=8).hexdigest()
    name = f"{place}-{identity(weights, layout)}.kv"
    for other in directory.glob(f"{place}-*.kv"):
        if other.name != name:
            with suppress(OSError), other.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails if an older version still serves
                other.unlink()
    return directory / name
