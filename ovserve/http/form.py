"""A request's form, multipart/form-data: its text fields as JSON, its files on disk.

Files are written as they arrive, so a large one is never in memory. Text fields are small: they share a limit
with all others of a form.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from ovserve.api.openai.audio.transcriptions import form_body
from ovserve.calculators.payload import UploadedFile
from ovserve.errors import InvalidArgument, PayloadTooLarge, TooSlow, Unavailable, UnsupportedMediaType
from ovserve.http.body import BODIES, Body
from ovserve.http.form_content import parts_of
from ovserve.http.transport.limits import LIMITS
from ovserve.http.transport.malformed import check_coding
from ovserve.sandbox.bodies import Head

FORM = "multipart/form-data"
CHUNK = 256 * 1024  # bytes of a file that are written at once: 0.1 ms into the page cache
TEXT_BYTES = 1 << 20  # of all text fields together
MOST_PARTS = 64
NAME_LENGTH = 200  # characters of a field's and of a file's name
PREFIX = "ovserve-upload-"


class Form(NamedTuple):
    body: Body
    files: dict[str, UploadedFile]


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
    check_coding(request.headers.get("content-encoding", ""))
    limits = request.app[LIMITS]
    seconds = limits.read_seconds * max(1.0, most / limits.body_bytes)
    with ExitStack() as stored:
        parts = _Parts(stored, most + TEXT_BYTES if most else request.client_max_size, directory)
        try:
            async with asyncio.timeout(seconds):
                await parts.read(request)
        except TimeoutError:
            raise TooSlow(f"the body did not arrive within {seconds:g} s") from None
        except (ValueError, AssertionError, web.RequestPayloadError, HttpProcessingError) as error:
            raise InvalidArgument(f"the form cannot be read: {str(error)[:NAME_LENGTH]}") from None
        yield await parts.form(request)


class _Parts:
    def __init__(self, stored: ExitStack, most: int, directory: Path | None) -> None:
        self._stored, self._most, self._directory = stored, most, directory
        self._text = self._count = 0
        self._fields: dict[str, list[str]] = {}
        self._files: dict[str, UploadedFile] = {}

    async def read(self, request: web.Request) -> None:
        reader = parts_of(request, self._most)
        while (part := await reader.next()) is not None:
            self._count += 1
            if self._count > MOST_PARTS:
                raise InvalidArgument(f"the form has more than {MOST_PARTS} parts")
            if not isinstance(part, BodyPartReader):
                raise InvalidArgument("the form has a part with parts of its own")
            name = part.name
            if not name or len(name) > NAME_LENGTH:
                raise InvalidArgument("a part of the form has no name" if not name else "a name is too long")
            if part.filename is None:
                self._fields.setdefault(name, []).append(await self._text_of(part, name))
            elif name in self._files:
                raise InvalidArgument(f"{name}: expected one file, got several", param=name)
            else:
                self._files[name] = await self._file(part)

    async def form(self, request: web.Request) -> Form:
        data = form_body(self._fields, {name: file.name for name, file in self._files.items()})
        head = await request.app[BODIES].admit(data)
        streams = (self._fields.get("stream") or [""])[-1].strip().lower() in ("true", "1")
        return Form(Body(data, Head(head.large, head.model, streams)), self._files)

    async def _text_of(self, part: BodyPartReader, name: str) -> str:
        data = bytearray()
        while chunk := await part.read_chunk(CHUNK):
            self._text += len(chunk)
            if self._text > TEXT_BYTES:
                raise PayloadTooLarge(f"the text of the form is larger than {TEXT_BYTES} bytes", param=name)
            data += chunk
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"{name}: is not UTF-8: {error.reason}", param=name) from None

    async def _file(self, part: BodyPartReader) -> UploadedFile:
        try:
            descriptor, path = tempfile.mkstemp(prefix=PREFIX, dir=self._directory)
        except OSError as error:
            raise _not_stored(error) from error
        self._stored.callback(_remove, path)
        size = 0
        try:
            while chunk := await part.read_chunk(CHUNK):
                size += len(chunk)
                _write(descriptor, chunk)
                await asyncio.sleep(0)  # the next chunk may be there already
        finally:
            os.close(descriptor)
        name = os.path.basename((part.filename or "").replace("\\", "/"))[:NAME_LENGTH]
        return UploadedFile(
            Path(path), size, name or "file", part.headers.get("Content-Type", "")[:NAME_LENGTH]
        )


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


def _remove(path: Any) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)
