"""A request in the step loop: its tokens, its block table, and how its next token is sampled."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Ordered
from typing import NamedTuple

from ovserve.kinds.text.worker.decoding.sequence import Part, Sequence
from ovserve.kinds.text.worker.paged.beams import Beam, BeamSearch, Hypothesis
from ovserve.kinds.text.worker.paged.blocks import TokenSequence
from ovserve.kinds.text.worker.paged.drafts import ModelDrafts, NgramDrafter
from ovserve.kinds.text.worker.paged.sampler import Choice, Scored

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
        self.block_table, self.digests = array("i"), []
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
    """The part of a sequence that a step computes: `tokens` of it from `num_computed_tokens` on, the last of
    them drafted. The beams of a request have one each, next to each other."""

    running: Running
    tokens: int
    drafted: tuple[int, ...] = ()
    beam: Beam | None = None
    width: int = 1  # of the request's sequences from this one on; 0 if an earlier one stands for it

    @property
    def sequence(self) -> TokenSequence:
        return self.beam or self.running

    @property
    def rows(self) -> int:
        """Tokens whose logits are needed, the last ones."""
        running = self.running
        if self.beam is not None:
            return 1
        if running.scores_prompt and running.num_computed_tokens < running.num_prompt_tokens:
            return self.tokens
        return 1 + len(self.drafted) if running.num_computed_tokens + self.tokens >= len(running.ids) else 0
