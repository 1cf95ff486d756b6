"""The blocks of a KV cache with prefix caching, as OpenVINO GenAI 2026.4 gives them out; used by
`prefix_account.py`.

A block holds the keys and values of up to 32 tokens (16 on GPU) and is named by a hash of its tokens and all
before them. What no sequence holds any more is kept under its name, to be restored or, when no block was
never used, to be overwritten: the one that was given out or restored longest ago, not the one released
longest ago. Nothing here is a tensor: this is the library's bookkeeping once more, in Python.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections import Counter, deque
from typing import NamedTuple

ROOT = 0  # the name before the first block
STALE = 64  # entries of the heap that may be out of date beside as many as are valid


class Name(NamedTuple):
    """A hash of all tokens up to the end of a block."""

    name: int
    parent: int  # that of the block before
    length: int  # tokens in the block, 0 if it is full


class Block:
    __slots__ = ("length", "name", "parent", "refs", "stamp")

    def __init__(self, stamp: int) -> None:
        self.name = self.parent = ROOT
        self.length = 0  # tokens that its name stands for, 0 if that is all it can hold
        self.refs = 0  # sequences that hold it
        self.stamp = stamp  # when it was made, restored or overwritten last


class Blocks:
    def __init__(self, total: int) -> None:
        """`total` 0: none yet, see `grow`."""
        self.total = 0
        self._clock = itertools.count()
        self._unused: deque[Block] = deque()
        self._idle: dict[int, Block] = {}  # by name, held by no sequence
        self._oldest: list[tuple[int, int, Block]] = []  # heap over _idle; entries may be out of date
        self.named: dict[int, Block] = {}  # the last block given a name, idle or not
        self._partial: dict[int, Counter[int]] = {}  # by the name before: how many tokens blocks have
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
        """Of the blocks that follow `parent` and are not full."""
        return sorted(self._partial.get(parent, ()))

    def restore(self, name: int) -> Block:
        """The block of this name, which there is, for one sequence more."""
        block = self._idle.pop(name, None) or self.named[name]
        block.refs += 1
        block.stamp = next(self._clock)
        return block

    def allocate(self, name: Name) -> Block:
        """One for new content, if any is available."""
        if self._unused:
            block = self._unused.popleft()
        else:
            block = self._pop_oldest()
            self.named.pop(block.name, None)
            block.stamp = next(self._clock)
        block.refs = 1
        self._name(block, name)
        return block

    def rename(self, block: Block, name: Name) -> None:
        """Its content has grown."""
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
        if twin is not None:  # two sequences have computed the same
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
    """A sequence in the engine, and its blocks."""

    __slots__ = (
        "beams", "behind", "blocks", "cancelled", "capacity", "decoding", "ids", "named", "names", "order",
        "processed", "prompt", "size", "waiting",
    )  # fmt: skip

    def __init__(self, order: int, ids: array[int], size: int, wanted: int | None, beams: int) -> None:
        self.order = order
        self.size = size
        self.beams = beams
        self.ids = ids  # of the prompt and what has been generated
        self.prompt = prompt = len(ids)
        most = 2 * prompt if wanted is None else prompt + min(prompt, wanted)
        self.capacity = -(-most // size) * beams  # blocks that a cache which grows has for it
        self.names: list[int] = []  # of the whole blocks
        self.blocks: list[Block] = []
        self.named = 0  # tokens that the name of the last block stands for
        self.processed = 0  # tokens of the prompt that are in the cache, until all are
        self.decoding = False  # the whole prompt has been in the cache
        self.behind = 0  # tokens that were in the cache, had to leave and are computed again
        self.waiting = False  # had to give blocks back in this step
        self.cancelled = False

    @property
    def context(self) -> int:
        """Tokens in the cache; the last one generated is not."""
        return len(self.ids) - 1 - self.behind if self.decoding else self.processed

    @property
    def parent(self) -> int:
        """The name before the last block's."""
        return self.names[len(self.blocks) - 2] if len(self.blocks) > 1 else ROOT

    def name(self, length: int) -> Name:
        """Of the block that ends with the first `length` tokens, at least one."""
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
        """Blocks, to have `context` tokens in the cache."""
        missing = -(-context // self.size) - len(self.blocks)
        if missing < 0 or not self.blocks:
            return max(missing, 0)
        refs = self.blocks[-1].refs
        if refs > 1:
            return missing * refs if missing else refs - 1
        return missing
