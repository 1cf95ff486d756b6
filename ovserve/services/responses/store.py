"""ResponseStore: one SQLite file, written and read by one thread, off the event loop.

With one thread, a read sees every earlier write, and no stream waits for the disk. WAL with synchronous
NORMAL: a kill -9 loses nothing that was committed, a power cut at most the last moments.

The size is bounded. Responses not used for `ttl` seconds are deleted. When the file is over `max_bytes`, the
owner that holds most loses its least recently used ones, so no owner evicts those of others by storing much.
No owner may hold more than `max_bytes_per_owner`. Several servers may share a file. Each holds a lock on a
file of its own, so the next one to start knows whose running responses have lost their server.

A fault (disk full, no permission, a broken file) raises StoreError. A broken file is moved aside, and the
next call tries again. So a store may fail without failing any answer.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
import sqlite3
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TypeVar

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, expires REAL NOT NULL,
    server TEXT NOT NULL, previous TEXT, body BLOB NOT NULL, input BLOB NOT NULL, log BLOB
);
CREATE INDEX IF NOT EXISTS responses_expires ON responses (expires);
CREATE INDEX IF NOT EXISTS responses_server ON responses (server) WHERE server != '';
CREATE TABLE IF NOT EXISTS items (
    owner TEXT NOT NULL, id TEXT NOT NULL, response TEXT NOT NULL REFERENCES responses ON DELETE CASCADE,
    PRIMARY KEY (owner, id)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS items_response ON items (response);
CREATE TABLE IF NOT EXISTS parts (
    number INTEGER PRIMARY KEY, log BLOB NOT NULL,
    response TEXT NOT NULL REFERENCES responses ON DELETE CASCADE
);
CREATE INDEX IF NOT EXISTS parts_response ON parts (response);
CREATE INDEX IF NOT EXISTS responses_owner ON responses (owner, expires);
CREATE TABLE IF NOT EXISTS cancels (
    response TEXT PRIMARY KEY REFERENCES responses ON DELETE CASCADE
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
    purpose TEXT NOT NULL, filename TEXT NOT NULL, bytes INTEGER NOT NULL,
    created REAL NOT NULL, expires REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS files_owner ON files (owner, number);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
    status TEXT NOT NULL, server TEXT NOT NULL, input TEXT NOT NULL, retry_key TEXT,
    bytes INTEGER NOT NULL DEFAULT 0, body BLOB NOT NULL, UNIQUE (owner, retry_key)
);
CREATE INDEX IF NOT EXISTS batches_owner ON batches (owner, number);
CREATE INDEX IF NOT EXISTS batches_status ON batches (status);
CREATE TABLE IF NOT EXISTS batch_lines (
    batch INTEGER NOT NULL REFERENCES batches ON DELETE CASCADE, line INTEGER NOT NULL,
    start INTEGER NOT NULL, size INTEGER NOT NULL, custom_id TEXT NOT NULL, prefix BLOB,
    deaths INTEGER NOT NULL DEFAULT 0, status INTEGER, result BLOB,
    PRIMARY KEY (batch, line), UNIQUE (batch, custom_id)
);
"""
# Bytes by owner, kept by triggers: summing them up anew would read the whole table with every response.
SIZE = "length({0}.body) + length({0}.input) + ifnull(length({0}.log), 0)"
USAGE = f"""
CREATE TABLE usage (owner TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO usage SELECT owner, sum({SIZE.format("responses")}) FROM responses GROUP BY owner;
CREATE TRIGGER usage_insert AFTER INSERT ON responses BEGIN
    INSERT INTO usage VALUES (new.owner, {SIZE.format("new")})
    ON CONFLICT (owner) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER usage_update AFTER UPDATE OF body, input, log ON responses BEGIN
    UPDATE usage SET bytes = bytes + {SIZE.format("new")} - ({SIZE.format("old")}) WHERE owner = new.owner;
END;
CREATE TRIGGER usage_delete AFTER DELETE ON responses BEGIN
    UPDATE usage SET bytes = bytes - ({SIZE.format("old")}) WHERE owner = old.owner;
    DELETE FROM usage WHERE owner = old.owner AND bytes <= 0;
END;
"""
COLUMNS = "id, owner, created, server, previous, body, input, log"


@dataclass(frozen=True)
class Record:
    """One response. `server` is the instance that still generates it, "" once it has ended."""

    id: str
    owner: str
    created: float
    server: str
    previous: str | None
    body: bytes  # the response object, JSON
    input: bytes  # its own input items, a JSON array
    log: bytes | None = None  # the events of a streamed response


class StoreError(Exception):
    """The store cannot do this now; the message says why."""


def connect(path: Path) -> sqlite3.Connection:
    """Open the file, or make it. Raises StoreError for one of another version, or sqlite3.Error."""
    # conversations are private; SQLite's own files next to it take over the mode
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    db = sqlite3.connect(path, timeout=5.0, check_same_thread=False)
    try:
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA journal_size_limit = 4194304")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, SCHEMA_VERSION):
            raise StoreError(f"{path}: written by another version (schema {version})")
        db.executescript(SCHEMA)
        _count_usage(db)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    except BaseException:
        db.close()
        raise
    return db


def _count_usage(db: sqlite3.Connection) -> None:
    """Once for each file; several servers may open it at the same time."""
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'usage'").fetchone() is None:
        try:
            db.executescript(f"BEGIN IMMEDIATE; {USAGE} COMMIT;")
        except sqlite3.OperationalError:
            db.rollback()
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'usage'").fetchone() is None:
                raise


T = TypeVar("T")

MAX_CHAIN = 10_000
PURGE_SECONDS = 60.0
ROOM_RATIO = 0.9  # of max_bytes is left after making room, so that not every write has to
BROKEN = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class ResponseStore:
    def __init__(self, path: Path, *, ttl: float, max_bytes: int, max_bytes_per_owner: int = 0) -> None:
        """`max_bytes_per_owner` 0: an owner has no bound of its own."""
        self.path, self.ttl, self.max_bytes = path, ttl, max_bytes
        self.max_bytes_per_owner = max_bytes_per_owner or max_bytes
        self.instance = secrets.token_hex(8)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="response-store")
        self._db: sqlite3.Connection | None = None
        self._lock: IO[bytes] | None = None
        self._purged = 0.0

    # -- what the service calls; every coroutine may raise StoreError

    async def check(self) -> None:
        """Open the file and write to it. A broken one is moved aside first."""

        def write(db: sqlite3.Connection) -> None:
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

        try:
            await self._call(write)
        except StoreError:
            if self._db is not None or self.path.exists():
                raise
            await self._call(write)  # it was moved aside

    async def put(self, record: Record, item_ids: Sequence[str] = (), *, again: bool = False) -> None:
        """Write or replace. `item_ids` are what `find_item` finds it by. `again`: it was written before, and
        stays away if it was deleted since, here or through another server."""

        def put(db: sqlite3.Connection) -> None:
            query = "SELECT 1 FROM responses WHERE id = ?"
            if not again or db.execute(query, (record.id,)).fetchone():
                self._put(db, record, item_ids)

        await self._call(put)

    async def append(self, parts: Mapping[str, bytes]) -> None:
        """Add to the events of responses that run here, by id; put() at their end replaces them."""

        def append(db: sqlite3.Connection) -> None:
            self._make_room(db)
            query = (
                "INSERT INTO parts (response, log) SELECT id, ? FROM responses WHERE id = ? AND server = ?"
            )
            db.executemany(query, [(part, id_, self.instance) for id_, part in parts.items()])

        await self._call(append)

    async def get(self, owner: str, id_: str) -> Record | None:
        return await self._call(lambda db: self._get(db, owner, id_))

    async def delete(self, owner: str, id_: str) -> bool:
        def delete(db: sqlite3.Connection) -> bool:
            return db.execute("DELETE FROM responses WHERE owner = ? AND id = ?", (owner, id_)).rowcount > 0

        return await self._call(delete)

    async def chain(self, owner: str, id_: str) -> list[Record]:
        """A response and those before it, the oldest first; a missing one ends it early. Marks them used."""
        return await self._call(lambda db: self._chain(db, owner, id_))

    async def find_item(self, owner: str, item_id: str) -> Record | None:
        """The response that has this item in its input or output."""

        def find(db: sqlite3.Connection) -> Record | None:
            query = "SELECT response FROM items WHERE owner = ? AND id = ?"
            row = db.execute(query, (owner, item_id)).fetchone()
            return self._get(db, owner, row[0]) if row else None

        return await self._call(find)

    async def orphans(self) -> list[Record]:
        """Responses said to be running on servers that are gone, with the events they got to write."""
        return await self._call(self._orphans)

    async def request_cancel(self, owner: str, id_: str) -> None:
        """Ask the server that runs this response to end it."""
        running = "SELECT id FROM responses WHERE owner = ? AND id = ? AND server != ''"
        query = f"INSERT OR IGNORE INTO cancels {running}"
        await self._call(lambda db: db.execute(query, (owner, id_)))

    async def cancels(self) -> list[str]:
        """Responses that run here and that another server was asked to cancel; each is returned once."""

        def take(db: sqlite3.Connection) -> list[str]:
            mine = "SELECT id FROM responses WHERE server = ?"
            query = f"SELECT response FROM cancels WHERE response IN ({mine})"
            ids = [row[0] for row in db.execute(query, (self.instance,))]
            if ids:
                db.executemany("DELETE FROM cancels WHERE response = ?", [(id_,) for id_ in ids])
            return ids

        return await self._call(take)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run other work on the file, in one transaction."""
        return await self._call(work)

    async def close(self) -> None:
        def close() -> None:
            if self._db is not None:
                self._db.close()
            if self._lock is not None:
                self._lock_path(self.instance).unlink(missing_ok=True)
                self._lock.close()

        await asyncio.get_running_loop().run_in_executor(self._thread, close)
        self._thread.shutdown()

    # -- on the thread

    async def _call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, work)

    def _guarded(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            if self._db is None:
                self._db = self._open()
            with self._db:  # one transaction
                return work(self._db)
        except sqlite3.Error as exc:
            if getattr(exc, "sqlite_errorcode", 0) & 0xFF in BROKEN:
                self._move_aside(str(exc))
            raise StoreError(f"{self.path}: {exc}") from exc
        except OSError as exc:
            raise StoreError(f"{self.path}: {exc.strerror or exc}") from exc

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._lock is None:
            self._lock = self._lock_path(self.instance).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return connect(self.path)

    def _move_aside(self, why: str) -> None:
        """A broken file is kept for whoever wants to look, and a new one begun."""
        if self._db is not None:
            self._db.close()
            self._db = None
        aside = self.path.with_name(f"{self.path.name}.broken-{int(time.time())}")
        log.error("%s is broken (%s); it is now %s, and a new one is begun", self.path, why, aside.name)
        try:
            self.path.rename(aside)
            for suffix in ("-wal", "-shm"):
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        except OSError as exc:
            log.error("cannot move %s aside: %s", self.path, exc)

    def _put(self, db: sqlite3.Connection, record: Record, item_ids: Sequence[str]) -> None:
        packed = None if record.log is None else zlib.compress(record.log, 1)
        size = len(record.body) + len(record.input) + len(packed or b"")
        most = min(self.max_bytes, self.max_bytes_per_owner)
        if size > most // 4:
            raise StoreError(f"{record.id} has {size} bytes, more than a quarter of {most}")
        self._make_room(db)
        self._hold_to_quota(db, record.owner, size)
        now = time.time()
        db.execute(
            "INSERT INTO responses (id, owner, created, expires, server, previous, body, input, log)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET expires = excluded.expires,"
            " server = excluded.server, body = excluded.body, input = excluded.input, log = excluded.log",
            (
                record.id, record.owner, record.created, now + self.ttl, record.server, record.previous,
                record.body, record.input, packed,
            ),
        )  # fmt: skip
        if not record.server:
            db.execute("DELETE FROM parts WHERE response = ?", (record.id,))
        db.executemany(
            "INSERT OR IGNORE INTO items (owner, id, response) VALUES (?, ?, ?)",
            [(record.owner, item_id, record.id) for item_id in item_ids],
        )

    def _make_room(self, db: sqlite3.Connection) -> None:
        now = time.time()
        if now - self._purged >= PURGE_SECONDS:
            self._purged = now
            db.execute("DELETE FROM responses WHERE expires <= ? AND server = ''", (now,))
        if self._num_bytes(db) <= self.max_bytes:
            return
        while self._num_bytes(db) > self.max_bytes * ROOM_RATIO:
            owners = db.execute("SELECT owner FROM usage ORDER BY bytes DESC").fetchall()
            if not any(self._evict(db, owner) for (owner,) in owners):
                break
        db.execute("PRAGMA incremental_vacuum").fetchall()

    def _hold_to_quota(self, db: sqlite3.Connection, owner: str, size: int) -> None:
        query = "SELECT bytes FROM usage WHERE owner = ?"
        while (row := db.execute(query, (owner,)).fetchone()) and row[0] + size > self.max_bytes_per_owner:
            if not self._evict(db, owner):
                break

    def _evict(self, db: sqlite3.Connection, owner: str) -> bool:
        """Delete what the owner used longest ago; False if there is nothing that has ended."""
        oldest = "SELECT id FROM responses WHERE owner = ? AND server = '' ORDER BY expires LIMIT 4"
        return db.execute(f"DELETE FROM responses WHERE id IN ({oldest})", (owner,)).rowcount > 0

    def _num_bytes(self, db: sqlite3.Connection) -> int:
        pages, free, size = (
            int(db.execute(f"PRAGMA {name}").fetchone()[0])
            for name in ("page_count", "freelist_count", "page_size")
        )
        batches = db.execute("SELECT total(bytes) FROM batches").fetchone()[0]  # evicting would not help
        return (pages - free) * size - int(batches)

    def _get(self, db: sqlite3.Connection, owner: str, id_: str) -> Record | None:
        query = f"SELECT {COLUMNS} FROM responses WHERE owner = ? AND id = ? AND expires > ?"
        row = db.execute(query, (owner, id_, time.time())).fetchone()
        return None if row is None else _record(row)

    def _chain(self, db: sqlite3.Connection, owner: str, id_: str) -> list[Record]:
        records: list[Record] = []
        next_: str | None = id_
        while next_ is not None and len(records) < MAX_CHAIN:
            record = self._get(db, owner, next_)
            if record is None:
                break
            records.append(record)
            next_ = record.previous
        expires = time.time() + self.ttl
        db.executemany("UPDATE responses SET expires = ? WHERE id = ?", [(expires, r.id) for r in records])
        return records[::-1]

    def _orphans(self, db: sqlite3.Connection) -> list[Record]:
        servers = {row[0] for row in db.execute("SELECT DISTINCT server FROM responses WHERE server != ''")}
        locks = self.path.parent.glob(f"{self.path.name}.*.lock")  # those of the dead are swept up here
        servers |= {path.name.split(".")[-2] for path in locks}
        dead = [s for s in servers if s != self.instance and not self.alive(s)]
        marks = ", ".join("?" * len(dead))
        rows = db.execute(f"SELECT {COLUMNS} FROM responses WHERE server IN ({marks})", dead).fetchall()
        return [replace(_record(row), log=self._parts(db, row[0])) for row in rows]

    def _parts(self, db: sqlite3.Connection, id_: str) -> bytes | None:
        rows = db.execute("SELECT log FROM parts WHERE response = ? ORDER BY number", (id_,))
        return b"".join(row[0] for row in rows) or None

    def _lock_path(self, instance: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{instance}.lock")

    def alive(self, instance: str) -> bool:
        """Return whether a server lives: it holds its lock until it ends in any way. Only within `run`."""
        path = self._lock_path(instance)
        try:
            with path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink(missing_ok=True)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False


def _record(row: tuple[str, str, float, str, str | None, bytes, bytes, bytes | None]) -> Record:
    packed = row[-1]
    return Record(*row[:-1], None if packed is None else zlib.decompress(packed))
