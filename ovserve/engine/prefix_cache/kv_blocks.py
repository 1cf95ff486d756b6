"""The blocks of a KV cache with prefix caching, as OpenVINO GenAI 2026.4 allocates them.

A block holds the keys and values of up to 32 tokens (16 on GPU) and is named by a hash of its tokens and all
before them. A block that no sequence holds is kept under its name, to be restored. When no unused block
is left, one is overwritten: the one allocated or restored longest ago, not the one released
longest ago. Nothing here is a tensor: this replays the library's bookkeeping in Python.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections import Counter, deque
from typing import NamedTuple

ROOT = 0  # the name before the first block
UPPER = 1 << 32  # the model reads the rest of a token id, and the name of a block all of it
STALE = 64  # allowed outdated heap entries, beyond as many as are valid


class Name(NamedTuple):
    """The name of a block: a hash of all tokens up to its end."""

    name: int
    parent: int  # hash of the previous block
    length: int  # tokens in the block, 0 if it is full


class Block:
    __slots__ = ("length", "name", "parent", "refs", "stamp", "unwritten")

    def __init__(self, stamp: int) -> None:
        self.name = self.parent = ROOT
        self.length = 0  # tokens covered by its name, 0 if the block is full
        self.refs = 0  # sequences that hold it
        self.stamp = stamp  # time of its creation, restoration or last overwrite
        self.unwritten = False  # not all tokens that its name covers have been computed


class Blocks:
    def __init__(self, total: int) -> None:
        """`total` 0: no blocks yet, see `grow`."""
        self.total = 0
        self._clock = itertools.count()
        self._unused: deque[Block] = deque()
        self._idle: dict[int, Block] = {}  # by name, held by no sequence
        self._oldest: list[tuple[int, int, Block]] = []  # heap over _idle; entries may be out of date
        self.named: dict[int, Block] = {}  # the last block given a name, idle or not
        self._partial: dict[int, Counter[int]] = {}  # by the previous name: token counts of blocks
        self.grow(total)

    @property
    def available(self) -> int:
        return len(self._unused) + len(self._idle)

    def grow(self, total: int) -> None:
        for _ in range(total - self.total):
            self._unused.append(Block(next(self._clock)))
        self.total = max(total, self.total)

    def has(self, name: int) -> bool:
        return name in self._idle or name in self.named

    def lengths(self, parent: int) -> list[int]:
        """Return token counts of the partial blocks that follow `parent`."""
        return sorted(self._partial.get(parent, ()))

    def get(self, name: int) -> Block:
        """Return the existing block of this name."""
        return self._idle.get(name) or self.named[name]

    def restore(self, name: int) -> Block:
        """Return the existing block of this name, held by one more sequence."""
        block = self._idle.pop(name, None) or self.named[name]
        block.refs += 1
        block.stamp = next(self._clock)
        return block

    def allocate(self, name: Name) -> Block:
        """Allocate a block for new content, if one is available."""
        if self._unused:
            block = self._unused.popleft()
        else:
            block = self._pop_oldest()
            self.named.pop(block.name, None)
            block.stamp = next(self._clock)
        block.refs = 1
        block.unwritten = False
        self._name(block, name)
        return block

    def rename(self, block: Block, name: Name) -> None:
        """Rename a block whose content has grown."""
        self.named.pop(block.name, None)
        self._name(block, name)

    def _name(self, block: Block, name: Name) -> None:
        if block.length:
            lengths = self._partial[block.parent]
            lengths[block.length] -= 1
            if not lengths[block.length]:
                del lengths[block.length]
                if not lengths:
                    del self._partial[block.parent]
        block.name, block.parent, block.length = name
        if block.length:
            self._partial.setdefault(block.parent, Counter())[block.length] += 1
        self.named[block.name] = block

    def release(self, block: Block) -> None:
        block.refs -= 1
        if block.refs:
            return
        twin = self._idle.pop(block.name, None)
        if twin is not None:  # two sequences have computed the same content
            self._unused.append(twin)
            if self.named.get(block.name) is twin:
                self.named[block.name] = block
        self._idle[block.name] = block
        heapq.heappush(self._oldest, (block.stamp, id(block), block))
        if len(self._oldest) > 2 * len(self._idle) + STALE:
            self._oldest = [(b.stamp, id(b), b) for b in self._idle.values()]
            heapq.heapify(self._oldest)

    def _pop_oldest(self) -> Block:
        while True:
            stamp, _, block = heapq.heappop(self._oldest)
            if block.stamp == stamp and self._idle.get(block.name) is block:
                del self._idle[block.name]
                return block


class SequenceBlocks:
    """A sequence in the engine, with its blocks."""

    __slots__ = (
        "beams", "behind", "blocks", "cancelled", "capacity", "decoding", "ids", "named", "names", "order",
        "processed", "prompt", "size", "waiting",
    )  # fmt: skip

    def __init__(self, order: int, ids: array[int], size: int, wanted: int | None, beams: int) -> None:
        self.order = order
        self.size = size
        self.beams = beams
        self.ids = ids  # of the prompt and the answer so far
        self.prompt = prompt = len(ids)
        most = 2 * prompt if wanted is None else prompt + min(prompt, wanted)
        self.capacity = -(-most // size) * beams  # blocks that a growing cache reserves for it
        self.names: list[int] = []  # names of its full blocks
        self.blocks: list[Block] = []
        self.named = 0  # tokens covered by the name of the last block
        self.processed = 0  # prompt tokens in the cache, until all are
        self.decoding = False  # the whole prompt has been in the cache
        self.behind = 0  # tokens evicted from the cache and computed again
        self.waiting = False  # had to release blocks in this step
        self.cancelled = False

    @property
    def context(self) -> int:
        """Return the tokens in the cache; the last generated one is not in it."""
        return len(self.ids) - 1 - self.behind if self.decoding else self.processed

    @property
    def parent(self) -> int:
        """Return the name before the last block's."""
        return self.names[len(self.blocks) - 2] if len(self.blocks) > 1 else ROOT

    def rename(self, at: int, upper: int) -> None:
        """Give the token at the start of a block another upper half, and so all blocks from there on other
        names."""
        self.ids[at] = self.ids[at] % UPPER + upper * UPPER
        del self.names[at // self.size :]

    def name(self, length: int) -> Name:
        """Return the name of the block that ends with the first `length` tokens, at least one."""
        names, size = self.names, self.size
        whole, rest = divmod(length, size)
        while len(names) < whole:
            at = len(names) * size
            names.append(hash((names[-1] if names else ROOT, self.ids[at : at + size].tobytes())))
        if not rest:
            return Name(names[whole - 1], names[whole - 2] if whole > 1 else ROOT, 0)
        parent = names[whole - 1] if whole else ROOT
        return Name(hash((parent, self.ids[whole * size : length].tobytes())), parent, rest)

    def needs(self, context: int) -> int:
        """Return the blocks needed to have `context` tokens in the cache."""
        missing = -(-context // self.size) - len(self.blocks)
        if missing < 0 or not self.blocks:
            return max(missing, 0)
        refs = self.blocks[-1].refs
        if refs > 1:
            return missing * refs if missing else refs - 1
        return missing
