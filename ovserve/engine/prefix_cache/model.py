"""PrefixCacheModel: how much of each prompt the prefix cache saves, which the library does not report.

OpenVINO GenAI looks up a prompt in its cache when the request is added. The rules depend only on the token
ids and on the order of earlier events, so the same bookkeeping on the same events gives the same result. The
events are: a request is added, one is cancelled, a step is done. The state is that of the library's scheduler
and block manager, 2026.4: the blocks of each sequence, the processed tokens of each prompt, and the sequences
that had to give blocks back.

A step that fills no block and processes no prompt costs one list extension for each sequence. The name of a
half filled block changes with each token in the library; here it is made on demand.
`tests/engine/test_prefix_account.py` compares with the engine.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from ovserve.engine.prefix_cache.kv_blocks import ROOT, Block, SequenceBlocks
from ovserve.engine.prefix_cache.scheduler import SchedulerModel, order

REPLAYED = NOT_ADDED = -1  # no client's request


class Gain(NamedTuple):
    """The tokens that a step gave one request."""

    id: int
    tokens: list[int]
    ended: bool


class PrefixCacheModel(SchedulerModel):
    """`blocks` 0: the cache grows as needed. `batch` is max_num_batched_tokens. Prompts are split over steps:
    where `dynamic_split_fuse` is off, the loader turns prefix caching off too."""

    # ---- events

    def add(self, id_: int, prompt: bytes, max_new_tokens: int | None, beams: int = 1) -> int:
        """A request is added: the tokens that need not be computed. `prompt`: its ids, 8 bytes each;
        `max_new_tokens` None: no bound."""
        ids = array("q")
        ids.frombytes(prompt)
        held = SequenceBlocks(next(self._orders), ids, self._size, max_new_tokens, beams)
        self._held[id_] = self._prompts[id_] = held
        self._capacity += held.capacity
        self._searching += beams > 1
        return self._restore(held)

    def lookup(self, prompt: bytes) -> SequenceBlocks:
        """Return a prompt that is not added, for `unwritten`."""
        ids = array("q")
        ids.frombytes(prompt)
        return SequenceBlocks(NOT_ADDED, ids, self._size, 1, 1)

    def unwritten(self, prompt: SequenceBlocks, start: int = 0, *, left: bool) -> int | None:
        """Return where the first block starts, in tokens, that a prompt would find although not all its
        tokens were computed; None: it would find none. `start`: the block to begin with. `left`: only blocks
        that no running prompt fills."""
        for end in self._found(prompt, start):
            block = self._pool.get(prompt.name(end).name)
            if block.unwritten and not (left and self._filled(block)):
                return start
            start = end
        return None

    def _filled(self, block: Block) -> bool:
        """Return whether a running prompt goes on with a block."""
        return any(held.blocks and held.blocks[-1] is block for held in self._prompts.values())

    @property
    def filling(self) -> bool:
        """Return whether a running prompt has computed a part of a block."""
        return any(held.blocks and held.blocks[-1].unwritten for held in self._prompts.values())

    def partly_written(self, id_: int) -> bool:
        """Return whether a request's last block lacks tokens that its name covers."""
        held = self._held.get(id_)
        return held is not None and bool(held.blocks) and held.blocks[-1].unwritten

    def cancel(self, id_: int) -> None:
        """It has no part in any further step; its blocks are free after the next one."""
        if (held := self._held.get(id_)) is not None and not held.cancelled:
            held.cancelled = True
            self._leaving.append(id_)
            self._forget(id_, held)

    def replay(self, prompt: bytes, tokens: list[int], *, cut: bool) -> None:
        """A request that went through alone, its prompt in one step; `cut`: it was cancelled in the end."""
        self.add(REPLAYED, prompt, len(tokens))
        for i, token in enumerate(tokens):
            self.step([Gain(REPLAYED, [token], not cut and i == len(tokens) - 1)])
        if cut:
            self.cancel(REPLAYED)
            self.step([])

    def step(self, gains: list[Gain]) -> bool:
        """A step is done: what it gave. False if it cannot have given that, so this account is wrong."""
        firsts: dict[int, SequenceBlocks] = {}
        sampled = self._decoding
        if self._prompts or self._due or self._behind or sampled > self._batch:
            sampled, firsts = self._schedule()
        ended, self._leaving = self._leaving, []
        size, seen = self._size, 0
        for id_, tokens, last in gains:
            held = self._held[id_]
            if tokens:
                seen += held.beams
                held.ids.extend(tokens)
                context = len(held.ids) - 1
                if context == len(held.blocks) * size:
                    self._settle(held)
                    self._due[id_] = held
            if last:
                ended.append(id_)
                self._forget(id_, held)
        for id_, held in firsts.items():
            if id_ not in ended and held.blocks[-1].refs > 1:
                self._due[id_] = held
        agreed = seen == sampled + len(firsts) or self._searching > 0  # beams say nothing until they end
        if ended:
            self._leave(ended)
        return agreed

    # ---- adding

    def _found(self, held: SequenceBlocks, done: int = 0) -> Iterator[int]:
        """Yield where the blocks end, in tokens, that the cache has of a prompt after its first `done`."""
        pool, size, prompt = self._pool, self._size, held.prompt
        while done < prompt:
            end = min(done + size, prompt)
            if end % size == 0 and pool.has(held.name(end).name):
                yield end
                done = end
                continue
            if end == done + 1:
                break  # a last block of one token is left alone: that token is computed in any case
            parent = held.name(done).name if done else ROOT
            self._settle_after(parent)
            parts = [done + part for part in pool.lengths(parent) if done + part < end]
            for length in [end, *parts]:
                if pool.has(held.name(length).name):
                    yield length
                    break
            break

    def _restore(self, held: SequenceBlocks) -> int:
        pool, prompt = self._pool, held.prompt
        lengths = list(self._found(held))
        if not lengths:
            return 0
        done = lengths[-1]
        held.blocks = [pool.restore(held.name(length).name) for length in lengths]
        held.named = done
        held.processed = done - (done == prompt)
        last = held.blocks[-1]
        if last.refs > 1:  # who writes to it next takes a copy
            for id_, other in self._held.items():
                if other.decoding and not other.cancelled and other.blocks and other.blocks[-1] is last:
                    self._due[id_] = other
        return held.processed

    def _settle_after(self, parent: int) -> None:
        """Give those blocks their names that follow the block `parent` and are still being filled."""
        for other in self._held.values():
            if other.decoding and other.parent == parent:
                self._settle(other)

    # ---- leaving

    def _forget(self, id_: int, held: SequenceBlocks) -> None:
        """It is not scheduled any more."""
        self._capacity -= held.capacity
        self._due.pop(id_, None)
        if self._prompts.pop(id_, None) is None:
            self._decoding -= held.beams

    def _leave(self, ids: list[int]) -> None:
        leaving = sorted((self._held.pop(id_) for id_ in ids), key=order)
        for held in leaving:
            self._searching -= held.beams > 1
            self._settle(held)
            for block in held.blocks:
                self._pool.release(block)
            held.blocks = []
