"""A pipeline that keeps requests outside of the library for a while, and adds them when there is room.

These are requests that the library dropped (`quirks/dropped.py`), and requests with drafts that would not be
in every step (`quirks/left_out.py`).
"""

from __future__ import annotations

from collections.abc import Callable

import openvino_genai as ov_genai

from ovserve.engine.backends.genai.loaded import LoadedPipeline
from ovserve.engine.backends.genai.quirks.dropped import Dropped, demand
from ovserve.engine.backends.genai.quirks.left_out import OUTSIDE
from ovserve.engine.backends.genai.quirks.overtaking import Prompt
from ovserve.engine.decoding.drafting_room import DraftingRoom
from ovserve.engine.decoding.echo_order import comes_first
from ovserve.engine.decoding.sequence import Sequence
from ovserve.engine.decoding.speculation import SpeculativeStats
from ovserve.engine.protocol.messages import Failed
from ovserve.errors import InvalidArgument, Unavailable
from ovserve.llm.request import Sampling

NOT_FIRST = (
    "echo with logprobs: the engine computes such a prompt before all others, and it has not been without "
    "other requests in time. Try again later"
)


class WaitingPipeline(LoadedPipeline):
    @property
    def _waiting_again(self) -> int:
        """Requests that were dropped, or not added yet, and are not in the library."""
        return 0 if self._dropped is None else self._dropped.waiting

    def _may_fit(self, prompt_tokens: int) -> bool:
        return self._drafting is None or self._drafting.may_fit(prompt_tokens)

    def _waits(self, prompt: Prompt, sampling: Sampling) -> bool:
        """Return whether a new request has to be kept out of the library (`quirks/left_out.py`).

        Raises Unavailable for one that `comes_first`."""
        if self._drafting is None:
            return False
        if not self._waiting_again and self._drafting.fits(demand(prompt, sampling)):
            return False
        if comes_first(sampling):
            raise Unavailable(NOT_FIRST)
        return True

    def _remember(
        self,
        request_id: int,
        prompt: Prompt,
        sampling: Sampling,
        start: Callable[[], ov_genai.GenerationHandle] | None,
    ) -> None:
        """`start`: adds it to the library, where it is not yet."""
        if self._dropped is not None:
            self._dropped.admitted(request_id, prompt, sampling)
            if start is not None:
                self._dropped.hold(request_id, start)
        if self._drafting is not None and start is None:
            self._drafting.added(request_id, demand(prompt, sampling))

    def _let_in(self) -> None:
        """Take out what will have no room, and add what has room now, before a step."""
        if self._dropped is None:
            return
        if self._drafting is None:
            self._resume(self._dropped)
        else:
            self._make_room(self._drafting, self._dropped)
            self._go_on(self._drafting, self._dropped)

    def _make_room(self, drafting: DraftingRoom, dropped: Dropped) -> None:
        """Take out what would not fit into the step after the next one."""
        for id_ in drafting.crowded():
            if (sequence := self._live.get(id_)) is None:
                continue
            self._cancel(sequence)
            sequence.handle = OUTSIDE
            self._accounts.dropped(id_)
            dropped.hold(id_)

    def _go_on(self, drafting: DraftingRoom, dropped: Dropped) -> None:
        """Add those that wait as far as there is room, in their order."""
        while (found := dropped.first()) is not None and drafting.fits(found[1]):
            id_, wanted = found
            prompt, start = dropped.leave(id_)
            sequence = self._live[id_]
            try:
                if start is not None:
                    sequence.handle = start()
                else:
                    named = self._cut_alike.named(prompt.ids, sequence.sampling)
                    self._overtaking.add_again(sequence, prompt._replace(ids=named), None)
            except (InvalidArgument, Unavailable) as error:
                self._left(id_)
                del self._live[id_]
                self._refused.append(Failed(id_, error.kind, error.message))
                continue
            if isinstance(sequence.drafts, SpeculativeStats):
                sequence.drafts.interrupted()
            drafting.added(id_, wanted)
            self._accounts.resumed(id_, wanted.prompt, sequence.sampling.beams)

    def _resume(self, dropped: Dropped) -> None:
        """Add what was dropped again, once the library is empty."""
        if self._pipeline.has_non_finished_requests():
            return
        for id_, prompt in dropped.next():
            sequence = self._live[id_]
            try:
                cached = self._overtaking.add_again(sequence, prompt, self._accounts.prefix)
            except Unavailable as error:
                self._left(id_)
                del self._live[id_]
                self._refused.append(Failed(id_, "unavailable", str(error)))
                continue
            unread = prompt.ids.shape[1] - (cached or 0)
            self._accounts.resumed(id_, unread, sequence.sampling.beams)

    def _drop(self, sequence: Sequence, dropped: Dropped) -> list[Failed]:
        """The library gave it up for lack of room that others took: it goes on later, or ends."""
        self._accounts.dropped(sequence.id)
        self._ended(sequence.id)
        sequence.handle = OUTSIDE
        if dropped.keep(sequence.id):
            return []
        self._left(sequence.id)
        del self._live[sequence.id]
        why = "the KV cache was full, and this request had to give its place to others; try again"
        return [Failed(sequence.id, "unavailable", why)]

    def _cancel(self, sequence: Sequence) -> None:
        self._leaving = True
        sequence.handle.cancel()
        self._accounts.cancel(sequence)
        if self._drafting is not None:
            self._drafting.cancelled(sequence.id)

    def _left(self, request_id: int, *, cancelled: bool = False) -> None:
        self._overtaking.forget(request_id)
        if self._dropped is not None:
            self._dropped.ended(request_id)
        self._accounts.left(request_id, cancelled=cancelled)

    def _ended(self, request_id: int) -> None:
        """The library has nothing of it any more."""
        if self._drafting is not None:
            self._drafting.ended(request_id)
