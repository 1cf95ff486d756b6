"""The rows of batches and of their lines. Every change is one transaction of the store.

A batch belongs to the server that is named in its row. A server changes only what belongs to it, so one that
was taken for dead cannot write a second result. A line has one result: a row that has one stays as it is.
"""

from __future__ import annotations

import sqlite3
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from ovserve.api.openai.batches import LIVING, Batch, BatchPage, BatchUsage, Status
from ovserve.errors import Conflict, InvalidArgument, NotFound
from ovserve.services.responses.store import ResponseStore

ROW_BYTES = 200  # of a line, besides its prefix
RESULT_ROWS = 50  # read at once


class BatchRecord(msgspec.Struct, kw_only=True):
    """The body of a row: the batch as its owner sees it, and what else the server knows of it."""

    batch: Batch
    output_seconds: float | None = None  # until its files expire
    digest: str = ""  # of the request that made it, for Idempotency-Key
    ends_as: Status = "completed"
    files: tuple[str, str] = ("", "")  # ids of output and errors, decided before they are written


class Claimed(NamedTuple):
    """A batch that this server is to run."""

    number: int
    owner: str
    record: BatchRecord


class InputLine(NamedTuple):
    """The place of a line in the input file, in bytes. `prefix`: the beginning of its prompt."""

    line: int  # from 1
    start: int
    size: int
    custom_id: str
    prefix: bytes


class Place(NamedTuple):
    """A line of the input file, in bytes. `deaths`: of engines that had nothing but this line."""

    line: int
    start: int
    size: int
    deaths: int = 0


@dataclass
class Places:
    """Lines without a result, the next one last: 16 bytes each."""

    lines: array[int] = field(default_factory=lambda: array("I"))
    starts: array[int] = field(default_factory=lambda: array("Q"))
    sizes: array[int] = field(default_factory=lambda: array("I"))

    def __len__(self) -> int:
        return len(self.lines)

    def append(self, place: Place) -> None:
        self.lines.append(place.line)
        self.starts.append(place.start)
        self.sizes.append(place.size)

    def pop(self) -> Place:
        return Place(self.lines.pop(), self.starts.pop(), self.sizes.pop())


class Finished(NamedTuple):
    line: int
    succeeded: bool
    result: bytes
    usage: BatchUsage


class NotOurs(Exception):
    """The batch belongs to another server now, or is gone."""


class Batches:
    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    # ---- for clients

    async def insert(self, owner: str, record: BatchRecord, retry_key: str | None) -> Batch:
        """Add a batch, or return the one that the same request has made. Raises Conflict, NotFound."""

        def insert(db: sqlite3.Connection) -> Batch:
            db.execute("BEGIN IMMEDIATE")
            if retry_key is not None:
                query = "SELECT body FROM batches WHERE owner = ? AND retry_key = ?"
                if row := db.execute(query, (owner, retry_key)).fetchone():
                    earlier = _decode(row[0])
                    if earlier.digest != record.digest:
                        raise Conflict("Idempotency-Key: was used for a batch with other values")
                    return earlier.batch
            batch = record.batch
            db.execute(
                "INSERT INTO batches (id, owner, status, server, input, retry_key, body)"
                " VALUES (?, ?, ?, '', ?, ?, ?)",
                (batch.id, owner, batch.status, batch.input_file_id, retry_key, msgspec.json.encode(record)),
            )
            return batch

        return await self._store.run(insert)

    async def get(self, owner: str, id_: str) -> Batch:
        """Raises NotFound."""
        query = "SELECT body FROM batches WHERE owner = ? AND id = ?"
        row = await self._store.run(lambda db: db.execute(query, (owner, id_)).fetchone())
        if row is None:
            raise _unknown(id_)
        return _decode(row[0]).batch

    async def page(self, owner: str, limit: int, after: str | None) -> BatchPage:
        """Raises InvalidArgument for an unknown `after`."""

        def select(db: sqlite3.Connection) -> list[tuple[bytes]]:
            number = None
            if after is not None:
                query = "SELECT number FROM batches WHERE owner = ? AND id = ?"
                number = db.execute(query, (owner, after)).fetchone()
                if number is None:
                    raise InvalidArgument.at("after", f"{after!r} is not a batch of this key")
            query = "SELECT body FROM batches WHERE owner = ? AND number < ? ORDER BY number DESC LIMIT ?"
            return db.execute(query, (owner, number[0] if number else 1 << 62, limit + 1)).fetchall()

        batches = [_decode(row[0]).batch for row in await self._store.run(select)]
        page = batches[:limit]
        first, last = (page[0].id, page[-1].id) if page else (None, None)
        return BatchPage(data=page, first_id=first, last_id=last, has_more=len(batches) > limit)

    async def cancel(self, owner: str, id_: str) -> Batch:
        """Mark it; the server that runs it does the rest. Raises NotFound, and Conflict if it has ended."""

        def mark(record: BatchRecord) -> None:
            batch = record.batch
            if batch.status in ("cancelling", "cancelled"):
                return
            if batch.status not in LIVING:
                raise Conflict(f"batch {id_!r} is {batch.status} and cannot be cancelled", param="batch_id")
            if batch.status != "finalizing":
                enter(record, "cancelling")

        def cancel(db: sqlite3.Connection) -> Batch:
            db.execute("BEGIN IMMEDIATE")
            query = "SELECT number, body FROM batches WHERE owner = ? AND id = ?"
            row = db.execute(query, (owner, id_)).fetchone()
            if row is None:
                raise _unknown(id_)
            return _write(db, row[0], row[1], mark).batch

        return await self._store.run(cancel)

    # ---- for the server that runs them

    async def claim(self, most: int) -> list[Claimed]:
        """Take over living batches without a living server, the oldest first, until `most` are ours. Return
        all that are."""

        def claim(db: sqlite3.Connection) -> list[Claimed]:
            db.execute("BEGIN IMMEDIATE")
            me = self._store.instance
            rows = db.execute(
                f"SELECT number, owner, server FROM batches WHERE status IN {LIVING} ORDER BY number"
            ).fetchall()
            alive = {server: server == me or self._store.alive(server) for _, _, server in rows if server}
            ours = [row for row in rows if row[2] == me]
            free = [row for row in rows if not alive.get(row[2], False)]
            while free and len(ours) < most:
                # An owner with many does not keep others from having one.
                row = min(free, key=lambda r: (sum(other[1] == r[1] for other in ours), r[0]))
                free.remove(row)
                ours.append(row)
                db.execute("UPDATE batches SET server = ? WHERE number = ?", (me, row[0]))
            query = "SELECT body FROM batches WHERE number = ?"
            bodies = [db.execute(query, (number,)).fetchone()[0] for number, _, _ in ours]
            return [
                Claimed(number, owner, _decode(body))
                for (number, owner, _), body in zip(ours, bodies, strict=True)
            ]

        return await self._store.run(claim)

    async def release(self) -> None:
        """Leave all batches of this server to others, and to its next start."""
        query = "UPDATE batches SET server = '' WHERE server = ?"
        await self._store.run(lambda db: db.execute(query, (self._store.instance,)))

    async def change(
        self,
        number: int,
        change: Callable[[BatchRecord], None],
        also: Callable[[sqlite3.Connection], object] = lambda db: None,
    ) -> BatchRecord:
        """Change a batch of this server, and do `also` in the same transaction. Raises NotOurs."""

        def work(db: sqlite3.Connection) -> BatchRecord:
            body = self._own(db, number)
            also(db)
            return _write(db, number, body, change)

        return await self._store.run(work)

    async def clear_lines(self, number: int) -> None:
        def clear(db: sqlite3.Connection) -> None:
            self._own(db, number)
            drop_lines(db, number)

        await self._store.run(clear)

    async def add_lines(self, number: int, lines: Sequence[InputLine]) -> list[tuple[InputLine, int]]:
        """Add lines; return those whose custom_id an earlier line has, and that line. Raises NotOurs."""

        def add(db: sqlite3.Connection) -> list[tuple[InputLine, int]]:
            self._own(db, number)
            twice: list[tuple[InputLine, int]] = []
            for line in lines:
                added = db.execute(
                    "INSERT OR IGNORE INTO batch_lines (batch, line, start, size, custom_id, prefix)"
                    " VALUES (?, ?, ?, ?, ?, ?)",
                    (number, *line),
                )
                if not added.rowcount:
                    query = "SELECT line FROM batch_lines WHERE batch = ? AND custom_id = ?"
                    twice.append((line, db.execute(query, (number, line.custom_id)).fetchone()[0]))
            size = sum(ROW_BYTES + len(line.prefix) for line in lines)
            db.execute("UPDATE batches SET bytes = bytes + ? WHERE number = ?", (size, number))
            return twice

        return await self._store.run(add)

    async def pending(self, number: int) -> tuple[Places, list[Place]]:
        """Return the lines without a result, those with one prefix together, and apart those that an
        engine ended with. Their 50,000 rows take 0.1 s, so they are read on the store's thread."""
        query = (
            "SELECT line, start, size, deaths FROM batch_lines WHERE batch = ? AND status IS NULL"
            " ORDER BY prefix DESC, line DESC"
        )

        def rows(db: sqlite3.Connection) -> tuple[Places, list[Place]]:
            places, suspects = Places(), list[Place]()
            for row in db.execute(query, (number,)):
                place = Place._make(row)
                (suspects if place.deaths else places).append(place)
            return places, suspects

        return await self._store.run(rows)

    async def count_death(self, number: int, line: int) -> None:
        """Record that an engine ended while it had this line."""
        query = "UPDATE batch_lines SET deaths = deaths + 1 WHERE batch = ? AND line = ?"
        await self._store.run(lambda db: db.execute(query, (number, line)))

    async def finish(self, number: int, results: Iterable[Finished]) -> BatchRecord:
        """Keep results, and count them in the same transaction. Raises NotOurs."""

        def finish(db: sqlite3.Connection) -> BatchRecord:
            body = self._own(db, number)
            counted: list[Finished] = []
            for result in results:
                query = (
                    "UPDATE batch_lines SET status = ?, result = ?"
                    " WHERE batch = ? AND line = ? AND status IS NULL"
                )
                values = (int(result.succeeded), result.result, number, result.line)
                if db.execute(query, values).rowcount:
                    counted.append(result)
            size = sum(len(result.result) for result in counted)
            db.execute("UPDATE batches SET bytes = bytes + ? WHERE number = ?", (size, number))
            return _write(db, number, body, lambda record: _count(record.batch, counted))

        return await self._store.run(finish)

    async def results(self, number: int, after: int) -> list[tuple[int, str, int | None, bytes | None]]:
        """Return line, custom_id, status and result of the lines behind line `after`, in their order."""
        query = (
            "SELECT line, custom_id, status, result FROM batch_lines WHERE batch = ? AND line > ?"
            f" ORDER BY line LIMIT {RESULT_ROWS}"
        )
        return await self._store.run(lambda db: db.execute(query, (number, after)).fetchall())

    async def sweep(self, ttl: float, also: Callable[[sqlite3.Connection], object]) -> None:
        """Delete batches that ended `ttl` seconds ago, and do `also`."""

        def sweep(db: sqlite3.Connection) -> None:
            ended = f"SELECT number, body FROM batches WHERE status NOT IN {LIVING}"
            old = [
                (number,)
                for number, body in db.execute(ended)
                if (getattr(b := _decode(body).batch, f"{b.status}_at") or b.created_at) < time.time() - ttl
            ]
            db.executemany("DELETE FROM batches WHERE number = ?", old)
            also(db)

        await self._store.run(sweep)

    async def living(self) -> Iterator[Batch]:
        """Return those that have not ended, of all owners and servers."""
        query = f"SELECT body FROM batches WHERE status IN {LIVING} ORDER BY number"
        rows = await self._store.run(lambda db: db.execute(query).fetchall())
        return (_decode(row[0]).batch for row in rows)

    def _own(self, db: sqlite3.Connection, number: int) -> bytes:
        """Begin a transaction; return the body of a batch of this server. Raises NotOurs."""
        db.execute("BEGIN IMMEDIATE")
        query = "SELECT body FROM batches WHERE number = ? AND server = ?"
        row = db.execute(query, (number, self._store.instance)).fetchone()
        if row is None:
            raise NotOurs
        body: bytes = row[0]
        return body


def enter(record: BatchRecord, status: Status) -> None:
    """Enter a state, and set its time once."""
    batch = record.batch
    batch.status = status
    if status != "validating" and getattr(batch, f"{status}_at") is None:
        setattr(batch, f"{status}_at", int(time.time()))


def drop_lines(db: sqlite3.Connection, number: int) -> None:
    db.execute("DELETE FROM batch_lines WHERE batch = ?", (number,))
    db.execute("UPDATE batches SET bytes = 0 WHERE number = ?", (number,))


def _count(batch: Batch, results: Sequence[Finished]) -> None:
    counts, usage = batch.request_counts, batch.usage
    for result in results:
        counts.completed += result.succeeded
        counts.failed += not result.succeeded
        usage.input_tokens += result.usage.input_tokens
        usage.input_tokens_details.cached_tokens += result.usage.input_tokens_details.cached_tokens
        usage.output_tokens += result.usage.output_tokens
        usage.output_tokens_details.reasoning_tokens += result.usage.output_tokens_details.reasoning_tokens
    usage.total_tokens = usage.input_tokens + usage.output_tokens


def _write(
    db: sqlite3.Connection, number: int, body: bytes, change: Callable[[BatchRecord], None]
) -> BatchRecord:
    record = _decode(body)
    change(record)
    query = "UPDATE batches SET status = ?, body = ? WHERE number = ?"
    db.execute(query, (record.batch.status, msgspec.json.encode(record), number))
    return record


_decode = msgspec.json.Decoder(BatchRecord).decode


def _unknown(id_: str) -> NotFound:
    return NotFound(f"batch {id_!r} not found", param="batch_id")
