"""Schedules the tokens of the next step, and allocates the blocks of the KV cache.

A step has a budget of `max_num_batched_tokens`. Decodes come first, with a token each and its draft tokens.
Chunked prefill takes the rest in the order of the prompts, or as much of it as `PrefillBudget` allows next to
decodes. A prompt longer than that leaves half of it to short prompts behind it, so that these do not wait for
its prefill. With `dynamic_split_fuse: false` a prompt is prefilled in one step.

A prefill starts when there are blocks for the whole prompt. A decode allocates blocks as needed. When none is
free, the request that started last is preempted: its blocks are freed, and its tokens are computed again
later.

A beam search starts when there are blocks for all that its beams may need, or alone, because preemption would
restart it. Its beams share the blocks of their common prefix.

A line of a batch is computed only in steps without other requests, and keeps its blocks until one of those
needs them. Shortly after another request such steps are small (`short_steps`), because the next one waits
for the end of the step in which it comes.

A deterministic scheduler prefills in chunks of one size. Only chunks that a step computed alone are published
in the prefix cache. So a lone prompt is computed in the same steps, or their results are reused, whatever ran
before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from ovserve.kinds.text.worker.paged.beams import Beam, Candidate
from ovserve.kinds.text.worker.paged.blocks import ROOT, BlockPool, TokenSequence
from ovserve.kinds.text.worker.paged.model import BLOCK_TOKENS
from ovserve.kinds.text.worker.paged.prefill_budget import PrefillBudget
from ovserve.kinds.text.worker.paged.running import Running, ScheduledSequence, ScheduledStep
from ovserve.kinds.text.worker.paged.states import StatePool

SHORT_PROMPT_SHARE = 0.5  # of a step's prefill budget, for short prompts behind a long one
MAX_SHORT_PROMPT_RATIO = 0.5  # of the remaining tokens of the long one, at most
SHORT_STEP_TOKENS = 8  # of a step
MIN_FREE_SHARE = 0.25  # of a step's budget: no prompt waits for the next step while so much is free

Draft = Callable[[Running, int], tuple[int, ...]]  # of one request, next to how many that decode


class Scheduler:
    def __init__(
        self,
        pool: BlockPool,
        tokens: int,
        sequences: int,
        budget: PrefillBudget,
        *,
        splits: bool = True,
        deterministic: bool = False,
        states: StatePool | None = None,
    ) -> None:
        """`tokens`, `sequences`: most of one step. `splits`: a prompt may be computed in several steps.
        `states`: of a model with linear attention."""
        self.pool = pool
        self.states = states
        self.budget = budget
        self.num_arriving = 0  # requests that will be added, without lines of batches
        self.live = 0  # requests that are not lines of batches
        self.short_steps = False
        self._tokens = tokens
        self._splits = splits
        # Of prompts; 0: any.
        self._chunk_tokens = (tokens // BLOCK_TOKENS * BLOCK_TOKENS or tokens) if deterministic else 0
        self._alone = True  # the last step computed one sequence
        self._max_num_seqs = sequences
        self.running: dict[int, Running] = {}  # in the order of arrival
        self._started: dict[int, Running] = {}  # in the order of their start
        self._next_decode = 0  # index of the first decode that the last step left out
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
        prompts = [r for r in others if r.num_new_tokens > 1]
        if not prompts:
            return True
        new_tokens = [r.num_new_tokens for r in prompts]
        if not self._splits:
            return tokens <= self._tokens - sum(new_tokens)
        num_decoding = sum(r.width for r in others if r.num_new_tokens <= 1)
        room = self._prefill_budget(num_decoding, depth_of(prompts), self._tokens - num_decoding)
        short = self._short_prompt_limit(new_tokens[0], room)
        if short and not short < tokens <= self._tokens:
            free = int(room * SHORT_PROMPT_SHARE) - sum(tokens for tokens in new_tokens if tokens <= short)
        else:
            free = room - sum(new_tokens)
        return tokens <= free or free >= room * MIN_FREE_SHARE

    # ---- a step

    def schedule(self, draft: Draft) -> ScheduledStep:
        if self.states is not None:
            self.states.reserve(self._started.values())
        step_tokens = self._step_tokens
        scheduled = self._schedule_decodes(draft, step_tokens)
        decodes = [item for of_request in scheduled.values() for item in of_request]
        tokens = sum([item.tokens for item in decodes])
        step = ScheduledStep(decodes, len(scheduled), len(decodes), tokens)
        prompts = [
            running
            for running in self._eligible(self.running)
            if running.num_new_tokens > 1 or running.id not in self._started
        ]
        if prompts:
            # Drafts may exceed a step.
            step = self._add_prefill(step, prompts, max(step_tokens - tokens, 0))
        self._alone = len(step.items) == 1
        return step

    def _add_prefill(self, step: ScheduledStep, prompts: list[Running], room: int) -> ScheduledStep:
        depth = depth_of(prompts)
        if self._splits:
            counts = self._prefill(prompts, self._prefill_budget(step.num_decoding, depth, room))
        else:
            counts = self._whole_prompts(prompts)
        last_tokens = sum([running.num_new_tokens == 1 for running in counts])
        tokens = sum(counts.values())
        if self.states is not None:
            for running, count in counts.items():
                self.states.plan(running, count)
        return ScheduledStep(
            [*step.items, *(_prompt_part(running, count) for running, count in counts.items())],
            step.num_requests + len(counts),
            step.num_decoding + last_tokens,
            step.tokens + tokens,
            tokens - last_tokens,
            depth,
        )

    def _schedule_decodes(self, draft: Draft, step_tokens: int) -> dict[int, list[ScheduledSequence]]:
        answers = self._answers()
        num_decoding = sum([running.width for running in answers])
        if num_decoding > step_tokens:
            answers = self._next_answers(answers, step_tokens)
        scheduled: dict[int, list[ScheduledSequence]] = {}
        for running in answers:
            if running.id not in self._started:  # it has just been preempted
                continue
            if running.beams:
                if self._allocate_beams(running, scheduled):
                    scheduled[running.id] = [
                        ScheduledSequence(
                            running, beam, beam.num_computed_tokens, 1, 1, (), 0 if at else running.width
                        )
                        for at, beam in enumerate(running.beams)
                    ]
                continue
            drafted = draft(running, num_decoding)
            if self._allocate(running, len(running.ids) + len(drafted), scheduled):
                if drafted and self.states is not None:
                    drafted = drafted[: self.states.plan_drafts(running, len(drafted))]
                start, count = running.num_computed_tokens, 1 + len(drafted)
                scheduled[running.id] = [ScheduledSequence(running, running, start, count, count, drafted)]
        return scheduled

    def allocate_drafts(self, most: Callable[[Running], int]) -> dict[Running, int]:
        """Allocate blocks for the tokens that a draft model will propose; return how many for each request.

        `most`: for one request. All fit into a step, and no other request is preempted for them."""
        answers = self._answers()
        each = self._tokens // max(sum(running.width for running in answers), 1) - 1
        counts: dict[Running, int] = {}
        for running in answers:
            count = 0 if running.search is not None else min(most(running), each)
            if count > 0 and self._allocate_blocks(running, self._missing_blocks(running, count)):
                counts[running] = count
        return counts

    def record_computed(self, sequence: TokenSequence, count: int) -> None:
        """Record that so many more of its tokens are in the cache for good."""
        if (chunk := self._chunk_tokens) and not (
            self._alone and count == chunk and sequence.num_computed_tokens % chunk == 0
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
        if self.states is not None:
            self.version += self.states.record_computed(sequence, count)

    def fork(self, running: Running, candidates: list[Candidate]) -> None:
        """Replace the beams of a request by these, which share their parents' blocks."""
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
        if self.states is not None:
            for parent in running.beams:
                children = [
                    beam.state for beam, c in zip(beams, candidates, strict=True) if c.parent is parent
                ]
                self.states.fork(parent.state, children)
        for beam in running.beams:
            if beam not in last:
                self.pool.release(beam.block_table)
        running.set_beams(beams)
        self.version += 1

    def _answers(self) -> list[Running]:
        """Return the requests that decode, without those that are paused."""
        return [running for running in self._eligible(self._started) if running.num_new_tokens == 1]

    def _next_answers(self, answers: list[Running], token_budget: int) -> list[Running]:
        """Return those whose turn it is, where a step is too small for all."""
        at = self._next_decode % len(answers)
        decodes: list[Running] = []
        for running in [*answers[at:], *answers[:at]]:
            if decodes and running.width > token_budget:  # a wide one is not split, and may exceed a step
                break
            decodes.append(running)
            token_budget -= running.width
        self._next_decode = at + len(decodes)
        return decodes

    def _prefill(self, prompts: list[Running], token_budget: int) -> dict[Running, int]:
        """Return how many tokens of which prompts are computed, `token_budget` in all."""
        prompts = list(self._start_prompts(prompts))
        counts: dict[Running, int] = {}
        if prompts and (short := self._short_prompt_limit(prompts[0].num_new_tokens, token_budget)):
            short_room = int(token_budget * SHORT_PROMPT_SHARE)
            for running in prompts[1:]:
                if short_room and running.num_new_tokens <= short:
                    counts[running] = min(running.num_new_tokens, short_room)
                    short_room -= counts[running]
        token_budget -= sum(counts.values())
        for running in prompts:
            scheduled_tokens = counts.get(running, 0)
            most = running.num_new_tokens - scheduled_tokens
            if chunk := self._chunk_tokens:
                most = min(most, chunk - (running.num_computed_tokens + scheduled_tokens) % chunk)
            if more := min(token_budget, most):
                counts[running] = scheduled_tokens + more
                token_budget -= more
        if self.states is None or self._chunk_tokens:
            return counts
        return {running: _cut(running, count) for running, count in counts.items()}

    def _whole_prompts(self, prompts: list[Running]) -> dict[Running, int]:
        """Return prompts of a step's tokens, next to the answers: otherwise a long one would never fit."""
        counts: dict[Running, int] = {}
        token_budget = self._tokens
        for running in self._start_prompts(prompts):
            # With its answer, a preempted one may be longer than a step.
            count = min(running.num_new_tokens, self._tokens)
            if count > token_budget:
                break
            counts[running] = count
            token_budget -= count
        return counts

    def _short_prompt_limit(self, first: int, room: int) -> int:
        """Return how long prompts may be that pass the first one; 0 if one step prefills all of that."""
        return 0 if first <= room else min(self._tokens, int(first * MAX_SHORT_PROMPT_RATIO))

    def _prefill_budget(self, num_decoding: int, depth: int, most: int) -> int:
        """Return how many tokens the next step may prefill, up to `most`."""
        waiting = (self.live or len(self.running)) - num_decoding + self.num_arriving
        return self.budget.tokens(num_decoding, waiting, depth, most)

    def _start_prompts(self, prompts: list[Running]) -> Iterator[Running]:
        """Start the prefills that have blocks; yield those that have started."""
        lacks_states = self.states is not None and not self.states.can_start(prompts[0])
        lacks_room = lacks_states or self._missing_blocks(prompts[0]) > self.pool.available
        if not self._eligible(self._started) and lacks_room:
            self._release_waiting(prompts[0])
        waits = False
        for running in prompts:
            if running.id in self._started:
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
        while not self._allocate_blocks(running, missing):
            if not self._preempt_batch(running):
                return False
        while self.states is not None and not self.states.start(running):
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
        short_steps = self.short_steps and not self.live and not self._chunk_tokens
        return min(SHORT_STEP_TOKENS, self._tokens) if short_steps else self._tokens

    def _preempt_batch(self, running: Running) -> bool:
        """Preempt a line of a batch for another request; return False if there is none."""
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
        for block, digest in self.pool.find_prefix(running.ids):
            running.block_table.append(block)
            running.digests.append(digest)
        self._cut_prefix(running)
        running.num_computed_tokens = running.num_draft_computed_tokens = (
            len(running.block_table) * BLOCK_TOKENS
        )
        self.version += 1

    def _cut_prefix(self, running: Running) -> None:
        """Release the blocks behind the last whole chunk, and behind the last state."""
        step = self._chunk_tokens // BLOCK_TOKENS or 1
        num_blocks = len(running.block_table) // step * step
        if self._chunk_tokens:
            running.publishes = True
        if self.states is not None:
            num_blocks = self.states.find(running.state, running.digests, step)
        self.pool.release(running.block_table[num_blocks:])
        del running.block_table[num_blocks:], running.digests[num_blocks:]

    def _reserved_blocks(self, running: Running) -> int:
        """Return how many free blocks a request needs later: one for a decode, all of a beam search."""
        if running.search is None:
            return 1
        shared = running.num_prompt_tokens // BLOCK_TOKENS
        beam = blocks_of(running.num_prompt_tokens + running.max_new_tokens) - shared
        tables = [running.block_table, *(beam.block_table for beam in running.beams)]
        held = len({block for table in tables for block in table})
        return max(shared + running.sequence.sampling.beams * beam - held, 0)

    def _missing_blocks(self, running: Running, drafted: int = 0) -> int:
        return blocks_of(len(running.ids) + drafted) - len(running.block_table)

    def _release_waiting(self, keeps: Running) -> None:
        """Release cached blocks of other requests that have not started."""
        for running in self.running.values():
            if running is not keeps and running.id not in self._started and running.block_table:
                self._release(running)

    def _allocate(self, running: Running, tokens: int, scheduled: dict[int, list[ScheduledSequence]]) -> bool:
        """Allocate blocks for so many tokens of a decode; return False if it is not in this step."""
        while (missing := blocks_of(tokens) - len(running.block_table)) > 0:
            if self._allocate_blocks(running, missing):
                break
            if not self._preempt_for(running, missing, scheduled):
                return False
        return True

    def _allocate_beams(self, running: Running, scheduled: dict[int, list[ScheduledSequence]]) -> bool:
        """Allocate a block for the next token of each beam; return False if it is not in this step."""
        for beam in running.beams:
            while not self._allocate_beam(beam):
                if not self._preempt_for(running, 1, scheduled):
                    return False
        return True

    def _allocate_beam(self, beam: Beam) -> bool:
        if self.states is not None:
            self.states.allocate(beam.state)  # reserved when the search began
        if beam.num_computed_tokens // BLOCK_TOKENS == len(beam.block_table):
            return self._allocate_blocks(beam, 1)
        last = beam.block_table[-1]
        own = self.pool.copy_on_write(last)
        if own is None:
            return False
        if own != last:
            beam.block_table[-1] = own
            self.version += 1
        return True

    def _preempt_for(
        self, running: Running, missing: int, scheduled: dict[int, list[ScheduledSequence]]
    ) -> bool:
        """Preempt the request that started last, lines of batches first; return False if that is this one, or
        if there is no other to preempt."""
        last = (None if running.batch else self._last_batch()) or next(reversed(self._started.values()))
        if last is running and len(self._started) == 1:
            self._release_waiting(running)
            running.out_of_memory = self.pool.available < missing
            return not running.out_of_memory
        scheduled.pop(last.id, None)
        del self._started[last.id]
        self._release(last)
        return last is not running

    def _release(self, running: Running) -> None:
        if self.states is not None:
            for sequence in (running, *running.beams):
                self.states.release(sequence.state)
        for table in running.drop_blocks():
            self.pool.release(table)
        self.version += 1

    def _allocate_blocks(self, sequence: TokenSequence, count: int) -> bool:
        if not self.pool.can_allocate(count):
            return False
        for _ in range(count):
            block = self.pool.allocate()
            assert block is not None
            sequence.block_table.append(block)
            self.version += 1
        return True


def _cut(running: Running, count: int) -> int:
    """Return how many of these tokens a step computes, such that the state behind them can be kept."""
    start, branch = running.num_computed_tokens, running.state.shared_tokens
    if start < branch < start + count:
        return branch - start
    beyond = (start + count) % BLOCK_TOKENS
    return count - beyond if beyond < count < running.num_new_tokens else count


def depth_of(prompts: list[Running]) -> int:
    """Return the computed tokens of the prompt whose prefill is furthest."""
    return max((r.num_computed_tokens for r in prompts if r.num_new_tokens > 1), default=0)


def _prompt_part(running: Running, count: int) -> ScheduledSequence:
    start = running.num_computed_tokens
    scores = running.scores_prompt and start < running.num_prompt_tokens
    rows = count if scores else int(start + count == len(running.ids))
    return ScheduledSequence(running, running, start, count, rows)


def blocks_of(tokens: int) -> int:
    return -(-tokens // BLOCK_TOKENS)
