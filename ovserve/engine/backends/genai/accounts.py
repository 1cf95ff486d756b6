"""Accounts: the engine process's record of the library's cache and next step, request by request.

Three accounts, each of which may be absent: the prefix cache (what a prompt finds there), the token budget of
the next step, and the blocks of a cache that evicts.
"""

from __future__ import annotations

import sys

import openvino

from ovserve.engine.backends.genai.text import ids_tensor
from ovserve.engine.decoding.eviction_budget import EvictionRoom
from ovserve.engine.decoding.sequence import Part, Sequence
from ovserve.engine.decoding.token_budget import TokenBudget
from ovserve.engine.prefix_cache.model import Gain, PrefixCacheModel
from ovserve.engine.protocol.specs import TextSpec, block_tokens


class Accounts:
    def __init__(
        self,
        prefix: PrefixCacheModel | None,
        room: TokenBudget | None,
        evictions: EvictionRoom | None,
        *,
        plans: bool = True,
    ) -> None:
        """`plans`: `room` decides when a prompt is added; else it only counts what is read of each."""
        self.prefix = prefix
        self._room = room
        self._plan = room if plans else None
        self._evictions = evictions

    @property
    def unread(self) -> tuple[tuple[int, int], ...]:
        """Requests and the tokens of their prompts still to compute; empty where that is not known."""
        return () if self._room is None else self._room.unread

    def can_schedule(self, encoded: openvino.Tensor) -> bool:
        """Return whether a prompt should be added before the next step."""
        tokens = encoded.shape[1]
        if self._evictions is not None and not self._evictions.can_schedule(tokens):
            return False
        return self._plan is None or self._plan.can_schedule(tokens)

    def overtakes(self, encoded: openvino.Tensor) -> bool:
        """Return whether it may be added before the next step although that has no room.

        See `quirks/overtaking.py`."""
        return bool(self.prefix and self._plan and self._plan.overtakes(encoded.shape[1]))

    def in_the_way(self) -> list[int]:
        """Return the requests that step aside for a short prompt."""
        return [] if self._plan is None else self._plan.in_the_way()

    def admitted(
        self, request_id: int, prompt_tokens: int, unread: int, sequences: int, *, ahead: bool, resumes: bool
    ) -> None:
        """Book a request: the tokens of its prompt that no cache has, and its place in the next step."""
        if self._room is not None:
            if ahead:
                self._room.overtaken(request_id, unread, sequences)
            else:
                self._room.admitted(request_id, unread, sequences, resumes=resumes)
        if self._evictions is not None:
            self._evictions.admitted(request_id, prompt_tokens, sequences)

    def resumed(self, request_id: int, unread: int, sequences: int) -> None:
        """Book a request that the library had dropped."""
        if self._room is not None:
            self._room.admitted(request_id, unread, sequences, resumes=False)

    def dropped(self, request_id: int) -> None:
        if self._room is not None:
            self._room.ended(request_id)

    def stepped(self) -> None:
        if self._room is not None:
            self._room.stepped()
        if self._evictions is not None:
            self._evictions.stepped()

    def gained(self, parts: list[tuple[Sequence, list[Part]]]) -> None:
        """Book what one step gave."""
        if self._room is not None and self._plan is None:  # such a cache may have had more of the prompt
            for sequence, _ in parts:
                self._room.begun(sequence.id)
        if self.prefix is not None and not self.prefix.step([gain(*each) for each in parts]):
            self.prefix = None  # better nothing than a figure that is wrong
            print("the model of the prefix cache failed; its hits are no longer reported", file=sys.stderr)  # noqa: T201

    def cancel(self, sequence: Sequence) -> None:
        if self.prefix is not None:
            self.prefix.cancel(sequence.library_id)

    def left(self, request_id: int, *, cancelled: bool = False) -> None:
        if self._room is not None:
            self._room.ended(request_id)
        if self._evictions is not None:
            (self._evictions.cancelled if cancelled else self._evictions.ended)(request_id)


def token_budget(spec: TextSpec) -> TokenBudget | None:
    """Return the budget of a step; None where the library does not cut prompts to fill one."""
    return TokenBudget(spec.max_num_batched_tokens) if spec.dynamic_split_fuse else None


def prefix_account(spec: TextSpec, room: int | None) -> PrefixCacheModel | None:
    """The account where the prefix cache depends on the prompts alone. `room`: tokens that a bounded cache
    holds."""
    bounded = bool(spec.cache_size or spec.num_kv_blocks)
    if not spec.enable_prefix_caching or spec.decoding != "plain" or spec.cache_eviction is not None:
        return None
    if (
        not spec.dynamic_split_fuse
        or spec.cache_interval_multiplier is not None
        or not spec.device.startswith("CPU")
        or (bounded and room is None)
    ):
        return None
    size = block_tokens(spec.device)
    account = PrefixCacheModel(
        block=size,
        blocks=(room or 0) // size,
        batch=spec.max_num_batched_tokens,
    )
    if bounded:
        account.replay(ids_tensor((0,)).data.tobytes(), [0], cut=True)  # the probe of quirks/capacity.py
    return account


def gain(sequence: Sequence, parts: list[Part]) -> Gain:
    if not parts or sequence.sampling.beams > 1:  # no room was left; or all that beams found, at the end
        return Gain(sequence.library_id, [], True)
    [part] = parts
    return Gain(sequence.library_id, sequence.generated_ids(part), part.finish is not None)
