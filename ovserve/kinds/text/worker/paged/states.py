"""The states of linear attention and of convolutions: which slot of the tables has that of which sequence.

A model with such layers keeps one state of a sequence, where attention keeps the keys and values of each of
its tokens. A step reads the state of a sequence from one slot and writes it to another, or to the same. So a
sequence that begins reads a slot of zeros, one whose prefix is cached reads the state behind that, and
neither is copied.

States behind full blocks are kept for prefixes, under the digest of the last block. One is kept at the end of
a prompt and where a prompt left what others had begun with. Others follow every so many tokens that their
keys and values take the memory of a state. Of an answer the last one is kept, where the next turn of a chat
goes on. So a prefix is found up to the last state behind its cached blocks.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from ovserve.kinds.text.worker.paged.blocks import NO_SLOT, BlockPool, StateSlots, TokenSequence
from ovserve.kinds.text.worker.paged.model import BLOCK_TOKENS
from ovserve.kinds.text.worker.paged.runner import RESERVED_STATES, ZERO_STATE
from ovserve.kinds.text.worker.paged.running import Running

SLOTS_OF_BEAM = 2  # it reads that of its parent, which another one may read too


class StatePool:
    def __init__(
        self, slots: int, *, caches: bool, tokens_of_state: int, room: Callable[[], int] | None = None
    ) -> None:
        """`slots`: of the tables, with the reserved ones. `caches`: keep states for prefixes.
        `tokens_of_state`: whose keys and values take the memory of a state. `room`: as for blocks."""
        self._slots = BlockPool(slots, caches=caches, room=room, growth=0)
        for _ in range(RESERVED_STATES):
            self._slots.allocate()
        self.size = slots - RESERVED_STATES
        self._caches = caches
        self._tokens_of_state = tokens_of_state
        self.num_reserved = 0  # slots that beam searches will need

    @property
    def available(self) -> int:
        return self._slots.available - self.num_reserved

    @property
    def touched(self) -> int:
        return self._slots.touched

    @property
    def withheld(self) -> int:
        return self._slots.withheld

    def find(self, state: StateSlots, digests: list[bytes], step: int) -> int:
        """Return after how many blocks of a prefix, a multiple of `step`, a sequence goes on."""
        state.shared_tokens = len(digests) * BLOCK_TOKENS
        for count in range(len(digests) // step * step, 0, -step):
            if (slot := self._slots.find(digests[count - 1])) is not None:
                state.read, state.kept_tokens = slot, count * BLOCK_TOKENS
                return count
        return 0

    def can_start(self, running: Running) -> bool:
        missing = _missing_slots(running)
        return self._slots.can_allocate(missing) and self.available >= missing

    def start(self, running: Running) -> bool:
        """Give a request a slot, and reserve those that its beams will need; return False if there are too
        few."""
        if not self.can_start(running) or not self.allocate(running.state):
            return False
        self.num_reserved += _missing_slots(running)
        return True

    def reserve(self, requests: Iterable[Running]) -> None:
        """Keep free what beam searches will need."""
        self.num_reserved = sum(_missing_slots(each) for each in requests)

    def allocate(self, state: StateSlots) -> bool:
        """Give a sequence a slot to write to, if it has none; return False if there is none."""
        if state.own == NO_SLOT:
            if (slot := self._slots.allocate()) is None:
                self._slots.withheld = 0  # a search reserved it while there was memory, and has to go on
                slot = self._slots.allocate()
            state.own = NO_SLOT if slot is None else slot
        return state.own != NO_SLOT

    def release(self, state: StateSlots) -> None:
        """Take back what a sequence has."""
        for slot in {state.own, state.read, state.snapshot, *state.drafted} - {NO_SLOT, ZERO_STATE}:
            self._slots.release(array("i", [slot]))
        state.own, state.read, state.snapshot, state.drafted = NO_SLOT, ZERO_STATE, NO_SLOT, array("i")
        state.kept_tokens, state.last_kept = 0, b""

    def fork(self, parent: StateSlots, children: list[StateSlots]) -> None:
        """Let sequences go on from the state of another one, which gives it up."""
        if len(children) == 1:
            children[0].own, children[0].read = parent.own, parent.read
            parent.own, parent.read = NO_SLOT, ZERO_STATE
            return
        for child in children:
            child.read = self._slots.fork(array("i", [parent.read]))[0]
        self.release(parent)

    def plan(self, running: Running, count: int) -> None:
        """Let a step of `count` tokens keep the state at the end of the prompt, if it computes that."""
        state, end = running.state, running.num_computed_tokens + count
        kept_tokens = (end - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        is_wanted = self._caches and end == len(running.ids) and kept_tokens > running.num_computed_tokens
        if is_wanted and self._can_keep() and (slot := self._slots.allocate()) is not None:
            state.snapshot, state.kept_tokens = slot, kept_tokens

    def plan_drafts(self, running: Running, count: int) -> int:
        """Let a step keep the state behind each of so many draft tokens; return for how many there is room.

        The one behind the last token that is accepted becomes the sequence's."""
        while len(running.state.drafted) < count and self._can_keep():
            slot = self._slots.allocate()
            assert slot is not None
            running.state.drafted.append(slot)
        return len(running.state.drafted)

    def _accept(self, state: StateSlots, sequence: TokenSequence, count: int) -> None:
        """Let a sequence have the state behind the `count` tokens of the step that count."""
        slots, state.drafted = [state.own, *state.drafted], array("i")
        state.own = slots[count - 1]
        num_blocks = len(sequence.digests)
        at = num_blocks * BLOCK_TOKENS - (sequence.num_computed_tokens - count) - 1
        if self._caches and 0 <= at < count - 1 and self._slots.keep(slots[at], sequence.digests[-1]):
            if state.last_kept:
                self._slots.forget(state.last_kept)
            state.last_kept, state.kept_tokens = sequence.digests[-1], num_blocks * BLOCK_TOKENS
        for slot in slots:
            if slot not in (state.own, state.read):
                self._slots.release(array("i", [slot]))

    def record_computed(self, sequence: TokenSequence, count: int) -> bool:
        """Record that `count` tokens of a step are those of a sequence; return whether slots have changed."""
        state, num_computed, digests = sequence.state, sequence.num_computed_tokens, sequence.digests
        changed = state.read != state.own or state.snapshot != NO_SLOT or bool(state.drafted)
        if state.drafted:
            self._accept(state, sequence, count)
        if state.read not in (state.own, ZERO_STATE):
            self._slots.release(array("i", [state.read]))
        state.read = state.own
        if state.snapshot != NO_SLOT:
            if (blocks := state.kept_tokens // BLOCK_TOKENS) <= len(digests):
                self._slots.keep(state.snapshot, digests[blocks - 1])
            self._slots.release(array("i", [state.snapshot]))
            state.snapshot = NO_SLOT
        far = num_computed - state.kept_tokens >= self._tokens_of_state or num_computed == state.shared_tokens
        if (
            not self._caches
            or not isinstance(sequence, Running)
            or num_computed != len(digests) * BLOCK_TOKENS
        ):
            return changed
        is_answer = num_computed > sequence.num_prompt_tokens
        if (far or is_answer) and self._can_keep():
            changed |= self._keep(state, digests[-1], num_computed, replaces=is_answer)
        return changed

    def _can_keep(self) -> bool:
        return self._slots.can_allocate(1) and self.available > 0

    def _keep(self, state: StateSlots, digest: bytes, num_computed: int, *, replaces: bool) -> bool:
        """Keep the state of a sequence, whose next step writes another slot."""
        if not self._slots.keep(state.own, digest):
            return False
        if state.last_kept:
            self._slots.forget(state.last_kept)
        state.own = NO_SLOT
        self.allocate(state)
        state.kept_tokens, state.last_kept = num_computed, digest if replaces else b""
        return True


def _missing_slots(running: Running) -> int:
    """Return how many more slots a request may need than it has."""
    if running.search is None:
        return int(running.state.own == NO_SLOT)
    states = [sequence.state for sequence in (running, *running.beams)]
    held = {slot for state in states for slot in (state.own, state.read)} - {NO_SLOT, ZERO_STATE}
    return max(SLOTS_OF_BEAM * running.sequence.sampling.beams - len(held), 0)
