"""The engine: requests in, steps, texts out. It runs in one thread, in the order add/abort, step, collect."""

from __future__ import annotations

import math
import sys
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NoReturn

import msgspec
import openvino
import openvino_genai as ov_genai

from ovserve.engine.host.cpu import processor
from ovserve.engine.host.memory import BYTES_PER_GIB, memory
from ovserve.engine.model.files import read_model_files
from ovserve.engine.protocol.admission import admit, context_limit
from ovserve.engine.protocol.messages import Accepted, Add, Failed, StepItem, Usage
from ovserve.engine.protocol.specs import PagedTextSpec
from ovserve.errors import Internal, InvalidArgument, LoadError
from ovserve.kinds.text.worker.decoding import Sequence
from ovserve.kinds.text.worker.genai.facts import engine_facts
from ovserve.kinds.text.worker.genai.options import generation_config, properties, sentence, to_blame
from ovserve.kinds.text.worker.genai.text import Text, prove_tokens
from ovserve.kinds.text.worker.genai.vocabulary import check_draft_tokens, vocabulary
from ovserve.kinds.text.worker.paged.beams import BeamSearch, CompletesStop
from ovserve.kinds.text.worker.paged.blocks import BlockPool
from ovserve.kinds.text.worker.paged.draft_model import DraftModel, most_drafts
from ovserve.kinds.text.worker.paged.drafts import (
    MAX_DRAFT_TOKENS,
    MAX_DRAFTED_STREAMS,
    ModelDrafts,
    NgramDrafter,
    StepCosts,
)
from ovserve.kinds.text.worker.paged.grammars import Grammars
from ovserve.kinds.text.worker.paged.model import (
    BLOCK_TOKENS,
    FILE,
    MAX_CACHE_SHARE,
    PagedModel,
)
from ovserve.kinds.text.worker.paged.prefill_budget import PrefillBudget
from ovserve.kinds.text.worker.paged.prefix_store import PrefixStore, open_store
from ovserve.kinds.text.worker.paged.reasoning import reasoning_limit
from ovserve.kinds.text.worker.paged.runner import Floats, Runner
from ovserve.kinds.text.worker.paged.running import Inputs, Running, ScheduledSequence, ScheduledStep
from ovserve.kinds.text.worker.paged.sampler import Choice, DryPenalty
from ovserve.kinds.text.worker.paged.scheduler import Scheduler
from ovserve.kinds.text.worker.paged.states import SLOTS_OF_BEAM, StatePool
from ovserve.llm.decoding import DEFAULT_ASSISTANT_TOKENS
from ovserve.llm.grammar.constraint import Constraint
from ovserve.llm.request import Sampling

MIN_STATES, MAX_STATES = 8, 1024  # slots for the states of linear attention, of which each sequence has one
MAX_STATES_SHARE = 0.5  # of the cache
RESERVE_BYTES = 320 << 20  # that the cache leaves free: with less than 256 MB, requests are rejected
CALM_SECONDS = 5.0  # after the last live request, the steps of batches need not be short any more
FORCED_CHARACTERS = 64  # of a text that must follow, which may have thousands; few tokens of it are drafted
NO_MEMORY = "the KV cache of this prompt needs more memory than the machine or container has left"
NOTHING_ALLOWED = "the grammar and the biases of this request leave no token that could follow"


class PagedEngine:
    def __init__(self, spec: PagedTextSpec) -> None:
        began = time.monotonic()
        self._spec = spec
        files = read_model_files(spec.model_path)
        directory = Path(spec.model_path)
        try:
            tiles = processor().unpacked_is_faster
            file = directory / "generation_config.json"
            defaults = ov_genai.GenerationConfig(file) if file.is_file() else ov_genai.GenerationConfig()
            # All but the model is made on another thread while the model is read and compiled. Most of that
            # needs no interpreter lock, and one core.
            with ThreadPoolExecutor(1, "tokenizer") as thread:
                opened = thread.submit(ov_genai.Tokenizer, directory)
                tokens = thread.submit(lambda: opened.result().get_vocab())
                table = thread.submit(lambda: prove_tokens(opened.result(), tokens.result()))
                cache = spec.cache_size * BYTES_PER_GIB
                model = self._model = PagedModel(
                    directory / FILE, spec.device, properties(spec), tiles, cache
                )
                tokenizer = opened.result()
                self.facts = engine_facts(files, tokenizer, defaults, files.max_length, cache, 0.0)
                ends = self.facts.eos_token_ids
                grammars = thread.submit(
                    lambda: Grammars(*vocabulary(tokenizer, tokens.result(), ends, model.vocabulary))
                )
                thread.submit(model.read_forms)
                model.compile()
            self._draft_model = None if spec.draft is None else DraftModel(spec, spec.draft, tiles)
            blocks, states = self._blocks(spec)
            model.allocate(blocks, states)
            if spec.draft is not None and self._draft_model is not None:
                check_draft_tokens(spec.draft.model_path, tokenizer, self._draft_model.vocabulary)
                self._draft_model.allocate(blocks, model.vocabulary)
            loaded = round(time.monotonic() - began, 3)
            self.facts = msgspec.structs.replace(self.facts, load_seconds=loaded)
            self.text = Text(tokenizer, self.facts)
            self._bound_context(spec)
            self.text.use(table.result())
            self.grammars = grammars.result()
        except (RuntimeError, TypeError) as error:
            raise LoadError(sentence(error), field=to_blame(spec, str(error))) from error
        self.facts = msgspec.structs.replace(
            self.facts,
            engine=f"paged, on openvino {openvino.get_version()}",
            longest_token=self.text.longest_token(),
            compiles_grammars=True,
        )
        pool = BlockPool(
            self._model.blocks,
            caches=spec.enable_prefix_caching,
            copy=self._model.copy_block,
            room=lambda: self._room(self.block_bytes),
            store=self._open_store(spec, directory / FILE),
        )
        self._scheduler = Scheduler(
            pool,
            spec.max_num_batched_tokens,
            spec.max_num_seqs,
            PrefillBudget(),
            splits=spec.dynamic_split_fuse,
            deterministic=spec.deterministic,
            states=self._state_pool(spec, states),
        )
        self._prompt_limit = None if spec.dynamic_split_fuse else spec.max_num_batched_tokens
        self._last_live = -math.inf  # time.perf_counter(), when a request ran that is not a line of a batch
        self._arriving: set[int] = set()  # requests whose prompts were encoded, and that were not added yet
        self._inputs: dict[Runner, Inputs] = {}
        self._costs = StepCosts(model.step_seconds())
        self._scheduled = 0  # requests in the last step
        self._failed: list[Failed] = []
        model.start_forms()
        if spec.deterministic:  # else the first steps would be computed in another form
            model.wait()

    def _blocks(self, spec: PagedTextSpec) -> tuple[int, int]:
        """Return how many blocks the cache has, and how many slots for states."""
        available = memory().available
        self._reserve = min(RESERVE_BYTES, int(available * (1 - MAX_CACHE_SHARE)))
        size: int = spec.cache_size * BYTES_PER_GIB or int(available * MAX_CACHE_SHARE)
        if spec.num_kv_blocks:
            size = spec.num_kv_blocks * self._model.block_bytes
        states = 0
        if state_bytes := self._model.state_bytes:
            states = max(MIN_STATES, min(MAX_STATES, int(size * MAX_STATES_SHARE) // state_bytes))
            size -= 0 if spec.num_kv_blocks else states * state_bytes
        if spec.draft is None or self._draft_model is None or spec.num_kv_blocks:
            return max(2, size // self._model.block_bytes), states
        if spec.draft.cache_size is None:
            return max(2, size // self.block_bytes), states
        of_draft = spec.draft.cache_size * BYTES_PER_GIB // self._draft_model.block_bytes
        return max(2, min(size // self._model.block_bytes, of_draft)), states

    def _state_pool(self, spec: PagedTextSpec, states: int) -> StatePool | None:
        if not states:
            return None
        tokens = -(-self._model.state_bytes // self._model.block_bytes) * BLOCK_TOKENS
        size = self._model.state_bytes
        return StatePool(
            states, caches=spec.enable_prefix_caching, tokens_of_state=tokens, room=lambda: self._room(size)
        )

    def _open_store(self, spec: PagedTextSpec, file: Path) -> PrefixStore | None:
        if spec.prefix_cache_path and self._model.state_bytes:
            why = "the states of linear attention are not stored"
            print(f"prefix_cache_path has no effect: {why}", file=sys.stderr)  # noqa: T201  this process's log
            return None
        return open_store(spec, file.with_suffix(".bin"), self._model.layout(), self._model.cache_bytes)

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in the caches of both models."""
        return self._model.block_bytes + (self._draft_model.block_bytes if self._draft_model else 0)

    def _room(self, size: int) -> int:
        """Return for how many blocks or states of a size there is memory: others may have taken some."""
        available = memory().available
        return max(0, available - self._reserve) // size if available else sys.maxsize

    def _bound_context(self, spec: PagedTextSpec) -> None:
        """The context is no longer than the cache, nor than the graph's `max_model_len`."""
        room, limit = (
            self._model.blocks * BLOCK_TOKENS,
            context_limit(self.facts.max_length, spec.max_model_len),
        )
        if spec.cache_size or spec.num_kv_blocks:
            self.facts = msgspec.structs.replace(self.facts, cache_tokens=room)
        of_model = "" if limit is None else f", and a request could take {limit}"
        types = self._model.cache_types
        print(f"the KV cache holds {room} tokens in {types}{of_model}", file=sys.stderr)  # noqa: T201  this process's log
        limit = room if limit is None else min(limit, room)
        self.facts = msgspec.structs.replace(self.facts, max_length=limit)

    def wait_for_forms(self) -> None:
        """Wait until the forms for steps of few tokens are compiled."""
        self._model.wait()

    @property
    def busy(self) -> bool:
        return bool(self._scheduler.running)

    def live(self) -> list[int]:
        return list(self._scheduler.running)

    def encode_prompts(self, requests: list[Add]) -> dict[int, openvino.Tensor]:
        encoded = self.text.encode_prompts(requests)
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
        tensor = self.text.encode_prompt(request) if encoded is None else encoded
        ids: list[int] = tensor.data[0].tolist()
        most = admit(len(ids), self.facts.max_length, sampling, self._prompt_limit, "paged")
        stop_ids = self.text.stop_ids(sampling)
        self._check(sampling, most, stop_ids)
        hidden = self.text.hidden(sampling.skip_special_tokens, sampling.markup)
        sequence = Sequence(None, request.id, sampling, len(ids), stop_ids, hidden)
        if sampling.echo:
            for branch in sequence.branches:
                branch.output.echo(self.text.prompt_text(request.prompt))
        constraint = sampling.constraint
        matcher = None if constraint is None else self.grammars.matcher(constraint, hidden)
        limit = reasoning_limit(sampling.reasoning_budget, stop_ids, self.text)
        dry = None if sampling.dry is None else DryPenalty(sampling.dry, ids, self.text.bytes_of)
        choice = Choice(sampling, ids, stop_ids, matcher, limit, dry)
        running = Running(sequence, ids, choice, most)
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
        step = self._schedule()
        if not step.items:
            self._fail_without_memory()
            return
        own = self._model.own_attention  # for which draft tokens are sequences of their own
        sequences = step.tokens if own else len(step.items)
        are_decodes = step.num_decoding == len(step.items) and step.tokens == sequences
        runner = self._model.runner_for(step.tokens, are_decodes=are_decodes)
        if (inputs := self._inputs.get(runner)) is None:
            inputs = self._inputs[runner] = Inputs(runner, own_attention=own)
        logits = inputs.run(step.items, self._scheduler.version)
        self._record_seconds(step, time.perf_counter() - began)
        self._sample(step, logits)

    def collect(self) -> list[StepItem | Failed]:
        outputs: list[StepItem | Failed] = [*self._failed]
        self._failed.clear()
        changed: list[Running] = []
        for running in self._scheduler.running.values():
            if (parts := running.take_parts()) is not None:
                running.sequence.process(parts)
                changed.append(running)
        texts = iter(self.text.decode([row for running in changed for row in running.sequence.rows()]))
        for running in changed:
            outputs += self._advance(running, texts)
        return outputs

    def usage(self) -> Usage:
        pool, running = self._scheduler.pool, self._scheduler.running.values()
        to_prefill = tuple((r.id, r.num_new_tokens) for r in running if r.num_new_tokens > 1)
        size = pool.touched * self.block_bytes
        if (states := self._scheduler.states) is not None:
            size += states.touched * self._model.state_bytes
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
        states = self._scheduler.states
        if states is not None and sampling.beams > states.size // SLOTS_OF_BEAM:
            most_beams = states.size // SLOTS_OF_BEAM
            raise InvalidArgument(
                f"{sampling.beams} beams: the cache has room for the states of {most_beams} (cache_size)"
            )
        plain = msgspec.structs.replace(sampling, constraint=None, num_assistant_tokens=None)
        generation_config("plain", plain, most, stop_ids, self.facts, no_grammar)
        for id_, bias in sampling.logit_bias:
            if not 0 <= id_ < self._model.vocabulary or not math.isfinite(bias):
                tokens = self._model.vocabulary
                raise InvalidArgument.at(
                    "logit_bias", f"{{{id_}: {bias}}} is no finite bias of one of {tokens} tokens"
                )

    def _completes_stop(self, stops: tuple[str, ...], hidden: frozenset[int]) -> CompletesStop | None:
        if not stops:
            return None
        most = max(len(stop.encode()) for stop in stops) + 1  # each token is a byte or more; one before them

        def completes_stop(answers: list[array[int]]) -> list[bool]:
            visible = ((id_ for id_ in reversed(answer) if id_ not in hidden) for answer in answers)
            texts = self.text.decode([[*islice(ids, most)][::-1] for ids in visible])
            return [any(stop in text for stop in stops) for text in texts]

        return completes_stop

    # ---- a step

    def _schedule(self) -> ScheduledStep:
        if (draft_model := self._draft_model) is None:
            return self._scheduler.schedule(self._draft)
        proposals = draft_model.propose(self._scheduler.allocate_drafts(most_drafts))

        def draft(running: Running, num_decoding: int) -> tuple[int, ...]:
            proposal, matcher = proposals.get(running.id, ()), running.choice.matcher
            return proposal if matcher is None else proposal[: matcher.allowed_prefix(proposal)]

        step = self._scheduler.schedule(draft)
        draft_model.prefill(step.items)
        return step

    def _draft(self, running: Running, num_decoding: int) -> tuple[int, ...]:
        """Return draft tokens for the positions after the next one, if they are worth a longer step."""
        drafter = running.drafter
        if drafter is None or num_decoding > MAX_DRAFTED_STREAMS:
            return ()
        matcher = running.choice.matcher
        if matcher is not None and (text := matcher.forced_text()):
            draft, rate = drafter.propose_forced(self.text.encode(text[:FORCED_CHARACTERS], False))
        else:
            draft, rate = drafter.propose()
        if draft and (remaining := running.remaining_tokens) is not None:
            draft = draft[: remaining - 1]
        if draft and matcher is not None:
            draft = draft[: matcher.allowed_prefix(draft)]
        if not draft:
            return ()
        count = self._costs.best_count(num_decoding, rate, len(draft))
        return drafter.select(draft, count, self._costs.tokens(num_decoding, num_decoding + count))

    def _record_seconds(self, step: ScheduledStep, seconds: float) -> None:
        decoding, num_drafted = step.num_decoding, step.tokens - step.num_decoding
        self._draft_cost = 0.0
        if decoding == len(step.items):
            self._costs.record_step(decoding, step.tokens, seconds)
            if num_drafted:
                self._draft_cost = self._costs.tokens(decoding, step.tokens) / num_drafted
        else:
            self._costs.record_prefill()
        # Short steps of batches would say that a token of a prompt takes six times as long as it does.
        if (step.prefilled or not num_drafted) and (self._scheduler.live or not self._scheduler.short_steps):
            self._scheduler.budget.record_step(decoding, step.prefilled, step.depth, seconds)

    def _sample(self, step: ScheduledStep, logits: Floats) -> None:
        self._scheduled = step.num_requests
        plain = all(item.running.choice.plain and item.rows for item in step.items)
        best = logits.argmax(1).tolist() if plain else None
        at = 0
        for item in step.items:
            running, rows = item.running, item.rows
            if running.scores_prompt and item.is_of_prompt:
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
        states = self._scheduler.states
        lacks_memory = self._scheduler.pool.withheld or (states is not None and states.withheld)
        if self._scheduler.running and lacks_memory:
            self._fail(next(iter(self._scheduler.running.values())), "resource_exhausted", NO_MEMORY)

    def _advance(self, running: Running, texts: Iterator[str]) -> list[StepItem | Failed]:
        sequence = running.sequence
        sequence.score(self.text.logprobs)
        items: list[StepItem | Failed] = [*sequence.advance(texts)]
        if sequence.finished:
            self._scheduler.remove(running.id)
        return items


def no_grammar(constraint: Constraint) -> NoReturn:
    raise Internal("grammars are not the library's here")
