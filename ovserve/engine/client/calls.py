"""PendingCalls to an engine that have one answer and run no model: tokenise, detokenise, compile a grammar.

Held by `client.py` and `grammars.py`.

Why not through mailboxes: those are for streams that are merged and counted. A question is a future by
number; numbers count down from -1, so that a `Failed` is never taken for a request's, which count up from 1.
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

    async def ask(self, send: Callable[[Question], None], make: Callable[[int], Question]) -> Any:
        """Send what `make` makes of the new number, and wait. Raises what `fail` or the engine says."""
        self._last_id -= 1
        id_ = self._last_id
        future = self._waiting[id_] = asyncio.get_running_loop().create_future()
        try:
            send(make(id_))
            return await future
        except UNSENDABLE as error:
            raise InvalidArgument(f"the text cannot be sent to the engine: {error}") from error
        finally:  # also when the one who asked has left
            self._waiting.pop(id_, None)

    def word(self, word: object) -> None:
        """Whatever a process that is only asked questions says."""
        if isinstance(word, Failed):
            self.refuse(word)
        elif isinstance(word, Tokenized | Detokenized | Compiled):
            self.answer(word)

    def answer(self, word: Tokenized | Detokenized | Compiled) -> None:
        """An unknown number is fine: the one who asked has left."""
        future = self._waiting.get(word.id)
        if future is not None and not future.done():
            if isinstance(word, Compiled):
                future.set_result(word.memory)
            else:
                future.set_result(_said(word))

    def refuse(self, word: Failed) -> None:
        future = self._waiting.get(word.id)
        if future is not None and not future.done():
            future.set_exception(from_kind(word.kind, word.message))

    def fail_all(self, error: OvserveError) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)


def _said(word: Tokenized | Detokenized) -> list[list[int]] | list[bytes] | list[str]:
    if isinstance(word, Detokenized):
        return word.texts
    return word.ids if word.packed is None else word.packed
