"""The blocks of the KV cache: nobody's block changes under it, and none is lost."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ovserve.kinds.text.worker.paged.blocks import GROWTH_BLOCKS, ROOT, BlockPool
from ovserve.kinds.text.worker.paged.model import BLOCK_TOKENS

SIZE = 12


def no_copy(source: int, target: int) -> None:
    raise AssertionError("nothing was forked")


def ids_of(tokens: list[int]) -> array[int]:
    """A block of each token."""
    return array("q", [token for token in tokens for _ in range(BLOCK_TOKENS)])


class Pool(RuleBasedStateMachine):
    """Sequences of few different blocks, so that many are alike."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(SIZE, caches=True, copy=no_copy)
        self.sequences: list[tuple[list[int], array[int]]] = []
        self.written: dict[int, list[int]] = {}  # what each block was last filled with, from the beginning

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=5))
    def start(self, tokens: list[int]) -> None:
        ids = ids_of(tokens) + array("q", [7])
        found = self.pool.find_prefix(ids)
        blocks, digests = array("i", [b for b, _ in found]), [d for _, d in found]
        for at, block in enumerate(blocks):
            assert self.written[block] == tokens[: at + 1], "what was found is what was written"
        if self.pool.available < len(tokens) - len(blocks):
            self.pool.release(blocks)
            return
        for at in range(len(blocks), len(tokens)):
            block = self.pool.allocate()
            assert block is not None
            assert all(block not in others for _, others in self.sequences)
            self.written[block] = tokens[: at + 1]
            blocks.append(block)
            before = digests[-1] if digests else ROOT
            digests.append(self.pool.publish(block, before, ids_of([tokens[at]])))
        self.sequences.append((tokens, blocks))

    @rule(at=st.integers(0, 20))
    def end(self, at: int) -> None:
        if self.sequences:
            self.pool.release(self.sequences.pop(at % len(self.sequences))[1])

    @invariant()
    def every_block_is_used_or_available(self) -> None:
        used = {block for _, blocks in self.sequences for block in blocks}
        assert self.pool.num_used == len(used)
        assert self.pool.available == SIZE - len(used)

    @invariant()
    def running_sequences_keep_what_they_wrote(self) -> None:
        for tokens, blocks in self.sequences:
            assert [self.written[block] for block in blocks] == [
                tokens[: at + 1] for at in range(len(tokens))
            ]


TestPool = Pool.TestCase


@given(st.integers(1, 3 * BLOCK_TOKENS))
def test_the_last_token_is_never_found(tokens: int) -> None:
    pool, ids = BlockPool(4, caches=True, copy=no_copy), array("q", [1] * tokens)
    before = ROOT
    for at in range(tokens // BLOCK_TOKENS):
        block = pool.allocate()
        assert block is not None
        before = pool.publish(block, before, ids[at * BLOCK_TOKENS : (at + 1) * BLOCK_TOKENS])
    assert len(pool.find_prefix(ids)) == (tokens - 1) // BLOCK_TOKENS


def test_without_a_cache_nothing_is_found() -> None:
    pool, ids = BlockPool(4, caches=False, copy=no_copy), array("q", [1] * 3 * BLOCK_TOKENS)
    block = pool.allocate()
    assert block is not None
    pool.publish(block, ROOT, ids[:BLOCK_TOKENS])
    assert pool.find_prefix(ids) == []


def test_what_was_left_first_goes_first_and_the_end_before_the_beginning() -> None:
    pool = BlockPool(4, caches=True, copy=no_copy)
    first, second = ids_of([1, 2]), ids_of([3, 4])
    for ids in (first, second):
        blocks, before = array("i"), ROOT
        for at in range(2):
            block = pool.allocate()
            assert block is not None
            blocks.append(block)
            before = pool.publish(block, before, ids[at * BLOCK_TOKENS : (at + 1) * BLOCK_TOKENS])
        pool.release(blocks)
    assert pool.allocate() is not None
    assert [len(pool.find_prefix(ids + array("q", [0]))) for ids in (first, second)] == [1, 2]


def test_blocks_that_memory_has_no_room_for_are_withheld_until_it_has() -> None:
    room = [3]
    pool = BlockPool(1000, caches=False, copy=no_copy, room=lambda: room[0])
    assert not pool.can_allocate(4)
    assert pool.can_allocate(3)
    blocks = array("i", [block for _ in range(3) if (block := pool.allocate()) is not None])
    room[0] = 0  # another model has been loaded
    assert not pool.can_allocate(1)
    assert pool.allocate() is None
    assert (pool.num_used, pool.withheld) == (3, 997)
    pool.release(blocks[:1])
    assert pool.can_allocate(1)
    assert pool.allocate() == 0, "what was touched has its memory"
    room[0] = 1000
    assert pool.can_allocate(997)


def test_memory_is_measured_as_the_pool_grows_and_not_for_each_block() -> None:
    measured: list[int] = []

    def room() -> int:
        measured.append(1)
        return 10_000

    pool = BlockPool(1000, caches=False, copy=no_copy, room=room)
    for _ in range(1000):
        assert pool.can_allocate(1)
        pool.allocate()
    assert len(measured) <= 1000 / GROWTH_BLOCKS + 1
    assert not pool.can_allocate(1)
