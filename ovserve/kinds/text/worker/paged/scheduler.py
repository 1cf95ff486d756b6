"""Decides what the next step computes, and who has which blocks of the KV cache.

A step has `max_num_batched_tokens`. Answers come first, a token each and its candidates; prompts take the
rest in their order, or as much of it as `PromptBudget` allows next to answers. A prompt longer than that
leaves half of it to short ones behind it, so that these do not wait until it is read. With
`dynamic_split_fuse: false` a prompt is computed whole.

A prompt starts when there are blocks for all of it. An answer takes blocks as it grows. When none is left,
the request that started last gives its blocks back, and later computes its tokens again.

A beam search starts when there are blocks for all that its beams may become, or alone, because it would begin
again where it lost its blocks. Its beams share the blocks of what they have in common.

A line of a batch is computed only in steps without other requests, and keeps its blocks until one of those
needs them. Shortly after another request such steps are small (`short_steps`), because the next one waits
for the end of the step in which it comes.

A deterministic scheduler reads prompts in parts of one size. Only parts that a step computed alone are found
in the cache, so that a lone prompt is computed in the same steps, or their results reused, whatever ran
before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from ovserve.kinds.text.worker.paged.beams import Beam, Candidate
from ovserve.kinds.text.worker.paged.blocks import ROOT, BlockPool, TokenSequence
from ovserve.kinds.text.worker.paged.budget import PromptBudget
from ovserve.kinds.text.worker.paged.model import BLOCK_TOKENS
from ovserve.kinds.text.worker.paged.running import Running, ScheduledSequence

SHORT_PROMPT_SHARE = 0.5  # of a step's room for prompts, to short ones behind a long one
MAX_SHORT_PROMPT_RATIO = 0.5  # of what is left of the long one, at most
SHORT_STEP_TOKENS = 8  # of a step
MIN_FREE_SHARE = 0.25  # of a step's room: no prompt waits for the step after it while so much is free

Draft = Callable[[Running], tuple[int, ...]]


class Scheduler:
    def __init__(
        self,
        pool: BlockPool,
        tokens: int,
        sequences: int,
        budget: PromptBudget,
        *,
        splits: bool = True,
        deterministic: bool = False,
    ) -> None:
        """`tokens`, `sequences`: most of one step. `splits`: a prompt may be computed in several steps."""
        self.pool = pool
        self.budget = budget
        self.num_arriving = 0  # requests that will be added, without lines of batches
        self.live = 0  # requests that are not lines of batches
        self.short_steps = False
        self._tokens = tokens
        self._splits = splits
        self._part_tokens = (
            (tokens // BLOCK_TOKENS * BLOCK_TOKENS or tokens) if deterministic else 0
        )  # of prompts; 0: any
        self._alone = True  # the last step computed one sequence
        self._max_num_seqs = sequences
        self.running: dict[int, Running] = {}  # in the order of arrival
        self._started: dict[int, Running] = {}  # in the order of their start
        self._behind = 0  # the first of the answers that had no place in the last step
        self.version = 0  # of who has which blocks

    # ---- requests

    def add(self, running: Running) -> int:
        """Return the tokens of its prompt that are in the cache."""
        self.running[running.id] = running
        self.live += not running.batch
        self._find_prefix(running)
        return running.num_computed_tokens

    def remove(self, id_: int) -> Running | None:
        running = self.running.pop(id_, None)
        if running is not None:
            self.live -= not running.batch
            self._started.pop(id_, None)
            self._release(running)
        return running

    def can_schedule(self, tokens: int, *, batch: bool = False) -> bool:
        """Return whether a prompt should be added before the next step, and not look for its beginning in the
        cache later. `batch`: it is that of a line of a batch."""
        if batch and self.live:
            return False
        others = [r for r in self.running.values() if batch or not r.batch]
        new_tokens = [r.num_new_tokens for r in others if r.num_new_tokens > 1]
        if not new_tokens:
            return True
        if not self._splits:
            return tokens <= self._tokens - sum(new_tokens)
        decoding = sum(r.width for r in others if r.num_new_tokens <= 1)
        room = self._room(self._tokens - decoding)
        short = self._short(new_tokens[0], room)
        if short and not short < tokens <= self._tokens:
            left = int(room * SHORT_PROMPT_SHARE) - sum(tokens for tokens in new_tokens if tokens <= short)
        else:
            left = room - sum(new_tokens)
        return tokens <= left or left >= room * MIN_FREE_SHARE

    # ---- a step

    def plan(self, draft: Draft) -> list[ScheduledSequence]:
        """Return what to compute, the answers first."""
        scheduled: dict[int, list[ScheduledSequence]] = {}
        for running in self._answering():
            if running.id not in self._started:  # it has just lost its blocks
                continue
            if running.beams:
                if self._allocate_beams(running, scheduled):
                    scheduled[running.id] = [
                        ScheduledSequence(running, 1, (), beam, 0 if at else running.width)
                        for at, beam in enumerate(running.beams)
                    ]
                continue
            drafted = draft(running)
            if self._allocate(running, len(running.ids) + len(drafted), scheduled):
                scheduled[running.id] = [ScheduledSequence(running, 1 + len(drafted), drafted)]
        planned = [item for of_request in scheduled.values() for item in of_request]
        left = max(self._step_tokens - sum(item.tokens for item in planned), 0)  # drafts may exceed a step
        prefill = self._prefill(self._room(left)) if self._splits else self._whole_prompts()
        planned += [ScheduledSequence(running, count) for running, count in prefill.items()]
        self._alone = len(planned) == 1
        return planned

    def reserve_drafts(self, most: Callable[[Running], int]) -> dict[Running, int]:
        """Give answers blocks for tokens that a draft model will propose; return how many of each.

        `most`: of one answer. All fit into a step, and no other request is preempted for them."""
        answers = [running for running in self._eligible(self._started) if running.num_new_tokens == 1]
        each = self._tokens // max(sum(running.width for running in answers), 1) - 1
        counts: dict[Running, int] = {}
        for running in answers:
            count = 0 if running.search is not None else min(most(running), each)
            if count > 0 and self._take_blocks(running, self._missing_blocks(running, count)):
                counts[running] = count
        return counts

    def answering(self) -> int:
        """Return how many sequences have their prompt in the cache, without those that are paused."""
        return sum(running.width for running in self._eligible(self._started) if running.num_new_tokens == 1)

    @property
    def depth(self) -> int:
        """Tokens of a prompt that is being read, before its next ones: of the longest."""
        running = self._eligible(self.running)
        return max((r.num_computed_tokens for r in running if r.num_new_tokens > 1), default=0)

    def record_computed(self, sequence: TokenSequence, count: int) -> None:
        """Record that so many more of its tokens are in the cache for good."""
        if (part := self._part_tokens) and not (
            self._alone and count == part and sequence.num_computed_tokens % part == 0
        ):
            sequence.publishes = False
        sequence.num_computed_tokens += count
        digests = sequence.digests
        while (
            sequence.publishes and (end := (len(digests) + 1) * BLOCK_TOKENS) <= sequence.num_computed_tokens
        ):
            before = digests[-1] if digests else ROOT
            block, ids = sequence.block_table[len(digests)], sequence.ids[end - BLOCK_TOKENS : end]
            digests.append(self.pool.publish(block, before, ids))

    def fork(self, running: Running, candidates: list[Candidate]) -> None:
        """Replace the beams of a request by these, each of which has its parent's blocks."""
        last = {candidate.parent: at for at, candidate in enumerate(candidates)}
        beams: list[Beam] = []
        for at, candidate in enumerate(candidates):
            parent, beam = candidate.parent, Beam(candidate.ids, candidate.score, candidate.scored)
            beam.num_computed_tokens, beam.digests = parent.num_computed_tokens, parent.digests[:]
            beam.block_table = (
                parent.block_table if last[parent] == at else self.pool.fork(parent.block_table)
            )
            candidate.group.beams.append(beam)
            beams.append(beam)
        for beam in running.beams:
            if beam not in last:
                self.pool.release(beam.block_table)
        running.follow(beams)
        self.version += 1

    def _answering(self) -> list[Running]:
        answers = [running for running in self._eligible(self._started) if running.num_new_tokens == 1]
        if sum(running.width for running in answers) <= self._step_tokens:
            return answers
        at = self._behind % len(answers)
        chosen: list[Running] = []
        left = self._step_tokens
        for running in [*answers[at:], *answers[:at]]:
            if chosen and running.width > left:  # a wide one is not split, and may exceed a step
                break
            chosen.append(running)
            left -= running.width
        self._behind = at + len(chosen)
        return chosen

    def _prefill(self, left: int) -> dict[Running, int]:
        """Return how many tokens of which prompts are computed, `left` in all."""
        prompts = list(self._prompts())
        counts: dict[Running, int] = {}
        if prompts and (short := self._short(prompts[0].num_new_tokens, left)):
            short_room = int(left * SHORT_PROMPT_SHARE)
            for running in prompts[1:]:
                if short_room and running.num_new_tokens <= short:
                    counts[running] = min(running.num_new_tokens, short_room)
                    short_room -= counts[running]
        left -= sum(counts.values())
        for running in prompts:
            scheduled_tokens = counts.get(running, 0)
            most = running.num_new_tokens - scheduled_tokens
            if part := self._part_tokens:
                most = min(most, part - (running.num_computed_tokens + scheduled_tokens) % part)
            if more := min(left, most):
                counts[running] = scheduled_tokens + more
                left -= more
        return counts

    def _whole_prompts(self) -> dict[Running, int]:
        """Return prompts of a step's tokens, next to the answers: otherwise a long one would never fit."""
        counts: dict[Running, int] = {}
        left = self._tokens
        for running in self._prompts():
            # With its answer, a preempted one may be longer than a step.
            count = min(running.num_new_tokens, self._tokens)
            if count > left:
                break
            counts[running] = count
            left -= count
        return counts

    def _short(self, first: int, room: int) -> int:
        """Return how long prompts may be that pass the first one; 0 if a step reads all of that."""
        return 0 if first <= room else min(self._tokens, int(first * MAX_SHORT_PROMPT_RATIO))

    def _room(self, most: int) -> int:
        """Return how many tokens of prompts the next step reads, up to `most`."""
        answering = self.answering()
        waiting = (self.live or len(self.running)) - answering + self.num_arriving
        return self.budget.tokens(answering, waiting, self.depth, most)

    def _prompts(self) -> Iterator[Running]:
        """Start those that have room; return all that have started and are not read."""
        eligible = self._eligible(self.running)
        first = next(iter(eligible), None)
        alone = first is not None and not self._eligible(self._started)
        if first is not None and alone and self._missing_blocks(first) > self.pool.available:
            self._free_waiting(first)
        waits = False
        for running in eligible:
            if running.id in self._started:
                if running.num_new_tokens > 1:
                    yield running
            elif not waits:
                waits = not self._start(running)
                if not waits:
                    yield running

    def _start(self, running: Running) -> bool:
        if len(self._started) >= self._max_num_seqs and not self._preempt_batch(running):
            return False
        if running.preempted:
            self._find_prefix(running)
        started = self._eligible(self._started)
        reserved = sum(map(self._reserved_blocks, started))
        missing = self._missing_blocks(running)
        needed = missing if running.search is None else self._reserved_blocks(running)
        while started and needed + reserved > self.pool.available:
            if not self._preempt_batch(running):
                return False
        while not self._take_blocks(running, missing):
            if not self._preempt_batch(running):
                return False
        self._started[running.id] = running
        return True

    def _eligible(self, requests: dict[int, Running]) -> Collection[Running]:
        """Return those that the next step may compute."""
        if not self.live or self.live == len(self.running):
            return requests.values()
        return [running for running in requests.values() if not running.batch]

    @property
    def _step_tokens(self) -> int:
        short_steps = self.short_steps and not self.live and not self._part_tokens
        return min(SHORT_STEP_TOKENS, self._tokens) if short_steps else self._tokens

    def _preempt_batch(self, running: Running) -> bool:
        """Take the blocks of a line of a batch for another request; return False if there is none."""
        if running.batch or (last := self._last_batch()) is None:
            return False
        del self._started[last.id]
        self._release(last)
        return True

    def _last_batch(self) -> Running | None:
        return next((running for running in reversed(self._started.values()) if running.batch), None)

    def _find_prefix(self, running: Running) -> None:
        running.preempted = False
        if running.scores_prompt:
            return  # the log-probabilities of the prompt are computed from its tokens
        for block, digest in self.pool.find(running.ids):
            running.block_table.append(block)
            running.digests.append(digest)
        if part := self._part_tokens:
            self._keep_whole_parts(running, part)
        running.num_computed_tokens = running.num_drafted_tokens = len(running.block_table) * BLOCK_TOKENS
        self.version += 1

    def _keep_whole_parts(self, running: Running, part: int) -> None:
        """Let go of blocks behind the last whole part that was found."""
        running.publishes = True
        kept = len(running.block_table) * BLOCK_TOKENS // part * part // BLOCK_TOKENS
        self.pool.release(running.block_table[kept:])
        del running.block_table[kept:], running.digests[kept:]

    def _reserved_blocks(self, running: Running) -> int:
        """Return the blocks that a request should find later: one of an answer, all of a beam search."""
        if running.search is None:
            return 1
        shared = running.prompt // BLOCK_TOKENS
        beam = blocks_of(running.prompt + running.max_new_tokens) - shared
        tables = [running.block_table, *(beam.block_table for beam in running.beams)]
        held = len({block for table in tables for block in table})
        return max(shared + running.sequence.sampling.beams * beam - held, 0)

    def _missing_blocks(self, running: Running, drafted: int = 0) -> int:
        return blocks_of(len(running.ids) + drafted) - len(running.block_table)

    def _free_waiting(self, keeps: Running) -> None:
        """Let go of blocks that other requests have found but cannot use yet."""
        for running in self.running.values():
            if running is not keeps and running.id not in self._started and running.block_table:
                self._release(running)

    def _allocate(self, running: Running, tokens: int, scheduled: dict[int, list[ScheduledSequence]]) -> bool:
        """Give an answer room for so many tokens; return False if it is not in this step."""
        while (missing := blocks_of(tokens) - len(running.block_table)) > 0:
            if self._take_blocks(running, missing):
                break
            if not self._preempt_for(running, missing, scheduled):
                return False
        return True

    def _allocate_beams(self, running: Running, scheduled: dict[int, list[ScheduledSequence]]) -> bool:
        """Give each beam a block of its own for its next token; return False if it is not in this step."""
        for beam in running.beams:
            while not self._allocate_beam(beam):
                if not self._preempt_for(running, 1, scheduled):
                    return False
        return True

    def _allocate_beam(self, beam: Beam) -> bool:
        if beam.num_computed_tokens // BLOCK_TOKENS == len(beam.block_table):
            return self._take_blocks(beam, 1)
        last = beam.block_table[-1]
        own = self.pool.own(last)
        if own is None:
            return False
        if own != last:
            beam.block_table[-1] = own
            self.version += 1
        return True

    def _preempt_for(
        self, running: Running, missing: int, scheduled: dict[int, list[ScheduledSequence]]
    ) -> bool:
        """Take the blocks of the request that started last, of lines of batches first; return False if that
        is this one, or if there is no other to take them from."""
        last = (None if running.batch else self._last_batch()) or next(reversed(self._started.values()))
        if last is running and len(self._started) == 1:
            self._free_waiting(running)
            running.out_of_memory = self.pool.available < missing
            return not running.out_of_memory
        scheduled.pop(last.id, None)
        del self._started[last.id]
        self._release(last)
        return last is not running

    def _release(self, running: Running) -> None:
        for table in running.drop_blocks():
            self.pool.release(table)
        self.version += 1

    def _take_blocks(self, sequence: TokenSequence, count: int) -> bool:
        if not self.pool.has(count):
            return False
        for _ in range(count):
            block = self.pool.take()
            assert block is not None
            sequence.block_table.append(block)
            self.version += 1
        return True


def blocks_of(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)
