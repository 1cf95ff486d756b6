"""The scheduler, the pools and beam searches over a cache of tokens instead of keys and values, and over states
that are tokens too: each step reads, through its block tables and slots, just the tokens that it should, and no
block or slot is lost or freed twice."""

from __future__ import annotations

from collections import Counter
from itertools import count

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ovserve.kinds.text.worker.decoding import Sequence
from ovserve.kinds.text.worker.paged.beams import BeamSearch
from ovserve.kinds.text.worker.paged.blocks import BlockPool, TokenSequence
from ovserve.kinds.text.worker.paged.model import BLOCK_TOKENS
from ovserve.kinds.text.worker.paged.prefill_budget import PrefillBudget
from ovserve.kinds.text.worker.paged.runner import RESERVED_STATES, SPARE_STATE, ZERO_STATE
from ovserve.kinds.text.worker.paged.running import Running, ScheduledSequence
from ovserve.kinds.text.worker.paged.sampler import Choice
from ovserve.kinds.text.worker.paged.scheduler import Scheduler
from ovserve.kinds.text.worker.paged.states import SLOTS_OF_BEAM, StatePool
from ovserve.llm.request import Sampling

BLOCKS = 14
VOCABULARY = 12
END = 0
NOTHING = -1


class Engine:
    """The steps of `PagedEngine`, whose logits are a function of the tokens that the cache has."""

    def __init__(self, *, caches: bool, tokens: int = 64, slots: int = 0, of_state: int = 64) -> None:
        """`slots`: of states, each of which takes the memory of `of_state` tokens; 0: the model has none."""
        self.cache = np.full((BLOCKS, BLOCK_TOKENS), NOTHING)
        self.pool = BlockPool(BLOCKS, caches=caches, copy=self.copy)
        self.states = StatePool(slots, caches=caches, tokens_of_state=of_state) if slots else None
        self.table: dict[int, list[int]] = {ZERO_STATE: []}
        self.scheduler = Scheduler(self.pool, tokens, 8, PrefillBudget(), states=self.states)
        self.ended: dict[int, list[tuple[int, ...]]] = {}
        self.copies = 0
        self._ids = count(1)

    def copy(self, source: int, target: int) -> None:
        self.copies += 1
        self.cache[target] = self.cache[source]

    def add(self, prompt: list[int], beams: int, groups: int, most: int) -> Running:
        id_ = next(self._ids)
        sampling = Sampling(
            temperature=0.0, beams=beams, beam_groups=groups, n=beams, diversity_penalty=0.5 * (groups > 1)
        )
        sequence = Sequence(None, id_, sampling, len(prompt), frozenset({END}), frozenset())
        choice = Choice(sampling, prompt, (), None)
        running = Running(sequence, prompt, choice, most)
        if beams > 1:
            running.search = BeamSearch(sampling, len(prompt), choice, (END,), None)
        self.scheduler.add(running)
        return running

    def step(self) -> list[ScheduledSequence]:
        scheduled = self.scheduler.schedule(lambda running, num_decoding: self.draft(running)).items
        if self.states is not None:
            self.compute_states(scheduled)
        rows = [self.compute(item) for item in scheduled]
        for at, item in enumerate(scheduled):
            running = item.running
            if not item.rows:
                self.scheduler.record_computed(running, item.tokens)
            elif running.search is not None:
                if item.width:
                    self.search(running, running.search, np.array(rows[at : at + item.width]))
            else:
                first = len(running.ids)
                for token in (*item.drafted, None):
                    best = int(logits_of(running.ids.tolist()).argmax())
                    running.append(best, None)
                    if best != token or running.remaining_tokens == 0:
                        break
                self.scheduler.record_computed(
                    running, item.tokens - len(item.drafted) + len(running.ids) - first - 1
                )
        for running in list(self.scheduler.running.values()):
            if parts := running.take_parts():
                self.ended.setdefault(running.id, []).extend(tuple(part.ids) for part in parts)
            if running.searched or running.out_of_memory or running.remaining_tokens == 0:
                self.scheduler.remove(running.id)
        return scheduled

    def draft(self, running: Running) -> tuple[int, ...]:
        """Some of what follows, and then something else."""
        if self.states is None:
            return ()
        ids = running.ids.tolist()
        for _ in range(len(ids) % 4):
            ids.append(int(logits_of(ids).argmax()))
        return (*ids[len(running.ids) :], len(ids) % VOCABULARY)[: (running.remaining_tokens or 1) - 1]

    def search(self, running: Running, search: BeamSearch, logits: np.ndarray) -> None:
        if running.beams:
            for beam in running.beams:
                self.scheduler.record_computed(beam, 1)
        else:
            self.scheduler.record_computed(running, running.num_new_tokens)
            root = running.root_beam()
            running.set_beams([root])
            search.start(root)
        self.scheduler.fork(running, search.advance(running.beams, logits))
        running.searched = not running.beams or running.remaining_tokens == 0

    def compute(self, item: ScheduledSequence) -> np.ndarray:
        sequence = item.sequence
        end = sequence.num_computed_tokens + item.tokens
        ids = [*sequence.ids, *item.drafted]
        for at in range(sequence.num_computed_tokens, end):
            self.cache[sequence.block_table[at // BLOCK_TOKENS], at % BLOCK_TOKENS] = ids[at]
        tokens = self.read(sequence, end)
        assert tokens == ids[:end], "the cache has other tokens than the sequence"
        return logits_of(tokens)

    def compute_states(self, scheduled: list[ScheduledSequence]) -> None:
        """All read before any writes, and in any order: the operations compute sequences at once."""
        writes: list[int] = []
        written: dict[int, list[int]] = {}
        alien: set[int] = set()  # slots that are read by a sequence which does not write them
        for item in scheduled:
            ids = [*item.sequence.ids, *item.drafted]
            (read, *slots), tokens, kept_after, is_each = item.sequence.state.of_step(item.start, item.tokens)
            assert tokens == item.tokens
            assert self.table[read] == ids[: item.start], "the state is of other tokens than the sequence"
            counts = range(1, tokens + 1) if is_each else [kept_after, tokens][-len(slots) :]
            written |= {slot: ids[: item.start + count] for slot, count in zip(slots, counts, strict=True)}
            writes += slots
            alien |= {read} - set(slots)
        assert len(set(writes)) == len(writes)
        assert not alien & set(writes), "one sequence writes what another one reads"
        assert not {ZERO_STATE, SPARE_STATE} & set(writes)
        self.table |= written

    def read(self, sequence: TokenSequence, end: int) -> list[int]:
        return [
            int(self.cache[sequence.block_table[at // BLOCK_TOKENS], at % BLOCK_TOKENS]) for at in range(end)
        ]


def logits_of(tokens: list[int]) -> np.ndarray:
    random = np.random.default_rng([len(tokens), sum(tokens), *tokens[-3:]])
    row = random.normal(0, 2, VOCABULARY).astype(np.float32)
    row[END] -= 2
    return row


class Blocks(RuleBasedStateMachine):
    """Prompts of few different tokens, so that many begin alike."""

    slots = 0

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(caches=True, slots=self.slots)

    @rule(
        token=st.integers(1, 2),
        length=st.integers(1, 3 * BLOCK_TOKENS),
        shape=st.sampled_from([(1, 1), (2, 1), (3, 1), (4, 2), (4, 4), (7, 1)]),
        most=st.integers(1, 2 * BLOCK_TOKENS),
    )
    def add(self, token: int, length: int, shape: tuple[int, int], most: int) -> None:
        most = min(most, BLOCKS * BLOCK_TOKENS - length)
        self.engine.add([token] * length, *shape, most)

    @rule(steps=st.integers(1, 40))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.engine.step()

    @precondition(lambda self: self.engine.scheduler.running)
    @rule(at=st.integers(0, 20))
    def cancel(self, at: int) -> None:
        ids = list(self.engine.scheduler.running)
        self.engine.scheduler.remove(ids[at % len(ids)])

    @invariant()
    def each_block_has_as_many_users_as_tables_name_it(self) -> None:
        tables = [
            table
            for running in self.engine.scheduler.running.values()
            for table in (running.block_table, *(beam.block_table for beam in running.beams))
        ]
        users = Counter(block for table in tables for block in table)
        pool = self.engine.pool
        assert pool.ref_counts == [users[block] for block in range(BLOCKS)]
        assert pool.available == BLOCKS - len(users)
        assert all(len(set(table)) == len(table) for table in tables)

    @invariant()
    def each_slot_has_as_many_users_as_sequences_name_it(self) -> None:
        if (states := self.engine.states) is None:
            return
        sequences = [
            sequence
            for running in self.engine.scheduler.running.values()
            for sequence in (running, *running.beams)
        ]
        held = [
            {each.state.own, each.state.read, each.state.snapshot, *each.state.drafted} for each in sequences
        ]
        users = Counter(slot for slots in held for slot in slots)
        pool = states._slots
        assert pool.ref_counts[RESERVED_STATES:] == [
            users[slot] for slot in range(RESERVED_STATES, self.slots)
        ]
        assert pool.available == sum(count == 0 for count in pool.ref_counts)

    def teardown(self) -> None:
        for _ in range(20_000):
            if not self.engine.scheduler.running:
                break
            self.engine.step()
        assert not self.engine.scheduler.running, "every request ends"
        assert self.engine.pool.available == BLOCKS
        if self.engine.states is not None:
            assert self.engine.states._slots.available == self.engine.states.size


class States(Blocks):
    """With just the slots that the widest search needs."""

    slots = 7 * SLOTS_OF_BEAM + RESERVED_STATES


TestBlocks = Blocks.TestCase
TestStates = States.TestCase
TestBlocks.settings = TestStates.settings = settings(deadline=None, stateful_step_count=25)


def ended(engine: Engine, running: Running) -> list[tuple[int, ...]]:
    while running.id in engine.scheduler.running:
        engine.step()
    return engine.ended[running.id]


def test_beams_share_what_they_have_in_common_and_copy_what_they_write() -> None:
    engine = Engine(caches=False)
    running = engine.add([1] * (2 * BLOCK_TOKENS + 5), 4, 1, 20)
    while not running.beams:
        engine.step()
    assert engine.pool.num_used == 3, "the prompt is there once"
    assert len(running.beams) == 4
    engine.step()
    assert engine.copies == 3, "the last one keeps the block"
    assert engine.pool.num_used <= 2 + 4


def test_a_search_begins_again_where_older_answers_needed_its_blocks() -> None:
    prompt, most = [2] * (BLOCK_TOKENS - 3), 2 * BLOCK_TOKENS
    alone = ended(engine := Engine(caches=False), engine.add(prompt, 4, 2, most))
    assert len(set(alone)) > 1
    engine = Engine(caches=False)
    older = [engine.add([1] * BLOCK_TOKENS, 1, 1, 4 * BLOCK_TOKENS) for _ in range(2)]
    for _ in range(2):
        engine.step()
    running = engine.add(prompt, 4, 2, most)
    restarts, before = 0, 0
    while running.id in engine.scheduler.running:
        engine.step()
        restarts += len(running.ids) < before
        before = len(running.ids)
    assert restarts
    assert engine.ended[running.id] == alone
    assert all(one.id in engine.ended for one in older)


def test_a_search_starts_when_there_is_room_for_all_that_it_may_become() -> None:
    engine = Engine(caches=False)
    first = engine.add([1] * BLOCK_TOKENS, 4, 1, 2 * BLOCK_TOKENS)  # 9 blocks of 14
    second = engine.add([2] * BLOCK_TOKENS, 4, 1, 2 * BLOCK_TOKENS)
    younger = engine.add([3] * BLOCK_TOKENS, 1, 1, 2)
    engine.step()
    assert first.beams
    while not second.beams:
        assert (second.num_computed_tokens, younger.num_computed_tokens) == (0, 0), (
            "the younger one does not pass it"
        )
        engine.step()
    assert first.id in engine.ended
    assert ended(engine, second)


def test_a_full_cache_ends_a_search_with_what_it_has() -> None:
    engine = Engine(caches=False)
    running = engine.add([3] * (BLOCK_TOKENS * 6), 7, 1, BLOCKS * BLOCK_TOKENS - 6 * BLOCK_TOKENS)
    found = ended(engine, running)
    assert found
    assert engine.pool.available == BLOCKS
    assert max(map(len, found)) < 2 * BLOCK_TOKENS, "eight blocks for seven beams"


def test_more_beams_than_a_step_has_tokens() -> None:
    engine = Engine(caches=False, tokens=4)
    alone = ended(engine, engine.add([1] * 20, 7, 1, 12))
    many = [engine.add([1] * 20, width, 1, 12) for width in (7, 1, 7, 2)]
    found = [ended(engine, each) for each in many]
    assert (found[0], found[2]) == (alone, alone)
    assert all(found)
