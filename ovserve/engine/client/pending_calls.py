"""PendingCalls: calls to an engine that have one answer and run no model (tokenize, detokenize, compile a
grammar).

Mailboxes do not fit, because they merge and count streams. A call is a future by
number. Numbers count down from -1, so a `Failed` is never taken for a request's, which count up from 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from ovserve.engine.protocol.frames import UNSENDABLE, unsendable
from ovserve.engine.protocol.messages import (
    Compile,
    Compiled,
    Detokenize,
    Detokenized,
    Failed,
    Tokenize,
    Tokenized,
)
from ovserve.errors import OvserveError, from_kind

Question = Tokenize | Detokenize | Compile


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
            raise unsendable("the text", error) from error
        finally:  # also when the caller was cancelled
            self._waiting.pop(id_, None)

    def on_message(self, message: object) -> None:
        """Deliver an answer; an unknown number is valid, because the caller may have left."""
        if not isinstance(message, Failed | Compiled | Detokenized | Tokenized):
            return
        future = self._waiting.get(message.id)
        if future is None or future.done():
            return
        if isinstance(message, Failed):
            future.set_exception(from_kind(message.kind, message.message))
        elif isinstance(message, Compiled):
            future.set_result(message.memory)
        elif isinstance(message, Detokenized):
            future.set_result(message.texts)
        else:
            future.set_result(message.ids if message.packed is None else message.packed)

    def fail_all(self, error: OvserveError) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
