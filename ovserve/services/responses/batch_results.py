"""The results of a batch: what a line's answer cost, and the two files that the batch ends with.

Results are in the store by line, so the files have the order of the input. They are written under other
names, synced and renamed; one transaction then makes them known and ends the batch.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from pathlib import Path
from typing import BinaryIO

import msgspec

from ovserve.api.openai.batches import BatchUsage, InputDetails, LineError, LineResult, OutputDetails
from ovserve.api.openai.common import encode
from ovserve.services.responses.batch_rows import Batches, BatchRecord, drop_lines, enter
from ovserve.services.responses.files import OUTPUT, Files, new_id


class _Usage(msgspec.Struct):
    """Tokens, as chat, completions and embeddings name them (prompt), or responses (input, output)."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: dict[str, int | None] | None = None
    completion_tokens_details: dict[str, int | None] | None = None
    input_tokens_details: dict[str, int | None] | None = None
    output_tokens_details: dict[str, int | None] | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


class ResultWriter:
    def __init__(self, files: Files, rows: Batches) -> None:
        self._files, self._rows = files, rows

    async def write(self, number: int, owner: str, record: BatchRecord) -> BatchRecord:
        """Write both files, then end the batch. After a kill they are written again under the same ids.

        Raises StoreError, OSError, NotOurs."""

        def decide(record: BatchRecord) -> None:
            batch = record.batch
            if batch.status == "cancelling":
                record.ends_as = "cancelled"
            elif batch.status != "finalizing" and time.time() >= batch.expires_at:
                record.ends_as = "expired"
            else:
                enter(record, "finalizing")
            if not record.files[0]:
                record.files = new_id("file-"), new_id("file-")

        record = await self._rows.change(number, decide)
        sizes = await self._build(number, record) if record.batch.request_counts.total else (0, 0)

        def insert(db: sqlite3.Connection) -> None:
            for id_, size, kind in zip(record.files, sizes, ("output", "error"), strict=True):
                if size:
                    name = f"{record.batch.id}_{kind}.jsonl"
                    seconds = record.output_seconds
                    self._files.insert(db, owner, id_, OUTPUT, name, size, seconds)
            drop_lines(db, number)

        def end(changed: BatchRecord) -> None:
            output, errors = (id_ if size else None for id_, size in zip(record.files, sizes, strict=True))
            changed.batch.output_file_id, changed.batch.error_file_id = output, errors
            enter(changed, changed.ends_as)

        return await self._rows.change(number, end, insert)

    async def _build(self, number: int, record: BatchRecord) -> tuple[int, int]:
        """Write the results, in the order of the input; return the bytes of both files."""
        ends_as = record.ends_as
        messages = {"cancelled": "the batch was cancelled before", "expired": "the batch expired before"}
        not_run = LineError(f"batch_{ends_as}", f"{messages.get(ends_as, ends_as)} this line had a result")
        paths = [self._files.path(id_) for id_ in record.files]
        parts = [path.with_name(f"{path.name}.part") for path in paths]
        after = 0
        with parts[0].open("wb") as output, parts[1].open("wb") as errors:
            while rows := await self._rows.results(number, after):
                after = rows[-1][0]
                succeeded = [result for _, _, status, result in rows if status and result]
                failed = [
                    result
                    or encode(LineResult(id=new_id("batch_req_"), custom_id=name, error=not_run)) + b"\n"
                    for _, name, status, result in rows
                    if not status
                ]
                await asyncio.to_thread(output.write, b"".join(succeeded))
                await asyncio.to_thread(errors.write, b"".join(failed))
            for file, part, path in zip((output, errors), parts, paths, strict=True):
                await asyncio.to_thread(_settle, file, part, path)
        first, second = (path.stat().st_size if path.exists() else 0 for path in paths)
        return first, second


def _settle(file: BinaryIO, part: Path, path: Path) -> None:
    """Have it on the disk, then under its name; one that is empty is not kept."""
    file.flush()
    os.fsync(file.fileno())
    if file.tell():
        part.rename(path)
    else:
        part.unlink()


def encoded(result: LineResult) -> bytes:
    return encode(result) + b"\n"


def usage_of(body: bytes) -> BatchUsage:
    try:
        usage = msgspec.json.decode(body, type=_Answer).usage or _Usage()
    except msgspec.MsgspecError:
        return BatchUsage()  # of a graph that counts otherwise
    before = usage.prompt_tokens_details or usage.input_tokens_details or {}
    after = usage.completion_tokens_details or usage.output_tokens_details or {}
    return BatchUsage(
        input_tokens=usage.prompt_tokens + usage.input_tokens,
        input_tokens_details=InputDetails(before.get("cached_tokens") or 0),
        output_tokens=usage.completion_tokens + usage.output_tokens,
        output_tokens_details=OutputDetails(after.get("reasoning_tokens") or 0),
    )
