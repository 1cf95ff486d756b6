"""PendingCalls: calls to an engine that have one answer and run no model (tokenize, detokenize, compile a
grammar).

Mailboxes do not fit, because they merge and count streams. A call is a future by
number. Numbers count down from -1, so a `Failed` is never taken for a request's, which count up from 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from ovserve.engine.protocol.frames import FrameError
from ovserve.engine.protocol.messages import (
    Compile,
    Compiled,
    Detokenize,
    Detokenized,
    Failed,
    Tokenize,
    Tokenized,
)
from ovserve.errors import InvalidArgument, OvserveError, from_kind

Question = Tokenize | Detokenize | Compile

UNSENDABLE = (UnicodeEncodeError, OverflowError, FrameError, msgspec.MsgspecError)


class PendingCalls:
    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._waiting)

    async def call(self, send: Callable[[Question], None], make: Callable[[int], Question]) -> Any:
        """Send the message that `make` builds for a new number, and wait. Raises the error of `fail_all` or
        of the engine."""
        self._last_id -= 1
        id_ = self._last_id
        future = self._waiting[id_] = asyncio.get_running_loop().create_future()
        try:
            send(make(id_))
            return await future
        except UNSENDABLE as error:
            raise InvalidArgument(f"the text cannot be sent to the engine: {error}") from error
        finally:  # also when the caller was cancelled
            self._waiting.pop(id_, None)

    def on_message(self, message: object) -> None:
        """Dispatch a message of a process that only answers calls."""
        if isinstance(message, Failed):
            self.reject(message)
        elif isinstance(message, Tokenized | Detokenized | Compiled):
            self.answer(message)

    def answer(self, message: Tokenized | Detokenized | Compiled) -> None:
        """Deliver an answer; an unknown number is valid, because the caller may have left."""
        future = self._waiting.get(message.id)
        if future is not None and not future.done():
            if isinstance(message, Compiled):
                future.set_result(message.memory)
            else:
                future.set_result(_said(message))

    def reject(self, message: Failed) -> None:
        future = self._waiting.get(message.id)
        if future is not None and not future.done():
            future.set_exception(from_kind(message.kind, message.message))

    def fail_all(self, error: OvserveError) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)


def _said(message: Tokenized | Detokenized) -> list[list[int]] | list[bytes] | list[str]:
    if isinstance(message, Detokenized):
        return message.texts
    return message.ids if message.packed is None else message.packed
