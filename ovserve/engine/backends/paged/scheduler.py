"""Decides what the next step computes, and who has which blocks of the KV cache.

A step has `max_num_batched_tokens`. Answers come first, a token each and its candidates; prompts take the
rest in their order, or as much of it as `PromptBudget` allows next to answers. A prompt longer than that
leaves half of it to short ones behind it, so that these do not wait until it is read.

A prompt starts when there are blocks for all of it. An answer takes blocks as it grows. When none is left,
the request that started last gives its blocks back, and later computes its tokens again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ovserve.engine.backends.paged.blocks import BlockPool
from ovserve.engine.backends.paged.budget import PromptBudget
from ovserve.engine.backends.paged.model import BLOCK
from ovserve.engine.backends.paged.running import Running, Turn

AHEAD = 0.5  # of a step's room for prompts, to short ones behind a long one
SHORT = 0.5  # of what is left of the long one, at most
LEAST_PART = 0.25  # of a step's room: no prompt waits for the step after it while so much is free

Draft = Callable[[Running], tuple[int, ...]]


class Scheduler:
    def __init__(self, pool: BlockPool, tokens: int, sequences: int, budget: PromptBudget) -> None:
        """`tokens`, `sequences`: most of one step."""
        self.pool = pool
        self.budget = budget
        self.coming = 0  # requests that will be added
        self._tokens = tokens
        self._most = sequences
        self.running: dict[int, Running] = {}  # in the order of arrival
        self._started: dict[int, Running] = {}  # in the order of their start
        self._behind = 0  # the first of the answers that had no place in the last step
        self.version = 0  # of who has which blocks

    # ---- requests

    def add(self, running: Running) -> int:
        """Return the tokens of its prompt that are in the cache."""
        self.running[running.id] = running
        self._find(running)
        return running.computed

    def remove(self, id_: int) -> Running | None:
        running = self.running.pop(id_, None)
        if running is not None:
            self._started.pop(id_, None)
            self.pool.release(running.forget())
            self.version += 1
        return running

    def can_schedule(self, tokens: int) -> bool:
        """Return whether a prompt should be added before the next step, and not look for its beginning in the
        cache later."""
        unread = [r.unread for r in self.running.values() if r.unread > 1]
        if not unread:
            return True
        room = self._room(self._tokens - (len(self.running) - len(unread)))
        short = self._short(unread[0], room)
        if short and not short < tokens <= self._tokens:
            left = int(room * AHEAD) - sum(tokens for tokens in unread if tokens <= short)
        else:
            left = room - sum(unread)
        return tokens <= left or left >= room * LEAST_PART

    # ---- a step

    def plan(self, draft: Draft) -> list[Turn]:
        """Return what to compute, the answers first."""
        turns: dict[int, Turn] = {}
        for running in self._answering():
            if running.id not in self._started:  # it has just lost its blocks
                continue
            drafted = draft(running)
            if self._grow(running, len(running.ids) + len(drafted), turns):
                turns[running.id] = Turn(running, 1 + len(drafted), drafted)
        left = max(self._tokens - sum(turn.tokens for turn in turns.values()), 0)  # drafts may exceed a step
        for running, count in self._reading(self._room(left)).items():
            turns[running.id] = Turn(running, count)
        return list(turns.values())

    def answering(self) -> int:
        """Return how many requests have their prompt in the cache."""
        return sum(running.unread == 1 for running in self._started.values())

    @property
    def depth(self) -> int:
        """Tokens of a prompt that is being read, before its next ones: of the longest."""
        return max((r.computed for r in self.running.values() if r.unread > 1), default=0)

    def computed(self, running: Running, count: int) -> None:
        """Record that so many more of its tokens are in the cache for good."""
        running.computed += count
        contents = running.contents
        while (end := (len(contents) + 1) * BLOCK) <= running.computed:
            before = contents[-1] if contents else 0
            block, ids = running.blocks[len(contents)], running.ids[end - BLOCK : end]
            contents.append(self.pool.publish(block, before, ids))

    def _answering(self) -> list[Running]:
        answers = [running for running in self._started.values() if running.unread == 1]
        if len(answers) <= self._tokens:
            return answers
        at = self._behind % len(answers)
        self._behind = at + self._tokens
        return [*answers[at:], *answers[:at]][: self._tokens]

    def _reading(self, left: int) -> dict[Running, int]:
        """Return how many tokens of which prompts are computed, `left` in all."""
        prompts = list(self._prompts())
        counts: dict[Running, int] = {}
        if prompts and (short := self._short(prompts[0].unread, left)):
            ahead = int(left * AHEAD)
            for running in prompts[1:]:
                if ahead and running.unread <= short:
                    counts[running] = min(running.unread, ahead)
                    ahead -= counts[running]
        left -= sum(counts.values())
        for running in prompts:
            given = counts.get(running, 0)
            if more := min(left, running.unread - given):
                counts[running] = given + more
                left -= more
        return counts

    def _short(self, first: int, room: int) -> int:
        """Return how long prompts may be that pass the first one; 0 if a step reads all of that."""
        return 0 if first <= room else min(self._tokens, int(first * SHORT))

    def _room(self, most: int) -> int:
        """Return how many tokens of prompts the next step reads, up to `most`."""
        answering = self.answering()
        return self.budget.tokens(answering, len(self.running) - answering + self.coming, self.depth, most)

    def _prompts(self) -> Iterator[Running]:
        """Start those that have room; return all that have started and are not read."""
        first = next(iter(self.running.values()), None)
        if first is not None and not self._started and self._lacks(first) > self.pool.available:
            self._free_waiting(first)
        waits = False
        for running in self.running.values():
            if running.id in self._started:
                if running.unread > 1:
                    yield running
            elif not waits:
                waits = not self._start(running)
                if not waits:
                    yield running

    def _start(self, running: Running) -> bool:
        if len(self._started) >= self._most:
            return False
        if running.forgotten:
            self._find(running)
        needed = self._lacks(running)
        spare = len(self._started)  # a block for each answer to grow
        if self._started and needed + spare > self.pool.available:
            return False
        if not self._extend(running, needed):
            return False
        self._started[running.id] = running
        return True

    def _find(self, running: Running) -> None:
        running.forgotten = False
        if running.scores:
            return  # the log-probabilities of the prompt are computed from its tokens
        for block, content in self.pool.find(running.ids):
            running.blocks.append(block)
            running.contents.append(content)
        running.computed = len(running.blocks) * BLOCK
        self.version += 1

    def _lacks(self, running: Running) -> int:
        return blocks_of(len(running.ids)) - len(running.blocks)

    def _free_waiting(self, keeps: Running) -> None:
        """Let go of blocks that other requests have found but cannot use yet."""
        for running in self.running.values():
            if running is not keeps and running.id not in self._started and running.blocks:
                self.pool.release(running.forget())

    def _grow(self, running: Running, tokens: int, turns: dict[int, Turn]) -> bool:
        """Give an answer room for so many tokens; return False if it is not in this step."""
        while (missing := blocks_of(tokens) - len(running.blocks)) > 0:
            if self._extend(running, missing):
                break
            last = next(reversed(self._started.values()))
            if last is running and len(self._started) == 1:
                self._free_waiting(running)
                running.full = not self._extend(running, missing)
                return not running.full
            turns.pop(last.id, None)
            self._stop(last)
            if last is running:
                return False
        return True

    def _stop(self, running: Running) -> None:
        del self._started[running.id]
        self.pool.release(running.forget())
        self.version += 1

    def _extend(self, running: Running, count: int) -> bool:
        if count > self.pool.available:
            return False
        for _ in range(count):
            block = self.pool.take()
            assert block is not None
            running.blocks.append(block)
            self.version += 1
        return True


def blocks_of(tokens: int) -> int:
    return -(-tokens // BLOCK)
