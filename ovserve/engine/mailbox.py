"""Where a request's words wait for its reader: one slot, merged; filled by `client.py`, read by DeltaStream.

Why a slot and not a queue: a client slower than the engine then costs the memory of its own text and one
wake-up per read, never a longer queue for others, and a fast one gets exactly one delta per step.
"""

from __future__ import annotations

import asyncio

from ovserve.errors import OvserveError
from ovserve.llm.request import Delta


class Mailbox:
    """What is put in comes out in this order: admission, text so far, end or error. One reader at a time."""

    __slots__ = ("_admission", "_error", "_finish_reason", "_texts", "_tokens", "_waiter", "closed")

    def __init__(self) -> None:
        self._admission: Delta | None = None
        self._texts: list[str] = []
        self._tokens = 0
        self._finish_reason: str | None = None
        self._error: OvserveError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.closed = False  # the last delta has been taken

    def admit(self, prompt_tokens: int, max_tokens: int) -> None:
        self._admission = Delta(prompt_tokens=prompt_tokens, max_tokens=max_tokens)
        self._wake()

    def add(self, text: str, tokens: int, finish_reason: str | None) -> None:
        if text:
            self._texts.append(text)
        self._tokens += tokens
        self._finish_reason = finish_reason
        self._wake()

    def fail(self, error: OvserveError) -> None:
        self._error = error
        self._wake()

    async def take(self) -> Delta:
        while True:
            if (admission := self._admission) is not None:
                self._admission = None
                return admission
            if self._texts or self._tokens or self._finish_reason is not None:
                delta = Delta("".join(self._texts), self._tokens, self._finish_reason)
                self._texts, self._tokens = [], 0
                self.closed = self._finish_reason is not None
                self._finish_reason = None
                return delta
            if self._error is not None:
                raise self._error
            if self.closed:
                raise RuntimeError("the last delta has been read already")
            await self._wait()

    async def _wait(self) -> None:
        if self._waiter is not None:
            raise RuntimeError("a request has one reader")
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
