"""The lines of a batch's input file: checked as live requests are, in a process of `sandbox/bodies.py`.

A part of the file is checked at a time, so the process's bounds of time and memory hold, and nothing has the
size of the file.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from ovserve.access import NOBODY, Guard, RequestContext, calling
from ovserve.api.openai.batches import (
    BatchError,
    BatchErrors,
    BatchUsage,
    InputDetails,
    Line,
    LineError,
    LineResult,
    OutputDetails,
)
from ovserve.api.openai.body import decode_struct, unique_members
from ovserve.api.openai.common import encode, with_whole_characters
from ovserve.errors import InvalidArgument, ModelNotFound, OvserveError, shortened
from ovserve.kinds.encoders.node import ClassificationCalculatorOV, EmbeddingsCalculatorOV, RerankCalculatorOV
from ovserve.kinds.payload import Decoder
from ovserve.kinds.text.resource import ENDPOINTS
from ovserve.services.responses.batch_rows import Batches, BatchRecord, InputLine, drop_lines, enter
from ovserve.services.responses.files import OUTPUT, Files, new_id
from ovserve.serving.interface import matches
from ovserve.serving.manager import Manager

PART_BYTES, PART_LINES = 4 << 20, 1000  # checked in one call
PREFIX_BYTES = 512  # of a prompt, by which lines are put next to each other
# What a prompt begins with, in the order of most chat templates.
PROMPT_FIELDS = ("model", "tools", "instructions", "messages", "prompt", "query", "input")
BYTE_ORDER_MARK, REPLACEMENT_CHARACTER = b"\xef\xbb\xbf", "\ufffd"
VERSION_PREFIXES = ("/v3/v1/", "/openai/v1/", "/openai/", "/v3/", "/v1/", "/")  # the longest first

DECODERS: dict[str, Decoder] = {
    **ENDPOINTS,
    **EmbeddingsCalculatorOV.endpoints,
    **RerankCalculatorOV.endpoints,
    **ClassificationCalculatorOV.endpoints,
}
_line = msgspec.json.Decoder(Line)


class Part(NamedTuple):
    """The content of a part of the file. `models`: by name, the first line that names it. `end`: the byte
    behind it; `last`: the number of lines until there, empty ones included."""

    lines: list[InputLine]
    models: dict[str, int]
    errors: list[BatchError]
    end: int
    last: int


class LineFault(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code, self.message, self.param = code, message, param


def endpoint_of(url: str) -> str:
    """Return the path without its version, such as chat/completions."""
    return next((url.removeprefix(p) for p in VERSION_PREFIXES if url.startswith(p)), url)


def check_part(path: str, start: int, count: int, endpoint: str, max_line_bytes: int) -> Part:
    """Check the lines from byte `start` on, which is behind line `count`."""
    part = Part([], {}, [], start, count)
    lines, models, errors, end = part.lines, part.models, part.errors, start
    with Path(path).open("rb") as file:
        file.seek(start)
        while end - start < PART_BYTES and count - part.last < PART_LINES:
            data = file.readline(max_line_bytes + 2)
            if not data:
                break
            at, count, end = end, count + 1, end + len(data)
            if len(data) > max_line_bytes and not data.endswith(b"\n"):
                while (rest := file.readline(1 << 20)) and not rest.endswith(b"\n"):
                    end += len(rest)
                end += len(rest)
                message = f"the line has more than {max_line_bytes} bytes"
                errors.append(BatchError(code="invalid_request", message=message, line=count))
                continue
            if not at:
                data = data.removeprefix(BYTE_ORDER_MARK)
            if not data.strip():
                continue
            try:
                line, model = check_line(data, endpoint)
            except LineFault as fault:
                errors.append(
                    BatchError(code=fault.code, message=fault.message, line=count, param=fault.param)
                )
                continue
            models.setdefault(model, count)
            lines.append(InputLine(count, at, end - at, line.custom_id, _prefix(line)))
    return part._replace(end=end, last=count)


def check_line(data: bytes, endpoint: str) -> tuple[Line, str]:
    """Return a line and the model that it names. Raises LineFault that names the field."""
    data, as_sent = with_whole_characters(data), data
    try:
        members = unique_members(data)
    except InvalidArgument as error:
        raise LineFault(
            "invalid_json_line", error.message.replace("the body", "the line"), error.param
        ) from None
    for name in Line.__struct_fields__:
        if members.get(name) is None:
            raise LineFault("missing_required_parameter", f"{name}: required", name)
    for name in members:
        if name not in Line.__struct_fields__:
            raise LineFault(
                "invalid_request", f"{shortened(name)!r} is not a field of a line", shortened(name)
            )
    line = _decoded(data)
    _check_id(line, altered=data is not as_sent)
    if endpoint_of(line.url) != endpoint:
        raise LineFault("url_mismatch", f"url: the batch is for /v1/{endpoint}, got {line.url!r}", "url")
    body = members["body"]
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise LineFault(
            "missing_required_parameter", "body.model: expected the name of a model", "body.model"
        )
    for name, code in (("stream", "streaming_unsupported"), ("background", "invalid_request")):
        if body.get(name):
            raise LineFault(code, f"body.{name}: a batch has whole answers only", f"body.{name}")
    if (decoder := DECODERS.get(endpoint)) is not None:
        try:
            decoder.decode(encode(line.body))
        except InvalidArgument as error:
            param = f"body.{error.param}" if error.param else "body"
            message = error.message if error.param is None else f"body.{error.message}"
            raise LineFault("invalid_request", message, param) from None
    return line, model


def read_line(data: bytes) -> Line:
    """Return a line that was checked before."""
    return _line.decode(with_whole_characters(data.removeprefix(BYTE_ORDER_MARK)))


def _decoded(data: bytes) -> Line:
    try:
        return decode_struct(data, _line)
    except InvalidArgument as error:
        if error.param is None:  # such as NaN in the body
            raise LineFault("invalid_json_line", error.message.replace("the body", "the line")) from None
        raise LineFault("invalid_request", error.message, error.param) from None


def _check_id(line: Line, *, altered: bool) -> None:
    """Raise LineFault for a custom_id that clients would not find again, because it was replaced in part."""
    if altered and REPLACEMENT_CHARACTER in line.custom_id:
        raise LineFault("invalid_request", "custom_id: has half of a character", "custom_id")


def _prefix(line: Line) -> bytes:
    parts = (bytes(line.body[name]) for name in PROMPT_FIELDS if name in line.body)
    return b"\0".join(parts)[:PREFIX_BYTES]


# The results of a batch: what a line's answer cost, and the two files that the batch ends with.
#
# Results are in the store by line, so the files have the order of the input. They are written under other
# names, synced and renamed; one transaction then makes them known and ends the batch.


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


MAX_ERRORS = 100  # that are reported


class BatchBounds(msgspec.Struct, frozen=True):
    """`window`: seconds from the creation of a batch until it expires."""

    window: float = 24 * 3600.0
    requests: int = 50_000
    line_bytes: int = 32 << 20


class BatchValidator:
    def __init__(
        self, manager: Manager, files: Files, rows: Batches, guard: Guard, bounds: BatchBounds
    ) -> None:
        self._manager, self._files, self._rows = manager, files, rows
        self._guard, self._bounds = guard, bounds

    async def validate(self, number: int, owner: str, record: BatchRecord) -> BatchRecord:
        """Check the input from its start, also after a restart; the batch is in progress then, or failed."""
        batch = record.batch
        endpoint = endpoint_of(batch.endpoint)
        await self._rows.clear_lines(number)
        errors: list[BatchError] = []
        total = start = count = error_count = 0
        models: dict[str, int] = {}
        path = self._files.path(batch.input_file_id)
        size = path.stat().st_size if path.exists() else 0
        while start < size and batch.status == "validating":
            part = await self._manager.bodies.run(
                True, check_part, str(path), start, count, endpoint, self._bounds.line_bytes
            )
            twice = await self._rows.add_lines(number, part.lines) if not error_count else []
            faults = part.errors + [
                BatchError(
                    code="duplicate_custom_id",
                    message=f"custom_id: line {earlier} has {line.custom_id!r} too",
                    line=line.line,
                    param="custom_id",
                )
                for line, earlier in twice
            ]
            new_models = {name: line for name, line in part.models.items() if name not in models}
            faults += self._check_models(owner, endpoint, new_models)
            models |= new_models
            error_count += len(faults)
            errors += faults[: MAX_ERRORS - len(errors)]
            total += len(part.lines) + len(part.errors)
            start, count = part.end, part.last
            if total > self._bounds.requests:
                message = f"the file has more than {self._bounds.requests} requests"
                errors.insert(0, BatchError(code="too_many_tasks", message=message))
                break
        if not total:
            message = "the file has no requests" if path.exists() else "the content of the file is gone"
            errors.append(BatchError(code="empty_file", message=message))
        if error_count > len(errors):
            message = f"{error_count - len(errors)} more lines are wrong"
            errors.append(BatchError(code="too_many_errors", message=message))

        def end(record: BatchRecord) -> None:
            if record.batch.status != "validating":
                return  # it was cancelled meanwhile
            if errors:
                record.batch.errors = BatchErrors(sorted(errors, key=lambda error: error.line or 0))
                enter(record, "failed")
                return
            record.batch.request_counts.total = total
            record.batch.model = next(iter(models))
            enter(record, "in_progress")

        also = (lambda db: drop_lines(db, number)) if errors else (lambda db: None)
        return await self._rows.change(number, end, also)

    def _check_models(self, owner: str, endpoint: str, models: dict[str, int]) -> list[BatchError]:
        errors: list[BatchError] = []
        call = RequestContext(NOBODY)
        with calling(call):
            for name, line in models.items():
                try:
                    call.caller = self._guard.caller_named(owner)
                    servable = self._manager.get(name)
                    if not servable.endpoints or matches(endpoint, servable.endpoints):
                        continue
                    code, message = "invalid_request", f"{name!r} does not serve /v1/{endpoint}"
                except ModelNotFound as error:
                    code, message = "model_not_found", error.message
                except OvserveError:
                    continue  # the model loads or the key has expired: each line will report it
                message = f"body.model: {message}"
                errors.append(BatchError(code=code, message=message, line=line, param="body.model"))
        return errors
