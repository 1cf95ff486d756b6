"""A request's form, multipart/form-data: its text fields as JSON, its files on disk.

Files are written as they arrive, so a large one is never in memory. Text fields are small: they share a limit
with all others of a form.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import NamedTuple, cast

from aiohttp import BodyPartReader, MultipartReader, StreamReader, web
from aiohttp.http_exceptions import HttpProcessingError

from ovserve.errors import InvalidArgument, PayloadTooLarge, Unavailable, UnsupportedMediaType
from ovserve.http.body import BODIES, Body, Files, body_time, content_of
from ovserve.http.connections import LIMITS
from ovserve.kinds.payload import UploadedFile
from ovserve.kinds.speech.api import form_body
from ovserve.sandbox.bodies import Head
from ovserve.scratch import scratch_file

MOST_LINES = 16_384  # around the parts: 64 parts with 128 headers have 8,384
LINES_A_TURN = 1024  # of the event loop: 10 ms


class FormContent:
    """The body of a form, with the methods of `StreamReader` that aiohttp's reader of forms calls.

    aiohttp skips what stands before the first boundary line by line, without a bound: a small packed body of
    empty lines held the event loop for more than 30 s. Raises ValueError past MOST_LINES.
    """

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces = pieces
        self._buffer, self._at = b"", 0  # what is before `at` was read
        self._ended = False
        self._lines = 0

    async def read(self, n: int = -1) -> bytes:
        return self._take(len(self._buffer) if n < 0 else self._at + n) if await self._has_more() else b""

    async def readline(self, *, max_line_length: int | None = None) -> bytes:
        self._lines += 1
        if self._lines > MOST_LINES:
            raise ValueError(f"it has more than {MOST_LINES} lines around its parts")
        if self._lines % LINES_A_TURN == 0:
            await asyncio.sleep(0)
        line, most = b"", max_line_length or 2 * WRITE_CHUNK
        while not line.endswith(b"\n") and await self._has_more():
            line += self._take(self._buffer.find(b"\n", self._at) + 1 or len(self._buffer))
            if len(line) > most:
                raise ValueError(f"it has a line of more than {most} bytes around its parts")
        return line

    def at_eof(self) -> bool:
        return self._ended

    def unread_data(self, data: bytes) -> None:
        self._buffer, self._at, self._ended = data + self._buffer[self._at :], 0, self._ended and not data

    async def _has_more(self) -> bool:
        while self._at == len(self._buffer) and not self._ended:
            self._buffer, self._at = await anext(self._pieces, b""), 0
            self._ended = not self._buffer
        return not self._ended

    def _take(self, end: int) -> bytes:
        piece = self._buffer[self._at : end]
        self._at += len(piece)
        return piece


FORM = "multipart/form-data"
WRITE_CHUNK = 256 * 1024  # bytes of a file that are written at once: 0.1 ms into the page cache
TEXT_BYTES = 1 << 20  # of all text fields together
MOST_PARTS = 64
MOST_FILES = 8  # an endpoint takes two at most, and each is an open descriptor until its request ends
NAME_LENGTH = 200  # characters of a field's and of a file's name
PLAIN_CODINGS = ("", "7bit", "8bit", "binary", "identity")


class Form(NamedTuple):
    body: Body
    files: Files


@asynccontextmanager
async def read_form(
    request: web.Request, *, most: int = 0, directory: Path | None = None
) -> AsyncIterator[Form]:
    """Read a form; its files are removed at the end, unless they were moved.

    `most`: bytes, where that is not the limit of bodies. `directory`: of the files, if not the temporary one.

    Raises InvalidArgument naming the field, PayloadTooLarge, TooSlow, or UnsupportedMediaType for another
    body.
    """
    if request.content_type != FORM:
        raise UnsupportedMediaType(f"content-type: expected {FORM}, got {request.content_type}")
    limits = request.app[LIMITS]
    seconds = limits.read_seconds * max(1.0, most / limits.body_bytes)
    with ExitStack() as stored:
        parts = _Parts(stored, most + TEXT_BYTES if most else request.client_max_size, directory)
        try:
            async with body_time(seconds):
                await parts.read(request)
        except (ValueError, AssertionError, RuntimeError, HttpProcessingError) as error:
            reason = "it ends within a part" if "after EOF" in str(error) else str(error)[:NAME_LENGTH]
            raise InvalidArgument(f"the form cannot be read: {reason}") from None
        yield await parts.form(request)


class _Parts:
    def __init__(self, stored: ExitStack, most: int, directory: Path | None) -> None:
        self._stored, self._most, self._directory = stored, most, directory
        self._text = self._count = 0
        self._fields: dict[str, list[str]] = {}
        self._files: dict[str, UploadedFile] = {}

    async def read(self, request: web.Request) -> None:
        async with aclosing(content_of(request, self._most)) as pieces:
            await self._read_parts(request, FormContent(pieces))

    async def _read_parts(self, request: web.Request, content: FormContent) -> None:
        reader = MultipartReader(
            request.headers,
            cast(StreamReader, content),
            client_max_size=self._most,
            max_field_size=request.protocol.max_field_size,
            max_headers=request.protocol.max_headers,
            max_size_error_cls=web.HTTPRequestEntityTooLarge,
        )
        while (part := await reader.next()) is not None:
            self._count += 1
            if self._count > MOST_PARTS:
                raise InvalidArgument(f"the form has more than {MOST_PARTS} parts")
            if not isinstance(part, BodyPartReader):
                raise InvalidArgument("the form has a part with parts of its own")
            name = part.name
            if not name or len(name) > NAME_LENGTH:
                raise InvalidArgument("a part of the form has no name" if not name else "a name is too long")
            _check_headers(part, name)
            if part.filename is None:
                self._fields.setdefault(name, []).append(await self._text_of(part, name))
            elif name in self._files:
                raise InvalidArgument.at(name, "expected one file, got several")
            elif len(self._files) == MOST_FILES:
                raise InvalidArgument.at(name, f"the form has more than {MOST_FILES} files")
            else:
                self._files[name] = await self._file(part)

    async def form(self, request: web.Request) -> Form:
        data = form_body(self._fields, {name: file.name for name, file in self._files.items()})
        head = await request.app[BODIES].admit(data)
        streams = (self._fields.get("stream") or [""])[-1].strip().lower() in ("true", "1")
        return Form(Body(data, Head(head.large, head.model, streams)), self._files)

    async def _text_of(self, part: BodyPartReader, name: str) -> str:
        data = bytearray()
        while chunk := await part.read_chunk(WRITE_CHUNK):
            self._text += len(chunk)
            if self._text > TEXT_BYTES:
                raise PayloadTooLarge(f"the text of the form is larger than {TEXT_BYTES} bytes", param=name)
            data += chunk
        charset = part.get_charset("utf-8").lower()
        try:
            return data.decode("iso-8859-1" if charset == "iso-8859-1" else "utf-8")
        except UnicodeDecodeError as error:
            reason = f"is not UTF-8: {error.reason}; a part that is a file has a filename"
            raise InvalidArgument.at(name, reason) from None

    async def _file(self, part: BodyPartReader) -> UploadedFile:
        try:
            descriptor, path = scratch_file(self._directory)
        except OSError as error:
            raise _not_stored(error) from error
        self._stored.callback(os.close, descriptor)  # it holds the file
        self._stored.callback(path.unlink, missing_ok=True)
        size = 0
        while chunk := await part.read_chunk(WRITE_CHUNK):
            size += len(chunk)
            _write(descriptor, chunk)
            await asyncio.sleep(0)  # the next chunk may be there already
        name = os.path.basename(_readable(part.filename or "").replace("\\", "/"))[:NAME_LENGTH]
        kind = _readable(part.headers.get("Content-Type", ""))[:NAME_LENGTH]
        return UploadedFile(path, size, name or "file", kind)


def _check_headers(part: BodyPartReader, name: str) -> None:
    """Raise InvalidArgument for a name that is not UTF-8, and for bytes that stand for others."""
    if _readable(name) != name:
        raise InvalidArgument(f"a name is not UTF-8: {name!r}")
    for header in ("Content-Transfer-Encoding", "Content-Encoding"):
        coding = part.headers.get(header, "")
        if coding.strip().lower() not in PLAIN_CODINGS:
            raise InvalidArgument.at(name, f"its {header} is not supported, got {coding[:40]!r}")


def _readable(text: str) -> str:
    """Replace bytes that are not UTF-8, such as those of a file name in Latin-1; aiohttp keeps them."""
    return text.encode(errors="surrogateescape").decode(errors="replace")


def _write(descriptor: int, chunk: bytes) -> None:
    """Write all of it. Raises Unavailable where no room is left."""
    rest = memoryview(chunk)
    try:
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    except OSError as error:
        raise _not_stored(error) from error


def _not_stored(error: OSError) -> Unavailable:
    return Unavailable(f"the server cannot store an uploaded file: {error.strerror}")
