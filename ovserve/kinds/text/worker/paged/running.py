"""A request in the step loop: its tokens, its block table, and how its next token is sampled."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Ordered
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np

from ovserve.kinds.text.worker.decoding import Part, Sequence
from ovserve.kinds.text.worker.paged.beams import Beam, BeamSearch, Hypothesis
from ovserve.kinds.text.worker.paged.blocks import StateSlots, TokenSequence
from ovserve.kinds.text.worker.paged.drafts import ModelDrafts, NgramDrafter
from ovserve.kinds.text.worker.paged.runner import Floats, Ints, Runner, StepStates
from ovserve.kinds.text.worker.paged.sampler import Choice, Scored

# The inputs of a step. While the same requests decode, only values change, and the runtime reads them in
# place.


class StepTokens(NamedTuple):
    """The tokens of a sequence that a step computes."""

    ids: array[int]
    start: int  # tokens of the sequence before them
    rows: int  # of the last ones of them the logits are needed
    block_table: array[int]
    is_lone: bool = False  # one token of a prompt, which is rounded as those next to it were
    states: StepStates | None = None  # of these tokens, and of those of the next parts without any


class Bound(NamedTuple):
    """The arrays that the runtime reads."""

    ids: Ints
    positions: Ints
    past: Ints


class Inputs:
    def __init__(self, runner: Runner, *, own_attention: bool = False) -> None:
        """`own_attention` rounds tokens of an answer, and those of a prompt, the same way in any step."""
        self._runner = runner
        self._own_attention = own_attention
        self._bound: Bound | None = None
        self._decoding: list[int] = []  # who was in the last step, if each had one token
        self._version = -1

    def run(self, scheduled: list[ScheduledSequence], version: int) -> Floats:
        """Compute a step and return its logits [rows, vocabulary]: those of the first turn come first.

        `version` changes whenever a request gets or loses blocks."""
        # A prompt's token is rounded otherwise than an answer's, and is not always the last of its sequence.
        decoding = [
            item.running.id for item in scheduled if item.tokens == 1 == item.rows and not item.is_of_prompt
        ]
        if len(decoding) < len(scheduled):
            decoding = []
        if decoding and decoding == self._decoding and self._bound is not None:
            if version != self._version:
                bind_blocks(self._runner, [item.sequence.block_table for item in scheduled])
                if self._runner.has_states:
                    self._runner.bind_states(
                        [item.sequence.state.of_step(item.start, 1) for item in scheduled]
                    )
            self._bound.ids[:] = [item.sequence.ids[-1] for item in scheduled]
            self._bound.positions[:] = self._bound.past[:] = [item.start for item in scheduled]
        else:
            self._bound = bind_tokens(self._runner, chain.from_iterable(map(self._parts_of, scheduled)))
        self._decoding, self._version = decoding, version
        return self._runner.run(max([item.start + item.tokens for item in scheduled]))

    def _parts_of(self, item: ScheduledSequence) -> Iterable[StepTokens]:
        sequence = item.sequence
        ids = sequence.ids[item.start : item.start + item.tokens]
        ids.extend(item.drafted)
        is_lone = self._own_attention and item.is_of_prompt and item.tokens - len(item.drafted) == 1
        part = StepTokens(ids, item.start, item.rows, sequence.block_table, is_lone)
        if self._runner.has_states:
            part = part._replace(states=sequence.state.of_step(item.start, len(ids)))
        return _split(part) if self._own_attention and item.drafted else (part,)


def _split(part: StepTokens) -> Iterator[StepTokens]:
    """Let draft tokens be sequences of their own. A token's keys are in the cache before any attention of the
    step is computed. The first token may be the last one of a prompt."""
    for at in range(len(part.ids)):
        is_lone, states = part.is_lone and not at, None if at else part.states
        yield StepTokens(part.ids[at : at + 1], part.start + at, 1, part.block_table, is_lone, states)


def bind_tokens(runner: Runner, parts: Iterable[StepTokens]) -> Bound:
    parts = list(parts)
    ends = _sums([len(part.ids) for part in parts])
    bound = Bound(
        np.frombuffer(bytearray().join(part.ids for part in parts), np.int64),
        np.concatenate([np.arange(part.start, part.start + len(part.ids)) for part in parts]),
        np.array([~part.start if part.is_lone else part.start for part in parts], np.int32),
    )
    rows = [
        np.arange(end - part.rows, end, dtype=np.int32)
        for part, end in zip(parts, ends[1:].tolist(), strict=True)
        if part.rows
    ]
    runner.bind("input_ids", bound.ids)
    runner.bind("position_ids", bound.positions)
    runner.bind("past_lens", bound.past)
    runner.bind("subsequence_begins", ends)
    # Without any the layer is computed for one, because not every kernel takes none.
    runner.bind("rows", np.concatenate(rows) if rows else np.zeros(1, np.int32))
    bind_blocks(runner, [part.block_table for part in parts])
    if runner.has_states:
        runner.bind_states([part.states for part in parts if part.states is not None])
    return bound


def bind_blocks(runner: Runner, tables: list[array[int]]) -> None:
    runner.bind("block_indices", np.frombuffer(bytearray().join(tables), np.int32))
    runner.bind("block_indices_begins", _sums([len(table) for table in tables]))


def _sums(counts: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Return zero, then the sum of each beginning of `counts`."""
    return np.array([0, *accumulate(counts)], np.int32)


FIRST_TOKEN_LOGPROB = 1.0  # the first token of a prompt has none: see `Sequence`


class Running(TokenSequence):
    """`ids` are those of the prompt, then of the answer; during a beam search those of the best beam."""

    def __init__(self, sequence: Sequence, ids: Ordered[int], choice: Choice, max_new_tokens: int) -> None:
        """`max_new_tokens`: tokens that may be generated; 0: no bound."""
        super().__init__(ids)
        self.id = sequence.id
        self.sequence = sequence
        self.choice = choice
        self.drafter: NgramDrafter | None = None
        self.model_drafts: ModelDrafts | None = None  # of a draft model, in place of the drafter
        self.num_draft_computed_tokens = 0  # tokens whose keys and values are in the cache of the draft model
        self.search: BeamSearch | None = None
        self.searched = False  # the search has ended
        self.beams: list[Beam] = []  # once the prompt is computed: they have the blocks, and this has none
        self.num_prompt_tokens = len(self.ids)
        self.batch = False  # a line of a batch: computed only while there is no other request
        self.preempted = False  # its blocks were freed
        self.out_of_memory = False  # no other request is left that could give it a block
        self.max_new_tokens = max_new_tokens
        self.scores_prompt = sequence.sampling.echo and sequence.sampling.logprobs  # the prompt's tokens too
        self._new: list[int] = []
        self._scored: list[Scored] = []
        self._echo: list[Scored] = []
        self._echoes = sequence.sampling.echo

    @property
    def num_new_tokens(self) -> int:
        """Tokens to compute before the next one can be chosen: of a prefill, or 1 while it decodes."""
        return len(self.ids) - self.num_computed_tokens

    @property
    def remaining_tokens(self) -> int | None:
        """Tokens that may still be generated; None: any number."""
        return self.max_new_tokens - (len(self.ids) - self.num_prompt_tokens) if self.max_new_tokens else None

    def append(self, token: int, scored: Scored | None) -> None:
        self.ids.append(token)
        self._new.append(token)
        if scored is not None:
            self._scored.append(scored)

    def echo(self, scored: list[Scored]) -> None:
        """Log-probabilities of the next tokens of the prompt."""
        self._echo += scored

    @property
    def width(self) -> int:
        """Sequences that it has in a step."""
        return len(self.beams) or 1

    def root_beam(self) -> Beam:
        """Return the first beam, which takes over the blocks."""
        root = Beam(self.ids)
        root.num_computed_tokens = self.num_computed_tokens
        root.block_table, root.digests = self.block_table, self.digests
        root.state = self.state
        self.block_table, self.digests, self.state = array("i"), [], StateSlots()
        return root

    def set_beams(self, beams: list[Beam]) -> None:
        self.beams = beams
        if beams:
            self.ids, self.num_computed_tokens = beams[0].ids, beams[0].num_computed_tokens

    def drop_blocks(self) -> list[array[int]]:
        """Give up its blocks; return the block tables. A beam search will begin again."""
        tables = [self.block_table, *(beam.block_table for beam in self.beams)]
        if self.search is not None:
            self.ids, self.beams = self.ids[: self.num_prompt_tokens], []
        self.block_table = array("i")
        self.num_computed_tokens = self.num_draft_computed_tokens = 0
        self.preempted = True
        self.digests.clear()
        self._echo.clear()
        return tables

    def take_parts(self) -> list[Part] | None:
        """Return what is new, for `Sequence.process`; None: nothing."""
        if self.search is not None:
            finished = self.searched or self.out_of_memory
            return [self._part(each) for each in self.search.finish()] if finished else None
        if self.out_of_memory:
            return []
        if not self._new:
            return None
        ids, scored = self._new, self._scored
        self._new, self._scored = [], []
        if self._echoes:
            self._echoes = False
            ids, scored = self._with_prompt(ids, scored)
        finish = "length" if self.remaining_tokens == 0 else None
        return [Part(ids, [each.logprob for each in scored], 0.0, finish, [each.top for each in scored])]

    def _part(self, best: Hypothesis) -> Part:
        ids, scored = best.ids.tolist(), list(best.scored)
        if self._echoes:
            ids, scored = self._with_prompt(ids, scored)
        return Part(
            ids, [each.logprob for each in scored], best.score, best.finish, [each.top for each in scored]
        )

    def _with_prompt(self, ids: list[int], scored: list[Scored]) -> tuple[list[int], list[Scored]]:
        if self.sequence.sampling.logprobs:
            scored = [Scored(FIRST_TOKEN_LOGPROB), *self._echo, *scored]
        return [*self.ids[: self.num_prompt_tokens], *ids], scored


class ScheduledSequence(NamedTuple):
    """The part of a sequence that a step computes: `tokens` of it from `start` on, the last of them drafted.
    The beams of a request have one each, next to each other."""

    running: Running
    sequence: TokenSequence  # `running` itself, or one of its beams
    start: int
    tokens: int
    rows: int  # tokens whose logits are needed, the last ones
    drafted: tuple[int, ...] = ()
    width: int = 1  # of the request's sequences from this one on; 0 if an earlier one stands for it

    @property
    def is_of_prompt(self) -> bool:
        """Return whether its first token is one of the prompt."""
        return self.start < self.running.num_prompt_tokens


class ScheduledStep(NamedTuple):
    """The sequences of a step, decodes first."""

    items: list[ScheduledSequence]
    num_requests: int
    num_decoding: int  # of the items, those with one token to compute, and drafts
    tokens: int
    prefilled: int = 0  # tokens of the other items
    depth: int = 0  # computed tokens of the prompt whose prefill is furthest
