"""The engine: requests in, steps, texts out. It runs in one thread, in the order add/abort, step, collect."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Iterator
from itertools import islice
from typing import NoReturn

import msgspec
import openvino

from ovserve.engine.protocol.admission import admit
from ovserve.engine.protocol.messages import Accepted, Add, Failed, StepItem, Usage
from ovserve.errors import Internal, InvalidArgument, shortened
from ovserve.kinds.text.worker.decoding.sequence import Sequence
from ovserve.kinds.text.worker.genai.request import generation_config
from ovserve.kinds.text.worker.paged.beams import BeamSearch, CompletesStop
from ovserve.kinds.text.worker.paged.drafts import (
    MAX_DRAFT_TOKENS,
    MAX_DRAFTED_STREAMS,
    ModelDrafts,
    NgramDrafter,
)
from ovserve.kinds.text.worker.paged.dry import DryPenalty
from ovserve.kinds.text.worker.paged.loaded import LoadedModel
from ovserve.kinds.text.worker.paged.model import Floats
from ovserve.kinds.text.worker.paged.reasoning import ReasoningLimit
from ovserve.kinds.text.worker.paged.running import Running, ScheduledSequence
from ovserve.kinds.text.worker.paged.sampler import Choice
from ovserve.llm.decoding import DEFAULT_ASSISTANT_TOKENS
from ovserve.llm.grammar.constraint import Constraint, structural_tag
from ovserve.llm.request import Sampling

CALM_SECONDS = 5.0  # after the last live request, the steps of batches need not be short any more
FORCED_CHARACTERS = 64  # of a text that must follow, which may have thousands; few tokens of it are drafted
NO_MEMORY = "the KV cache of this prompt needs more memory than the machine or container has left"
NOTHING_ALLOWED = "the grammar and the biases of this request leave no token that could follow"


class PagedEngine(LoadedModel):
    # ---- the verbs of an engine

    @property
    def busy(self) -> bool:
        return bool(self._scheduler.running)

    def live(self) -> list[int]:
        return list(self._scheduler.running)

    def encode_prompts(self, requests: list[Add]) -> dict[int, openvino.Tensor]:
        encoded = self._text.encode_prompts(requests)
        self._arriving.update(add.id for add in requests if add.id in encoded and not add.batch)
        self._scheduler.num_arriving = len(self._arriving)
        return encoded

    def can_schedule(self, request: Add, encoded: openvino.Tensor | None) -> bool:
        return encoded is None or self._scheduler.can_schedule(encoded.shape[1], batch=request.batch)

    def add(self, request: Add, encoded: openvino.Tensor | None = None) -> Accepted:
        """`encoded`: the prompt's ids, from `encode_prompts`."""
        self._arrived(request.id)
        if request.id in self._scheduler.running:
            raise Internal(f"request {request.id} is already running")
        sampling = request.sampling
        tensor = self._text.encode_prompt(request) if encoded is None else encoded
        ids: list[int] = tensor.data[0].tolist()
        most = admit(len(ids), self.facts.max_length, sampling, self._prompt_limit, "paged")
        stop_ids = self._text.stop_ids(sampling)
        self._check(sampling, most, stop_ids)
        hidden = self._text.hidden(sampling.skip_special_tokens)
        sequence = Sequence(None, request.id, sampling, len(ids), stop_ids, hidden)
        if sampling.echo:
            for branch in sequence.branches:
                branch.output.echo(self._text.prompt_text(request.prompt))
        form = None if sampling.constraint is None else structural_tag(sampling.constraint.format)
        matcher = None if form is None else self._grammars.matcher(form)
        limit = self._reasoning_limit(sampling, stop_ids)
        dry = None if sampling.dry is None else DryPenalty(sampling.dry, ids, self._text.bytes_of)
        choice = Choice(sampling, ids, stop_ids, matcher, limit, dry)
        # With max_tokens 0, one token is still computed, because `Sequence` expects one.
        max_new_tokens = most or int(sampling.max_tokens == 0)
        running = Running(sequence, ids, choice, max_new_tokens)
        running.batch = request.batch
        if sampling.beams > 1:
            completes_stop = self._completes_stop(sampling.stop, hidden)
            running.search = BeamSearch(sampling, len(ids), choice, stop_ids, completes_stop)
        elif self._spec.deterministic:
            pass  # a step of drafts rounds otherwise
        elif sampling.num_assistant_tokens != 0 and self._draft_model is not None:
            most_drafted = sampling.num_assistant_tokens or DEFAULT_ASSISTANT_TOKENS
            running.model_drafts = sequence.drafts = ModelDrafts(most_drafted)
        elif sampling.num_assistant_tokens != 0:
            running.drafter = sequence.drafts = NgramDrafter(
                running.ids, sampling.num_assistant_tokens or MAX_DRAFT_TOKENS
            )
        cached = self._scheduler.add(running)
        return Accepted(request.id, len(ids), most, cached)

    def abort(self, request_id: int) -> None:
        self._arrived(request_id)
        self._scheduler.remove(request_id)

    def step(self) -> None:
        began = time.perf_counter()
        if self._scheduler.live:
            self._last_live = began
        self._scheduler.short_steps = began - self._last_live < CALM_SECONDS
        decoding = self._scheduler.num_decoding()
        scheduled = self._schedule(decoding)
        if not scheduled:
            self._fail_without_memory()
            return
        tokens, depth = sum(item.tokens for item in scheduled), self._scheduler.depth
        alone = tokens == 1 == scheduled[0].rows
        logits = self._inputs_for(tokens, alone).run(scheduled, self._scheduler.version)
        seconds = time.perf_counter() - began
        prefilled = sum(item.tokens for item in scheduled if item.running.num_new_tokens > 1)
        self._draft_cost = 0.0
        if decoding == len(scheduled):
            self._costs.record_step(decoding, tokens, seconds)
            self._draft_cost = self._costs.tokens(decoding, tokens) / max(tokens - decoding, 1)
        else:
            self._costs.record_prefill()
        # Short steps of batches would say that a token of a prompt takes six times as long as it does.
        if (prefilled or tokens == decoding) and (self._scheduler.live or not self._scheduler.short_steps):
            self._scheduler.budget.record_step(decoding, prefilled, depth, seconds)
        self._sample(scheduled, logits)

    def collect(self) -> list[StepItem | Failed]:
        outputs: list[StepItem | Failed] = [*self._failed]
        self._failed.clear()
        changed: list[Running] = []
        for running in self._scheduler.running.values():
            if (parts := running.take_parts()) is not None:
                running.sequence.process(parts)
                changed.append(running)
        texts = iter(self._text.decode([row for running in changed for row in running.sequence.rows()]))
        for running in changed:
            outputs += self._advance(running, texts)
        return outputs

    def usage(self) -> Usage:
        pool, running = self._scheduler.pool, self._scheduler.running.values()
        to_prefill = tuple((r.id, r.num_new_tokens) for r in running if r.num_new_tokens > 1)
        size = pool.touched * self.block_bytes
        return Usage(len(running), self._scheduled, pool.num_used / pool.size, size, to_prefill)

    def _arrived(self, id_: int) -> None:
        self._arriving.discard(id_)
        self._scheduler.num_arriving = len(self._arriving)

    def _check(self, sampling: Sampling, most: int, stop_ids: frozenset[int]) -> None:
        """Raises InvalidArgument for values that the library would reject, in its words, and unknown ids."""
        if self._spec.deterministic and sampling.num_assistant_tokens:
            raise InvalidArgument(
                f"num_assistant_tokens: {sampling.num_assistant_tokens} is not possible: the graph is "
                "`deterministic`, and drafts change the rounding; leave it out",
                param="num_assistant_tokens",
            )
        plain = msgspec.structs.replace(sampling, constraint=None, num_assistant_tokens=None)
        generation_config("plain", plain, most, stop_ids, self.facts, no_grammar)
        for id_, bias in sampling.logit_bias:
            if not 0 <= id_ < self._model.vocabulary or not math.isfinite(bias):
                tokens = self._model.vocabulary
                raise InvalidArgument(
                    f"logit_bias: {{{id_}: {bias}}} is no finite bias of one of {tokens} tokens",
                    param="logit_bias",
                )

    def _reasoning_limit(self, sampling: Sampling, stop_ids: frozenset[int]) -> ReasoningLimit | None:
        budget = sampling.reasoning_budget
        if budget is None or not budget.ends:
            return None
        closing = self._text.encode(budget.message + budget.closing, False)
        if budget.message and not stop_ids.isdisjoint(closing):
            raise InvalidArgument(
                f"reasoning_budget_message: {shortened(budget.message)!r} has a token that ends the answer",
                param="reasoning_budget_message",
            )
        return ReasoningLimit(budget, closing, self._text.bytes_of)

    def _completes_stop(self, stops: tuple[str, ...], hidden: frozenset[int]) -> CompletesStop | None:
        if not stops:
            return None
        most = max(len(stop.encode()) for stop in stops) + 1  # each token is a byte or more; one before them

        def completes_stop(answers: list[array[int]]) -> list[bool]:
            visible = ((id_ for id_ in reversed(answer) if id_ not in hidden) for answer in answers)
            texts = self._text.decode([[*islice(ids, most)][::-1] for ids in visible])
            return [any(stop in text for stop in stops) for text in texts]

        return completes_stop

    # ---- a step

    def _schedule(self, decoding: int) -> list[ScheduledSequence]:
        if (draft_model := self._draft_model) is None:
            return self._scheduler.schedule(self._draft if decoding <= MAX_DRAFTED_STREAMS else _no_draft)
        proposals = draft_model.propose(self._scheduler.allocate_drafts(_most_drafts))

        def draft(running: Running) -> tuple[int, ...]:
            proposal, matcher = proposals.get(running.id, ()), running.choice.matcher
            return proposal if matcher is None else proposal[: matcher.allowed_prefix(proposal)]

        scheduled = self._scheduler.schedule(draft)
        draft_model.prefill(scheduled)
        return scheduled

    def _draft(self, running: Running) -> tuple[int, ...]:
        """Return draft tokens for the positions after the next one, if they are worth a longer step."""
        drafter, remaining = running.drafter, running.remaining_tokens
        if drafter is None:
            return ()
        matcher = running.choice.matcher
        if matcher is not None and (text := matcher.forced_text()):
            draft, rate = drafter.propose_forced(self._text.encode(text[:FORCED_CHARACTERS], False))
        else:
            draft, rate = drafter.propose()
        if remaining is not None:
            draft = draft[: remaining - 1]
        if matcher is not None:
            draft = draft[: matcher.allowed_prefix(draft)]
        if not draft:
            return ()
        decoding = self._scheduler.num_decoding()
        count = self._costs.best_count(decoding, rate, len(draft))
        return drafter.select(draft, count, self._costs.tokens(decoding, decoding + count))

    def _sample(self, scheduled: list[ScheduledSequence], logits: Floats) -> None:
        self._scheduled = sum(item.width > 0 for item in scheduled)
        plain = all(item.running.choice.plain and item.rows for item in scheduled)
        best = logits.argmax(1).tolist() if plain else None
        at = 0
        for item in scheduled:
            running, rows = item.running, item.rows
            if running.scores_prompt and running.num_computed_tokens < running.num_prompt_tokens:
                self._score_prompt(item, logits[at : at + rows])
            finished = running.num_computed_tokens + item.tokens >= len(running.ids)
            first = at + rows - 1 - len(item.drafted)
            if not finished:
                self._scheduler.record_computed(running, item.tokens)
            elif running.search is not None:
                if item.width:
                    self._search(running, running.search, logits[first : first + item.width])
            elif best is not None:
                self._verify_greedy(item, best[first : at + rows])
            else:
                self._verify(item, logits[first : at + rows])
            at += rows

    def _verify_greedy(self, item: ScheduledSequence, best: list[int]) -> None:
        running, accepted = item.running, 0
        num_scheduled = len(running.ids) - running.num_computed_tokens
        while accepted < len(item.drafted) and best[accepted] == item.drafted[accepted]:
            accepted += 1
        for token in best[: accepted + 1]:
            running.append(token, None)
        self._record_verified(item, num_scheduled, accepted)

    def _verify(self, item: ScheduledSequence, logits: Floats) -> None:
        """Sample a token from each row as long as the draft tokens are accepted."""
        running, accepted = item.running, 0
        num_scheduled = len(running.ids) - running.num_computed_tokens
        for row, candidate in zip(logits, (*item.drafted, None), strict=True):
            token, scored = running.choice.choose(row)
            if token < 0:
                self._fail(running)
                return
            running.append(token, scored)
            running.choice.append(token)
            if token != candidate:
                break
            accepted += 1
        self._record_verified(item, num_scheduled, accepted)

    def _record_verified(self, item: ScheduledSequence, num_scheduled: int, accepted: int) -> None:
        running = item.running
        if item.drafted and running.drafter is not None:
            running.drafter.record_verified(len(item.drafted), accepted, self._draft_cost * len(item.drafted))
        if item.drafted and running.model_drafts is not None:
            running.model_drafts.record_verified(len(item.drafted))
        self._scheduler.record_computed(running, num_scheduled + accepted)
        # The draft model has computed rejected tokens too.
        running.num_draft_computed_tokens = min(
            running.num_draft_computed_tokens, running.num_computed_tokens
        )

    def _search(self, running: Running, search: BeamSearch, logits: Floats) -> None:
        """Advance the beams, or start them from the prompt, with the candidates that the search chooses."""
        if running.beams:
            for beam in running.beams:
                self._scheduler.record_computed(beam, 1)
        else:
            self._scheduler.record_computed(running, running.num_new_tokens)
            root = running.root_beam()
            running.set_beams([root])
            search.start(root)
        self._scheduler.fork(running, search.advance(running.beams, logits))
        running.searched = not running.beams or running.remaining_tokens == 0

    def _score_prompt(self, item: ScheduledSequence, logits: Floats) -> None:
        running = item.running
        start = running.num_computed_tokens + 1
        following = running.ids[start : min(start + len(logits), running.num_prompt_tokens)]
        running.echo([running.choice.score(row, id_) for row, id_ in zip(logits, following, strict=False)])

    def _fail(self, running: Running, kind: str = "invalid_argument", why: str = NOTHING_ALLOWED) -> None:
        self._scheduler.remove(running.id)
        self._failed.append(Failed(running.id, kind, why))

    def _fail_without_memory(self) -> None:
        """End the first request if nothing runs that could free the blocks that it needs."""
        if self._scheduler.running and self._scheduler.pool.withheld:
            self._fail(next(iter(self._scheduler.running.values())), "resource_exhausted", NO_MEMORY)

    def _advance(self, running: Running, texts: Iterator[str]) -> list[StepItem | Failed]:
        sequence = running.sequence
        if sequence.sampling.logprobs:
            for branch in sequence.branches:
                branch.output.add_logprobs(self._text.logprobs(branch.scored))
                branch.scored = []
        items: list[StepItem | Failed] = [*sequence.advance(texts)]
        if sequence.finished:
            self._scheduler.remove(running.id)
        return items


def no_grammar(constraint: Constraint) -> NoReturn:
    raise Internal("grammars are not the library's here")


def _most_drafts(running: Running) -> int:
    """Return how many tokens a draft model may propose."""
    most = 0 if running.model_drafts is None else running.model_drafts.most
    return most if running.remaining_tokens is None else min(most, running.remaining_tokens - 1)


def _no_draft(running: Running) -> tuple[int, ...]:
    return ()
