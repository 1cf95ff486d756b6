"""The blocks of the KV cache: which are free, which sequences share one, and what earlier ones left in them.

Forked sequences share their blocks. Only the last one is still written to: a sequence that does so takes a
copy while others have it too (copy on write).

A block is known by its tokens and the block before it, exactly and not by a hash that could collide: its key
is the number of the block before it, as a content and not a place, and the bytes of its ids. A block that no
sequence uses keeps its content until its place is needed; the one that was left first goes first, and of a
sequence the last one, because without those before it it could not be found.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable

from ovserve.engine.backends.paged.model import BLOCK

ROOT = 0  # content before the first block
GROWTH_BLOCKS = 64  # that are touched between two measurements of memory, which take 0.1 ms
Key = tuple[int, bytes]
Copy = Callable[[int, int], None]  # of the first block's keys and values to the second one


class TokenSequence:
    """Tokens and their place in the KV cache."""

    def __init__(self, ids: Iterable[int]) -> None:
        self.ids = array("q", ids)
        self.num_computed_tokens = 0  # of these, those whose keys and values are in the cache
        self.block_table = array("i")
        self.contents: list[int] = []  # of the full blocks (see `BlockPool`)
        self.publishes = True  # others may find its blocks


class BlockPool:
    def __init__(
        self, blocks: int, *, caches: bool, copy: Copy, room: Callable[[], int] | None = None
    ) -> None:
        """`caches`: keep what sequences leave. `room`: for how many untouched blocks there is memory."""
        self.size = blocks
        self._copy = copy
        self._caches = caches
        self._free = list(range(blocks - 1, -1, -1))  # low ones first, so that untouched memory stays so
        self._users = [0] * blocks
        self._keys: dict[int, Key] = {}  # of blocks with a known content
        self._known: dict[Key, tuple[int, int]] = {}  # block and content
        self._idle: dict[int, None] = {}  # known blocks without users, the first to go first
        self._contents = ROOT
        self.touched = 0  # blocks that have ever been written
        self._room = room
        self._measured = 0  # blocks that may be touched until the next measurement
        self.withheld = 0  # untouched blocks for which there is no memory

    @property
    def available(self) -> int:
        return len(self._free) + len(self._idle) - self.withheld

    def has(self, count: int) -> bool:
        """Return whether so many can be taken. Others may have taken memory since the pool was made, so it is
        measured as the pool grows."""
        if self._room is not None and self.touched + count > self._measured and self.touched < self.size:
            self.withheld = max(0, self.size - self.touched - self._room())
            self._measured = 0 if self.withheld else self.touched + count + GROWTH_BLOCKS
        return count <= self.available

    @property
    def used(self) -> int:
        """Blocks of sequences."""
        return self.size - len(self._free) - len(self._idle)

    def take(self) -> int | None:
        """Return a block for one sequence; None if all are in use."""
        if len(self._free) > self.withheld:
            block = self._free.pop()
            self.touched = max(self.touched, block + 1)
        elif self._idle:
            block = next(iter(self._idle))
            del self._idle[block]
            del self._known[self._keys.pop(block)]
        else:
            return None
        self._users[block] = 1
        return block

    def release(self, blocks: array[int]) -> None:
        """Take back the blocks of a sequence, in the order of its tokens."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block]:
                continue
            if block in self._keys:
                self._idle[block] = None
            else:
                self._free.append(block)

    def fork(self, blocks: array[int]) -> array[int]:
        """Return the block table of one more sequence with the same tokens."""
        for block in blocks:
            self._users[block] += 1
        return blocks[:]

    def users(self, block: int) -> int:
        """Return how many sequences have the block."""
        return self._users[block]

    def own(self, block: int) -> int | None:
        """Return the block if one sequence has it, else a copy for that sequence; None if all are in use."""
        if self._users[block] == 1:
            return block
        own = self.take()
        if own is not None:
            self._copy(block, own)
            self._users[block] -= 1
        return own

    def find(self, ids: array[int]) -> list[tuple[int, int]]:
        """Return known blocks and contents for the beginning of a prompt, for one more sequence.

        The last token is always left to compute, because its logits are needed."""
        found: list[tuple[int, int]] = []
        if not self._caches:
            return found
        before = ROOT
        for at in range(0, len(ids) - BLOCK, BLOCK):
            known = self._known.get((before, ids[at : at + BLOCK].tobytes()))
            if known is None:
                break
            block, before = known
            if not self._users[block]:
                del self._idle[block]
            self._users[block] += 1
            found.append(known)
        return found

    def publish(self, block: int, before: int, ids: array[int]) -> int:
        """Make a full block known, and return its content. A twin of a known one stays unknown."""
        if not self._caches:
            return ROOT
        key = before, ids.tobytes()
        if (known := self._known.get(key)) is not None:
            return known[1]
        self._contents += 1
        self._keys[block] = key
        self._known[key] = block, self._contents
        return self._contents
