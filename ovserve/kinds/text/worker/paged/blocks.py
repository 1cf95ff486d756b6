"""The blocks of the KV cache: which are free, which sequences share one, and what earlier ones left in them.

Forked sequences share their blocks. Only the last one is still written to: a sequence that does so takes a
copy while others have it too (copy on write).

A block is known by a digest of its tokens and of the digest of the block before it, so of all tokens up to
its end. BLAKE2b with 32 bytes has no collisions that anyone could find. A block that no sequence uses keeps
its content until it is evicted. The least recently used goes first, and of a sequence the last block, because
a block is only found after those before it. A `PrefixStore` keeps blocks beyond that.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable

from ovserve.kinds.text.worker.paged.model import BLOCK_TOKENS
from ovserve.kinds.text.worker.paged.prefix_store import PrefixStore
from ovserve.kinds.text.worker.paged.runner import ZERO_STATE, StepStates

ROOT = b""  # digest before the first block
NO_SLOT = -1
GROWTH_BLOCKS = 64  # allocated between two measurements of memory, which take 0.1 ms
Copy = Callable[[int, int], None]  # of the first block's keys and values to the second one


class TokenSequence:
    """Tokens and their blocks in the KV cache."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = array("q", ids)
        self.num_computed_tokens = 0  # of these, those whose keys and values are in the cache
        self.block_table = array("i")
        self.digests: list[bytes] = []  # of the full blocks (see `BlockPool`)
        self.publishes = True  # others may find its blocks
        self.state = StateSlots()  # of a model with linear attention


class StateSlots:
    """The slots of a sequence's state, see `StatePool`."""

    def __init__(self) -> None:
        self.own = NO_SLOT  # the next step writes it
        self.read = ZERO_STATE  # the next step reads it: mostly the own one
        self.snapshot = NO_SLOT  # the step that runs writes the state behind `kept_tokens` to it
        self.drafted = array("i")  # the step that runs writes the states behind its draft tokens to these
        self.kept_tokens = 0  # of the sequence, up to its last kept state
        self.last_kept = b""  # digest of the last one that was kept of the answer
        self.shared_tokens = 0  # of the prompt, whose blocks were cached

    def of_step(self, start: int, tokens: int) -> StepStates:
        """Return the slots of a step that computes so many tokens from `start` on."""
        if self.drafted:
            return StepStates((self.read, self.own, *self.drafted), tokens, is_each=True)
        if self.snapshot == NO_SLOT:
            return StepStates((self.read, self.own), tokens)
        return StepStates((self.read, self.snapshot, self.own), tokens, self.kept_tokens - start)


class BlockPool:
    def __init__(
        self,
        blocks: int,
        *,
        caches: bool,
        copy: Copy | None = None,
        room: Callable[[], int] | None = None,
        growth: int = GROWTH_BLOCKS,
        store: PrefixStore | None = None,
    ) -> None:
        """`caches`: keep what sequences leave. `room`: for how many untouched blocks there is memory.
        `growth`: blocks between two such measurements."""
        self.size = blocks
        self._copy = copy
        self._caches = caches
        self._free = list(range(blocks - 1, -1, -1))  # low ones first, so that untouched memory stays so
        self.ref_counts = [0] * blocks  # sequences that have each block
        self._store = store
        self._digests: dict[int, bytes] = {}  # of blocks with a known content
        self._known: dict[bytes, int] = {}  # blocks by their digests
        self._idle: dict[int, None] = {}  # known blocks without users, the first to go first
        self.touched = 0  # blocks that have ever been written
        self._room = room
        self._growth = growth
        self._measured = 0  # blocks that may be touched until the next measurement
        self.withheld = 0  # untouched blocks for which there is no memory

    @property
    def available(self) -> int:
        return len(self._free) + len(self._idle) - self.withheld

    def can_allocate(self, count: int) -> bool:
        """Return whether so many can be taken. Others may have taken memory since the pool was made, so it is
        measured as the pool grows."""
        if self._room is not None and self.touched + count > self._measured and self.touched < self.size:
            self.withheld = max(0, self.size - self.touched - self._room())
            self._measured = 0 if self.withheld else self.touched + count + self._growth
        return count <= self.available

    @property
    def num_used(self) -> int:
        """Blocks of sequences."""
        return self.size - len(self._free) - len(self._idle)

    def allocate(self) -> int | None:
        """Return a block for one sequence; None if all are in use."""
        if len(self._free) > self.withheld:
            block = self._free.pop()
            self.touched = max(self.touched, block + 1)
        elif self._idle:
            block = next(iter(self._idle))
            del self._idle[block]
            digest = self._digests.pop(block)
            del self._known[digest]
            if self._store is not None:
                self._store.withdraw(digest)
        else:
            return None
        self.ref_counts[block] = 1
        return block

    def release(self, blocks: array[int]) -> None:
        """Take back the blocks of a sequence, in the order of its tokens."""
        for block in reversed(blocks):
            self.ref_counts[block] -= 1
            if self.ref_counts[block]:
                continue
            if block in self._digests:
                self._idle[block] = None
            else:
                self._free.append(block)

    def fork(self, blocks: array[int]) -> array[int]:
        """Return the block table of one more sequence with the same tokens."""
        for block in blocks:
            self.ref_counts[block] += 1
        return blocks[:]

    def copy_on_write(self, block: int) -> int | None:
        """Return the block if one sequence has it, else a copy for that sequence; None if all are in use."""
        if self.ref_counts[block] == 1:
            return block
        own = self.allocate()
        if own is not None and self._copy is not None:
            self._copy(block, own)
            self.ref_counts[block] -= 1
        return own

    def find_prefix(self, ids: array[int]) -> list[tuple[int, bytes]]:
        """Return cached blocks and their digests for the prefix of a prompt, for one more sequence.

        The last token is always left to compute, because its logits are needed."""
        blocks: list[tuple[int, bytes]] = []
        if not self._caches:
            return blocks
        digest = ROOT
        for at in range(0, len(ids) - BLOCK_TOKENS, BLOCK_TOKENS):
            digest = digest_of(digest, ids[at : at + BLOCK_TOKENS])
            block = self.find(digest)
            if block is None and (block := self._load(digest)) is None:
                break
            blocks.append((block, digest))
        if self._store is not None:
            # The first one last: without it the others could not be found.
            self._store.touch(digest for _, digest in reversed(blocks))
        return blocks

    def _load(self, digest: bytes) -> int | None:
        """Return a block with the content that the store has; None: it has none, or there is no room."""
        store = self._store
        if (
            store is None
            or not store.has(digest)
            or not self.can_allocate(1)
            or (block := self.allocate()) is None
        ):
            return None
        if not store.load(digest, block):
            self.ref_counts[block] = 0
            self._free.append(block)
            return None
        self._digests[block] = digest
        self._known[digest] = block
        return block

    def publish(self, block: int, before: bytes, ids: array[int]) -> bytes:
        """Make a full block known, and return its digest. A twin of a known one stays unknown."""
        if not self._caches:
            return ROOT
        digest = digest_of(before, ids)
        if self.keep(block, digest) and self._store is not None:
            self._store.offer(digest, block)
        return digest

    def keep(self, block: int, digest: bytes) -> bool:
        """Make a block known by a digest; return False if another is already."""
        if digest in self._known:
            return False
        self._digests[block] = digest
        self._known[digest] = block
        return True

    def find(self, digest: bytes) -> int | None:
        """Return the known block for one more sequence; None: there is none."""
        if (block := self._known.get(digest)) is not None:
            if not self.ref_counts[block]:
                del self._idle[block]
            self.ref_counts[block] += 1
        return block

    def forget(self, digest: bytes) -> None:
        """Let a known block be the next to go, if no sequence has it."""
        block = self._known.get(digest)
        if block is not None and not self.ref_counts[block]:
            del self._idle[block], self._known[digest], self._digests[block]
            self._free.append(block)


def digest_of(before: bytes, ids: array[int]) -> bytes:
    return hashlib.blake2b(before + ids.tobytes(), digest_size=32).digest()
