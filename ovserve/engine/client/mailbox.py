"""The mailbox of a request: its messages wait here for its reader, merged in one slot per choice.

The admission is reported to `on_admission` at once, and to the reader together with the first text
(unless `early` is set). So an error before the first text is a complete answer, and the first
token takes one write to the client and not two.

Slots replace a queue: a client slower than the engine then costs the memory of its own text and one wake-up
per read, never a longer queue for other requests. A fast one gets exactly one delta per step and choice.
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
    StepItem,
    Tokenize,
    Tokenized,
)
from ovserve.errors import OvserveError, from_kind
from ovserve.llm.request import Delta, TokenLogprob


class _Slot:
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.tokens = self.drafted = self.accepted = 0
        self.logprobs: list[TokenLogprob] = []
        self.finish_reason: str | None = None
        self.stop_string: str | None = None
        self.repetitive = False


class Mailbox:
    """Yields in this order: admission, text so far, end or error. One reader at a time.

    An admission that no text follows is dropped for the error.
    """

    def __init__(self, prompts: int = 1, choices: int = 1, *, early: bool = False) -> None:
        self._early = early
        self._prompts, self._choices = prompts, choices
        self._error: OvserveError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._taken = False  # the admission has been read
        self.begun = False  # part of the answer has been read
        self.closed = False  # the whole answer has been read
        # Called with the prompt tokens; again if the engine ends and another admits the request.
        self.on_admission: Callable[[int], None] | None = None
        # Called with those still to compute, a few times a second if known.
        self.on_prefill: Callable[[int], None] | None = None
        self.restart()

    def restart(self) -> None:
        """Drop what is unread: another engine begins from the start. Valid only if not `begun`."""
        self._outside = self._prompts  # not admitted yet
        self._admission: Delta | None = None
        self._slots: dict[int, _Slot] = {}  # choices with unread text, the longest waiting first
        self._unfinished = self._choices

    def admit(self, prompt_tokens: int, max_tokens: int, cached_tokens: int | None = None) -> None:
        """Record that one prompt is admitted. The reader learns of it once all are: sums, and the smallest
        limit."""
        if (so_far := self._admission) is not None:
            prompt_tokens += so_far.prompt_tokens
            max_tokens = min(max_tokens, so_far.max_tokens)
            if cached_tokens is not None:
                cached_tokens += so_far.cached_tokens or 0
        self._admission = Delta(
            prompt_tokens=prompt_tokens, max_tokens=max_tokens, cached_tokens=cached_tokens
        )
        self._outside -= 1
        if self._outside:
            return
        if self.on_admission is not None:
            self.on_admission(self._admission.prompt_tokens)
        if self._slots or self._early:
            self._wake()

    def add(self, index: int, item: StepItem) -> None:
        slot = self._slots.get(index)
        if slot is None:
            slot = self._slots[index] = _Slot()
        if item.text:
            slot.texts.append(item.text)
        slot.tokens += item.tokens
        slot.drafted += item.drafted
        slot.accepted += item.accepted
        if item.logprobs:
            slot.logprobs += item.logprobs
        if item.finish_reason is not None:
            slot.finish_reason, slot.stop_string = item.finish_reason, item.stop_string
            slot.repetitive = item.repetitive
            self._unfinished -= 1
        self._wake()

    @property
    def failed(self) -> bool:
        return self._error is not None

    def fail(self, error: OvserveError) -> None:
        """End with an error. The first error counts; later ones are consequences."""
        self._error = self._error or error
        self._wake()

    async def take(self) -> Delta:
        while True:
            if not self._outside and (self._slots or self._early):
                admission, self._admission = self._admission, None
                if admission is not None and not self._taken:  # else it belongs to an earlier engine
                    self._taken = True
                    return admission
            if self._slots and not self._outside:
                return self._next()
            if self._error is not None:
                raise self._error
            if self.closed:
                raise RuntimeError("the last delta has been read already")
            if self._waiter is not None:
                raise RuntimeError("a request has one reader")
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _next(self) -> Delta:
        index = next(iter(self._slots))
        slot = self._slots.pop(index)
        self.begun = True
        self.closed = not self._unfinished and not self._slots
        return Delta(
            "".join(slot.texts),
            slot.tokens,
            slot.finish_reason,
            index=index,
            logprobs=slot.logprobs or None,
            last=self.closed,
            drafted=slot.drafted,
            accepted=slot.accepted,
            stop_string=slot.stop_string,
            repetitive=slot.repetitive,
        )

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


# PendingCalls: calls to an engine that have one answer and run no model (tokenize, detokenize, compile a
# grammar).
#
# Mailboxes do not fit, because they merge and count streams. A call is a future by
# number. Numbers count down from -1, so a `Failed` is never taken for a request's, which count up from 1.


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
