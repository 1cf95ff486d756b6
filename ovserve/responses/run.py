"""One response under way: what it has said so far, who follows it, and how it ends early.

Made by `responses.py`, one per stored stream and per background response. Followers (GET ?stream=true) read
the same chunks the first client gets; a slow one costs nothing but the chunks, which are kept anyway.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from ovserve.api.openai.responses.replay import resume
from ovserve.api.openai.responses.writer import ResponseWriter


class Run:
    def __init__(self, writer: ResponseWriter, owner: str, *, keeps: bool) -> None:
        self.writer, self.owner, self._keeps = writer, owner, keeps
        self.id = writer.response.id
        self.task: asyncio.Task[Any] | None = None  # of a background response
        self.cancelled = False  # by POST cancel, as opposed to a server that stops
        self.ended = False
        self.deleted = False  # not to be stored at its end
        self.stored = False  # while it runs
        self._chunks: list[bytes] = []
        self.written = 0  # chunks that are in the store already
        self._news = asyncio.Event()

    @property
    def background(self) -> bool:
        return self.writer.response.background

    @property
    def log(self) -> bytes:
        return b"".join(self._chunks)

    def unwritten(self) -> tuple[bytes, int]:
        """What the store does not have yet, and the value of `written` once it has."""
        return b"".join(self._chunks[self.written :]), len(self._chunks)

    def received(self, chunk: bytes) -> bytes:
        """From the graph."""
        self.writer.take(chunk)
        return self.add(chunk)

    def add(self, chunk: bytes) -> bytes:
        if self._keeps:
            self._chunks.append(chunk)
            self._wake()
        return chunk

    def end(self) -> None:
        self.ended = True
        self._wake()

    def _wake(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self, after: int | None = None) -> AsyncIterator[bytes]:
        """The events after number `after`, those to come included."""
        seen = 0
        skip = -1 if after is None else after
        while True:
            news = self._news
            fresh = b"".join(self._chunks[seen:])
            seen = len(self._chunks)
            if fresh and skip >= 0:
                here = fresh.count(b"\n\n")
                fresh, skip = (resume(fresh, skip) if skip < here else b""), skip - here
            if fresh:
                yield fresh
            elif self.ended and seen == len(self._chunks):
                return
            else:
                await news.wait()
