"""The file of stored responses, files and batches: a record, the tables, the triggers that count bytes, and
how it is opened."""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path

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
