"""Files: what clients upload for batches, and what batches write. Each is a row in the store and a file.

The name on disk is the id, never the client's name. A file without a row, or a row without a file, is what a
crash has left; `sweep` deletes both.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from ovserve.api.openai.batches import LIVING, File, FilePage
from ovserve.errors import (
    Conflict,
    InvalidArgument,
    NotFound,
    PayloadTooLarge,
    ResourceExhausted,
    Unavailable,
)
from ovserve.services.responses.store import ResponseStore, StoreError

ABANDONED_SECONDS = 3600.0  # a file without a row may be one that arrives
OUTPUT = "batch_output"
COLUMNS = "id, bytes, CAST(created AS INTEGER), CAST(expires AS INTEGER), filename, purpose"
INPUT_IN_USE = f"SELECT input FROM batches WHERE status IN {LIVING}"
STORE_OFF = "this server keeps no files and batches (--response_store off)"

T = TypeVar("T")

log = logging.getLogger(__name__)


class FileBounds(msgspec.Struct, frozen=True):
    """Sizes in bytes, times in seconds; 0: no bound, but of `file_bytes`."""

    file_bytes: int = 200 << 20
    store_bytes: int = 10 << 30
    owner_bytes: int = 0
    owner_files: int = 1000
    ttl: float = 30 * 24 * 3600.0


class Files:
    """Every method takes the `owner`: no one sees the files of others. `store` None: there are none."""

    def __init__(self, store: ResponseStore | None, bounds: FileBounds | None = None) -> None:
        self._store = store
        self.bounds = bounds or FileBounds()
        self._arriving: list[tuple[str, int]] = []  # owner and bytes

    @property
    def enabled(self) -> bool:
        return self._store is not None

    @property
    def store(self) -> ResponseStore:
        """Raises NotFound."""
        if self._store is None:
            raise NotFound(STORE_OFF)
        return self._store

    @property
    def directory(self) -> Path:
        """The directory of the files, which only this user may enter. Raises NotFound, Unavailable."""
        path = self.store.path.with_name(self.store.path.name + ".files")
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"files cannot be stored now: {error.strerror}") from error
        return path

    def path(self, id_: str) -> Path:
        return self.directory / id_

    @asynccontextmanager
    async def arriving(self, owner: str, size: int) -> AsyncIterator[None]:
        """Hold room for an upload while it arrives, so that many at once keep to the bounds too.

        Raises ResourceExhausted, Unavailable."""
        others = list(self._arriving)
        upload = owner, size
        self._arriving.append(upload)
        try:
            await stored(self.store.run(lambda db: self._require_room(db, *upload, others)))
            yield
        finally:
            self._arriving.remove(upload)

    async def full(self) -> frozenset[str] | None:
        """Return the owners who hold all that they may; None if the whole store is full."""
        held = await stored(self.store.run(_held))
        most, most_of_owner = self.bounds.store_bytes, self.bounds.owner_bytes
        if most and sum(held.values()) >= most:
            return None
        return frozenset(owner for owner, size in held.items() if most_of_owner and size >= most_of_owner)

    async def add(self, owner: str, source: Path, filename: str, size: int, seconds: float | None) -> File:
        """Take over an uploaded file, which must be in `directory`. `seconds`: until it expires.

        Raises PayloadTooLarge, ResourceExhausted, Unavailable."""
        if size > self.bounds.file_bytes:
            message = f"file: has {size} bytes, more than {self.bounds.file_bytes}"
            raise PayloadTooLarge(message, param="file")
        id_ = new_id("file-")
        await asyncio.to_thread(self._move, source, id_)  # a sync of 200 MB takes seconds

        def insert(db: sqlite3.Connection) -> File:
            db.execute("BEGIN IMMEDIATE")
            self._require_room(db, owner, size, ())
            return self.insert(db, owner, id_, "batch", filename, size, seconds)

        try:
            return await stored(self.store.run(insert))
        except BaseException:
            self.path(id_).unlink(missing_ok=True)
            raise

    def insert(
        self,
        db: sqlite3.Connection,
        owner: str,
        id_: str,
        purpose: str,
        filename: str,
        size: int,
        seconds: float | None,
    ) -> File:
        """Add the row of a file that is in its place; in the store's transaction."""
        now = time.time()
        expires = now + (self.bounds.ttl if seconds is None else seconds)
        db.execute(
            "INSERT INTO files (id, owner, purpose, filename, bytes, created, expires)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            (id_, owner, purpose, filename, size, now, expires),
        )
        return File(
            id=id_,
            bytes=size,
            created_at=int(now),
            expires_at=int(expires),
            filename=filename,
            purpose=purpose,
        )

    async def get(self, owner: str, id_: str) -> File:
        """Raises NotFound."""
        query = f"SELECT {COLUMNS} FROM files WHERE owner = ? AND id = ? AND expires > ?"
        row = await stored(self.store.run(lambda db: db.execute(query, (owner, id_, time.time())).fetchone()))
        if row is None:
            raise unknown_file(id_)
        return _file(row)

    async def page(
        self, owner: str, *, limit: int, order: str, after: str | None, purpose: str | None
    ) -> FilePage:
        """Raises InvalidArgument for an unknown `after`."""

        def select(db: sqlite3.Connection) -> list[tuple[str, int, int, int, str, str]]:
            where, values = ["owner = ?", "expires > ?"], [owner, time.time()]
            if purpose is not None:
                where, values = [*where, "purpose = ?"], [*values, purpose]
            if after is not None:
                number = db.execute(
                    "SELECT number FROM files WHERE owner = ? AND id = ?", (owner, after)
                ).fetchone()
                if number is None:
                    raise InvalidArgument.at("after", f"{after!r} is not a file of this key")
                where, values = [*where, f"number {'>' if order == 'asc' else '<'} ?"], [*values, number[0]]
            query = f"SELECT {COLUMNS} FROM files WHERE {' AND '.join(where)} ORDER BY number {order} LIMIT ?"
            return db.execute(query, (*values, limit + 1)).fetchall()

        files = [_file(row) for row in await stored(self.store.run(select))]
        page = files[:limit]
        first, last = (page[0].id, page[-1].id) if page else (None, None)
        return FilePage(data=page, first_id=first, last_id=last, has_more=len(files) > limit)

    async def delete(self, owner: str, id_: str) -> None:
        """A download in progress ends normally. Raises NotFound, and Conflict for the input of a batch that
        runs."""

        def delete(db: sqlite3.Connection) -> int:
            db.execute("BEGIN IMMEDIATE")
            query = f"SELECT 1 FROM files WHERE owner = ? AND id = ? AND id IN ({INPUT_IN_USE})"
            if db.execute(query, (owner, id_)).fetchone():
                raise Conflict(f"file {id_!r} is the input of a batch that runs", param="file_id")
            return db.execute("DELETE FROM files WHERE owner = ? AND id = ?", (owner, id_)).rowcount

        if not await stored(self.store.run(delete)):
            raise unknown_file(id_)
        self.path(id_).unlink(missing_ok=True)

    def sweep(self, db: sqlite3.Connection) -> None:
        """Delete what has expired and what a crash has left; on the store's thread."""
        now = time.time()
        db.execute(f"DELETE FROM files WHERE expires <= ? AND id NOT IN ({INPUT_IN_USE})", (now,))
        rows = {row[0] for row in db.execute("SELECT id FROM files")}
        on_disk = {path.name: path for path in self.directory.iterdir()}
        db.executemany("DELETE FROM files WHERE id = ?", [(id_,) for id_ in rows - on_disk.keys()])
        for name in on_disk.keys() - rows:
            try:
                if now - on_disk[name].stat().st_mtime > ABANDONED_SECONDS:
                    on_disk[name].unlink()
            except FileNotFoundError:
                continue  # another server on this store was faster

    def _require_room(
        self, db: sqlite3.Connection, owner: str, size: int, others: Collection[tuple[str, int]]
    ) -> None:
        """`others`: owners and sizes of uploads that arrive."""
        bounds = self.bounds
        mine = [upload for upload in others if upload[0] == owner]
        count = db.execute("SELECT count() FROM files WHERE owner = ?", (owner,)).fetchone()[0] + len(mine)
        if bounds.owner_files and count >= bounds.owner_files:
            raise ResourceExhausted(f"file: this key has {count} files, and may have {bounds.owner_files}")
        held = _held(db)
        for uploads, bytes_held, most, who in (
            (mine, held.get(owner, 0), bounds.owner_bytes, "this key"),
            (others, sum(held.values()), bounds.store_bytes, "the store"),
        ):
            bytes_held += sum(upload[1] for upload in uploads)
            if most and bytes_held + size > most:
                raise ResourceExhausted(
                    f"file: {size} bytes are too many: {who} holds {bytes_held} of {most} bytes; delete files"
                )

    def _move(self, source: Path, id_: str) -> None:
        try:
            with source.open("rb") as file:
                os.fsync(file.fileno())
            source.rename(self.path(id_))
        except OSError as error:
            raise Unavailable(f"the file cannot be stored now: {error.strerror}") from error


def _held(db: sqlite3.Connection) -> dict[str, int]:
    """Return the bytes of files, and of batches that have no files yet, by owner."""
    query = "SELECT owner, bytes FROM files UNION ALL SELECT owner, bytes FROM batches WHERE bytes"
    return dict(db.execute(f"SELECT owner, sum(bytes) FROM ({query}) GROUP BY owner"))


async def stored(work: Awaitable[T]) -> T:
    """Return what the store does. Raises Unavailable where it fails."""
    try:
        return await work
    except StoreError as error:
        log.error("files and batches: the store failed: %s", error)
        raise Unavailable("the store of files and batches cannot be used now") from error


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(16)


def unknown_file(id_: str, param: str = "file_id") -> NotFound:
    return NotFound.at(param, f"file {id_!r} not found")


def _file(row: tuple[str, int, int, int, str, str]) -> File:
    id_, size, created, expires, filename, purpose = row
    return File(
        id=id_, bytes=size, created_at=created, expires_at=expires, filename=filename, purpose=purpose
    )
