"""The body of a form as aiohttp's reader of forms takes it: bounded, and with turns for other requests.

aiohttp skips what stands before the first boundary line by line, without a bound. What has arrived needs no
wait, so a small compressed body of empty lines held the event loop for more than 30 s.
"""

from __future__ import annotations

import asyncio
import warnings
from typing import cast

from aiohttp import MultipartReader, StreamReader, web

CHUNK = 256 * 1024  # bytes between two turns of the event loop
LINE = 256  # what reading a line costs besides its bytes, in bytes
MOST_LINES = 16_384  # around the parts: 64 parts with 128 headers have 8,384


class FormContent:
    """The methods of `StreamReader` that are called.

    Raises HTTPRequestEntityTooLarge past `most` bytes, ValueError past MOST_LINES.
    """

    def __init__(self, stream: StreamReader, most: int) -> None:
        self._stream, self._most = stream, most
        self._size = self._lines = self._since_turn = 0

    async def read(self, n: int = -1) -> bytes:
        return await self._counted(await self._stream.read(n))

    async def readline(self, *, max_line_length: int | None = None) -> bytes:
        self._lines += 1
        self._since_turn += LINE
        if self._lines > MOST_LINES:
            raise ValueError(f"it has more than {MOST_LINES} lines around its parts")
        return await self._counted(await self._stream.readline(max_line_length=max_line_length))

    def at_eof(self) -> bool:
        return self._stream.at_eof()

    def unread_data(self, data: bytes) -> None:
        self._size -= len(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self._stream.unread_data(data)

    async def _counted(self, data: bytes) -> bytes:
        self._size += len(data)
        if self._size > self._most:
            raise web.HTTPRequestEntityTooLarge(self._most, self._size)
        self._since_turn += len(data)
        if self._since_turn > CHUNK:
            self._since_turn = 0
            await asyncio.sleep(0)
        return data


def parts_of(request: web.Request, most: int) -> MultipartReader:
    """Like `request.multipart()`, within `most` bytes."""
    content = FormContent(request.content, most)
    return MultipartReader(
        request.headers,
        cast(StreamReader, content),
        client_max_size=most,
        max_field_size=request.protocol.max_field_size,
        max_headers=request.protocol.max_headers,
        max_size_error_cls=web.HTTPRequestEntityTooLarge,
    )
