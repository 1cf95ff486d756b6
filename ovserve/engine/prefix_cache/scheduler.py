"""The library's scheduler, as far as blocks go: which tokens a step computes, and who must give blocks back.

This is the half of `PrefixCacheModel` that runs with each step. It keeps what the scheduler and the block
manager of OpenVINO GenAI 2026.4 keep.
"""

from __future__ import annotations

import itertools

from ovserve.engine.prefix_cache.kv_blocks import ROOT, Blocks, Name, SequenceBlocks

GROWTH = 256  # tokens by which a cache grows that is not bounded


class SchedulerModel:
    """The state of the model, and what a step does to it."""

    def __init__(self, *, block: int, blocks: int, batch: int) -> None:
        self._size, self._batch = block, batch
        self._pool = Blocks(blocks)
        self._grows = not blocks
        self._orders = itertools.count()
        self._held: dict[
            int, SequenceBlocks
        ] = {}  # in the order of arrival, which is that of the library's batch
        self._prompts: dict[int, SequenceBlocks] = {}  # those of them whose prompt is worked on
        self._due: dict[int, SequenceBlocks] = {}  # those that may need a block with the next token
        self._leaving: list[int] = []  # cancelled since the last step
        self._waiting: list[SequenceBlocks] = []  # those who had to give blocks back in this step
        self._searching = 0  # requests with beams
        self._decoding = 0  # tokens that those take of a step who generate
        self._behind = False  # some of them compute tokens again
        self._capacity = 0  # blocks that a cache which grows has for all

    def _settle(self, held: SequenceBlocks) -> None:
        """Give the last block the name of what is in it now: the library does so with each token."""
        content = len(held.ids) - 1
        if held.behind or content <= max(held.prompt, held.named) or not held.blocks:
            return
        self._pool.rename(held.blocks[-1], held.name(content))
        held.named = content

    # ---- a step

    def _schedule(self) -> tuple[int, dict[int, SequenceBlocks]]:
        """The library's scheduler: how many tokens are sampled of those who generate, and whose prompt is
        done with this step."""
        if not self._pool.total:
            self._pool.grow(sum(held.capacity for held in self._held.values()))
        elif self._grows and self._prompts:
            self._pool.grow(self._capacity)
        used, sampled = self._decode()
        firsts = self._prefill(self._batch - used)
        for held in self._waiting:
            held.waiting = False
        self._waiting.clear()
        for id_, held in firsts.items():
            if held.beams > 1 and held.blocks[-1].length:  # its next tokens are not reported
                self._pool.rename(held.blocks[-1], Name(hash((held.order, "beams")), ROOT, 0))
            del self._prompts[id_]
            held.decoding = True
            self._decoding += held.beams
        return sampled, firsts

    def _decode(self) -> tuple[int, int]:
        """Tokens computed and tokens sampled."""
        due = self._due
        if self._behind or self._decoding > self._batch or not self._room_for(due):
            return self._decode_each()
        for held in sorted(due.values(), key=order) if len(due) > 1 else due.values():
            self._append(held, held.context + 1)
        due.clear()
        return self._decoding, self._decoding

    def _room_for(self, due: dict[int, SequenceBlocks]) -> bool:
        needs = sum(held.needs(held.context + 1) for held in due.values())
        return self._grows or needs <= self._pool.available

    def _decode_each(self) -> tuple[int, int]:
        """Schedule a step in which not every sequence gets the blocks that it needs."""
        used = sampled = 0
        self._behind = False
        for id_, held in self._held.items():
            room = self._batch - used
            if held.decoding and not held.cancelled:
                if not held.waiting and room >= held.beams:
                    tokens = min(room, held.behind or 1)
                    context = held.context + tokens
                    self._take_back(held, context)
                    if held.needs(context) <= self._pool.available:
                        self._append(held, context)
                        used += tokens * held.beams
                        if held.behind:
                            held.behind -= tokens
                        else:
                            sampled += held.beams
                self._due[id_] = held
                self._behind |= held.behind > 0
        return used, sampled

    def _take_back(self, target: SequenceBlocks, context: int) -> None:
        """Blocks of those who came last, until `target` has what it needs."""
        pool = self._pool
        while (needed := target.needs(context)) > pool.available:
            last = next((one for one in reversed(self._held.values()) if one.context > 0), None)
            if last is None or last.order <= target.order:
                return
            before = pool.available
            self._preempt(last, needed)
            if pool.available <= before:
                return

    def _preempt(self, victim: SequenceBlocks, count: int) -> None:
        self._settle(victim)
        context, size = victim.context, self._size
        if len(victim.blocks) > count:
            for block in reversed(victim.blocks[-count:]):
                self._pool.release(block)
            del victim.blocks[-count:]
            tokens = min((context % size or size) + (count - 1) * size, context)
        else:
            tokens = context
        if tokens == context:
            for block in victim.blocks:
                self._pool.release(block)
            victim.blocks.clear()
        victim.named = len(victim.blocks) * size
        if victim.decoding:
            victim.behind += tokens
            self._behind = True
        else:
            victim.processed -= tokens
        victim.waiting = True
        self._waiting.append(victim)

    def _prefill(self, budget: int) -> dict[int, SequenceBlocks]:
        firsts = {}
        for id_, held in self._prompts.items():
            if not budget:
                break
            if held.waiting:
                continue
            unused = len(held.blocks) * self._size - held.processed
            tokens = min(budget, held.prompt - held.processed)
            while self._grows and unused + self._pool.available * self._size < tokens:
                self._grow()
            tokens = min(tokens, unused + self._pool.available * self._size)
            if tokens > unused:
                self._allocate(held, -(-(tokens - unused) // self._size))
            held.processed += tokens
            self._written(held, held.processed)
            budget -= tokens
            if held.processed == held.prompt:
                firsts[id_] = held
        return firsts

    # ---- blocks

    def _append(self, held: SequenceBlocks, context: int) -> None:
        """Blocks for `context` tokens, and the last one not shared."""
        pool = self._pool
        while self._grows and held.needs(context) > pool.available:
            self._grow()
        missing = -(-context // self._size) - len(held.blocks)
        if missing > 0:
            self._allocate(held, missing)
        else:
            last, name = held.blocks[-1], held.name(context)
            if last.refs > 1:
                held.blocks[-1] = pool.allocate(name)
                pool.release(last)
            else:
                pool.rename(last, name)
            held.named = context
        self._written(held, context)

    def _allocate(self, held: SequenceBlocks, count: int) -> None:
        blocks, size = held.blocks, self._size
        if blocks:
            blocks[-1].unwritten = False  # the tokens that need these blocks fill it
            if blocks[-1].name != (whole := held.name(len(blocks) * size)).name:
                self._pool.rename(blocks[-1], whole)
        for _ in range(count):
            held.named = min((len(blocks) + 1) * size, len(held.ids))
            blocks.append(self._pool.allocate(held.name(held.named)))

    def _written(self, held: SequenceBlocks, context: int) -> None:
        """Mark whether the last block lacks tokens that its name covers, with `context` tokens computed."""
        if held.blocks:
            held.blocks[-1].unwritten = context < held.named

    def _grow(self) -> None:
        self._pool.grow(self._pool.total + -(-GROWTH // self._size))


def order(held: SequenceBlocks) -> int:
    return held.order
