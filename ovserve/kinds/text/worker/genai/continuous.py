"""The engine of many requests at a time: OpenVINO GenAI's ContinuousBatchingPipeline.

It runs in one thread, in the order add/abort, step, collect. What else the library makes necessary is in
`quirks.py`. `ignore_eos` ignores `stop_token_ids` as well, so those are also searched for here.

A request is admitted only if its worst case fits, so that the library never has to take anything back.

- What the library does where it lacks room:
  - A step in which it can schedule no token drops all requests (status IGNORED, no finish reason). That
    happens with a full cache while a cancelled request still holds its blocks, which it does for a step.
  - It takes blocks back from the latest request and reads its tokens again. With cache eviction the scores no
    longer fit the tokens, and the step raises, which ends the engine. With a prefix cache a prompt that loses
    its blocks half read leaves one that was not computed to its end (`quirks.py`).
  - Drafts: with prompt lookup it appends drafts to requests that were not in a step, too. Earlier drafts are
    then part of the answer, unchecked, or the step raises. With a draft model, a prompt that the two models
    do not cut at the same places begins its answer with a token twice.
- The way around: blocks for prompt and longest answer are reserved when a request is added. One that drafts
  has room for a token and its drafts in each step. A request alone always fits: it may use the whole cache.
- Left: a draft model with a smaller cache of its own.
- Seen: tests/engine/test_reservation.py, tests/engine/test_cache_eviction.py. Source:
              `generate_candidates_for_prompt_lookup`,
              https://github.com/openvinotoolkit/openvino.genai/blob/master/src/cpp/src/prompt_lookup/continuous_batching_for_prompt_lookup.cpp
              (read 2026-11-24). Versions: OpenVINO GenAI 2026.4.1.
- It can go when the library keeps requests for which a step has no room.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import openvino
import openvino_genai as ov_genai

from ovserve.engine.host.memory import BYTES_PER_GIB, memory
from ovserve.engine.model.files import ModelFiles, read_model_files, recurrent_state_bytes, refuse_for_library
from ovserve.engine.protocol.admission import admit, context_limit
from ovserve.engine.protocol.messages import Accepted, Add, Failed, StepItem, Usage
from ovserve.engine.protocol.specs import TextSpec, block_tokens
from ovserve.errors import Internal, InvalidArgument, LoadError, OvserveError, Unavailable
from ovserve.kinds.text.worker.decoding import Sequence, SpeculativeStats
from ovserve.kinds.text.worker.genai.facts import engine_facts
from ovserve.kinds.text.worker.genai.grammar import GrammarCompiler, Grammars, prepare
from ovserve.kinds.text.worker.genai.options import (
    generation_config,
    properties,
    scheduler_config,
    sentence,
    to_blame,
    writable,
)
from ovserve.kinds.text.worker.genai.quirks import (
    UNCACHED,
    cache_tokens,
    may_be_partly_computed,
    most_states,
    read_parts,
)
from ovserve.kinds.text.worker.genai.text import Proof, Text, prove_tokens
from ovserve.kinds.text.worker.genai.vision import Beside, VisionInput, tensors
from ovserve.llm.decoding import filled
from ovserve.llm.request import GREEDY_TEMPERATURE, Sampling


@dataclass
class Demand:
    """The most that a request takes."""

    prompt: int  # tokens
    blocks: int
    step_tokens: int  # in a step of its answer; 0 without drafts, when it may be left out of a step
    states: int = 1  # one for each sequence
    prefilled: bool = False
    cancelled: bool = False  # its blocks are free after the next step


class CacheReservation:
    def __init__(self, spec: TextSpec, cache_tokens: int | None, max_states: int = 0) -> None:
        """`cache_tokens`: for which a bounded cache has room; None: it grows, or its size is unknown.
        `max_states`: sequences for whose states of linear attention it has room; 0: any number."""
        self._max_states = max_states
        self._block = block_tokens(spec.device)
        self._blocks = (cache_tokens or 0) // self._block
        self._batch = spec.max_num_batched_tokens
        self._drafts = spec.decoding != "plain"
        self._lookup = spec.decoding == "prompt_lookup"
        # Without split-fuse a prompt has a step of its own, in which those that draft would be left out.
        self._in_rounds = self._lookup and not spec.dynamic_split_fuse
        self._eviction = spec.cache_eviction
        self._held: dict[int, Demand] = {}
        self._stepped = False  # those that are held have been in a step

    @property
    def unbounded(self) -> bool:
        return not self._blocks and not self._drafts and not self._max_states

    def fitted(self, sampling: Sampling, prompt: int, answer: int) -> tuple[Sampling, int]:
        """Return the request with no more drafts, and the most tokens of its answer, than fit alone.

        Drafts make way for an answer whose length was asked for; an open end makes way for drafts."""
        drafts = sampling.num_assistant_tokens or 0
        if not self._drafts or not drafts:  # with a confidence threshold there is no number
            return sampling, answer
        drafts = min(drafts, max(self._batch - 1, 1))
        if self._blocks and self._lookup:  # which pads drafts to their full number at the end of an answer
            # The last token is not in the cache; the drafts before it are.
            room = self._blocks * self._block - prompt + 1
            if sampling.max_tokens is None or sampling.max_tokens > answer:
                answer = max(min(answer, room - drafts), 1)
            drafts = max(min(drafts, room - answer), 1)
        return msgspec.structs.replace(sampling, num_assistant_tokens=drafts), answer

    def demand(self, sampling: Sampling, prompt: int, answer: int) -> Demand:
        """`sampling` and `answer`, tokens at most or 0 if that is unknown, are those of `fitted`."""
        # The library compares a threshold with log-probabilities, and stops after one draft without them.
        drafts = sampling.num_assistant_tokens or (answer or self._batch if sampling.logprobs else 1)
        tokens = prompt + answer + (drafts - 1 if self._lookup else 0)
        blocks = self._kept_blocks(prompt) if self._eviction is not None else -(-tokens // self._block)
        if not answer and self._eviction is None:
            blocks = self._blocks
        # Beams that part copy the block that they share.
        blocks = (blocks + 1) * sampling.beams if sampling.beams > 1 else blocks
        return Demand(prompt, blocks, 1 + drafts if self._drafts else 0, sampling.beams)

    def _kept_blocks(self, prompt: int) -> int:
        """Return the most blocks of a request whose tokens are evicted."""
        eviction, blocks = self._eviction, -(-prompt // self._block)
        assert eviction is not None
        # Eviction starts when the cache exceeds max_cache_size by a whole block; KVCrush keeps some of the
        # evicted blocks.
        retained = eviction.max_cache_size // self._block + eviction.crush_budget + 2
        # Without a window the prompt is evicted while it is read; with one, when it has been read.
        if eviction.snapkv_window_size == 0:
            blocks = min(blocks, retained - -self._batch // self._block)
        return max(blocks, retained)

    def fits(self, demand: Demand) -> bool:
        """Return whether a request may be added before the next step. A single one always may."""
        if not self._held:
            return True
        if self._blocks and sum(one.blocks for one in self._held.values()) + demand.blocks > self._blocks:
            return False
        if (
            self._max_states
            and sum(one.states for one in self._held.values()) + demand.states > self._max_states
        ):
            return False
        return not self._drafts or self._fits_step(demand)

    def _fits_step(self, demand: Demand) -> bool:
        running = [one for one in self._held.values() if not one.cancelled]
        if self._in_rounds and (
            self._stepped or demand.prompt + sum(one.prompt for one in running) > self._batch
        ):
            return False
        tokens = demand.step_tokens + sum(one.step_tokens for one in running)
        if not self._lookup:  # two models: a prompt has to be read in one step, or alone
            before = sum(one.step_tokens if one.prefilled else one.prompt for one in running)
            tokens = max(tokens, before + demand.prompt)
        return tokens <= self._batch

    def admitted(self, id_: int, demand: Demand) -> None:
        self._held[id_] = demand

    def prefilled(self, id_: int) -> None:
        self._held[id_].prefilled = True

    def cancelled(self, id_: int) -> None:
        if (demand := self._held.get(id_)) is not None:
            demand.cancelled = True

    def ended(self, id_: int) -> None:
        """Release what the library has released."""
        self._held.pop(id_, None)

    def stepped(self) -> None:
        self._held = {id_: one for id_, one in self._held.items() if not one.cancelled}
        self._stepped = bool(self._held)

    def clear(self) -> None:
        """The library holds no request."""
        self._held.clear()
        self._stepped = False


# The server imports for as long after it has sent the model, and with three busy threads on two cores the
# pipeline would take 0.15 s longer.
HOLD_SECONDS = 0.5

_RUNNING = ov_genai.GenerationStatus.RUNNING


def scores_prompt(sampling: Sampling) -> bool:
    """Return whether a request wants the log-probability of each prompt token.

    The library finds these among the logits of a step by counting the rows of echoed prompts alone. So those
    of a prompt are another request's if one that does not echo precedes it; what follows does no harm.
    """
    return sampling.echo and sampling.logprobs


class GenAIEngine:
    def __init__(self, spec: TextSpec) -> None:
        began = time.monotonic()
        files = read_model_files(spec.model_path)
        refuse_for_library(spec.model_path, files)
        self._live: dict[int, Sequence] = {}
        self._held: dict[int, Sequence] = {}  # in the library: also aborted ones, see quirks.py
        self._mode = spec.decoding
        # A prompt longer than a step without split-fuse would raise in `step()`, which ends the step for each
        # request in it, and the pipeline with them (OpenVINO GenAI 2026.4.1): what can raise there is refused
        # in `add()`.
        self._prompt_limit = None if spec.dynamic_split_fuse else spec.max_num_batched_tokens
        self._cache_grows = not (spec.cache_size or spec.num_kv_blocks)
        states = recurrent_state_bytes(spec.model_path)
        self._caches = spec.enable_prefix_caching and not states
        max_states = self._max_states = most_states(spec, states)
        try:
            tokenizer, table, compiler = self._load(spec, files, max_states)
            defaults = self._pipeline.get_config()
            loaded, cache = time.monotonic() - began, spec.cache_size * BYTES_PER_GIB
            self.facts = engine_facts(files, tokenizer, defaults, files.max_length, cache, loaded)
            self.text = Text(tokenizer, self.facts)
            self.text.use(table)
            self._vision: VisionInput | None = None
            if files.vision:
                encode, beside = self.text.encode, Beside(self._pipeline)
                self._vision = VisionInput(encode, beside, files, self.facts, lookup=spec.prompt_lookup)
                self.facts = self._vision.facts(self.facts)
            self.grammars = Grammars()
            length = context_limit(self.facts.max_length, spec.max_model_len)
            self.facts = msgspec.structs.replace(self.facts, max_length=length)
            room = self._cache_tokens(spec)
            self._reservation = CacheReservation(spec, room, max_states)
            if spec.cache_eviction is None:  # with which prompts may be longer than the cache
                self._bound_context(room)
            # Others do not report whether they use what was compiled for them.
            if spec.decoding == "plain":
                self.grammars.attach(self._answer, tokenizer, self.facts.vocab_size, compiler)
            self.facts = msgspec.structs.replace(
                self.facts,
                compiles_grammars=self.grammars.parallel,
                longest_token=self.text.longest_token(),
            )
        except (RuntimeError, TypeError) as error:
            raise LoadError(sentence(error), field=to_blame(spec, str(error))) from error

    def _load(
        self, spec: TextSpec, files: ModelFiles, max_states: int
    ) -> tuple[ov_genai.Tokenizer, Proof, GrammarCompiler | None]:
        """Load the pipeline. Return its tokenizer, the table of tokens, and what may compile grammars for it.

        The library loads on one core, without the interpreter lock. So what needs only the tokenizer is made
        on another thread meanwhile, which takes 0.2 s off a start (SmolLM2). A pipeline with a vision part
        loads its own tokenizer.
        """
        config, options = scheduler_config(spec), properties(spec)
        if spec.enable_prefix_caching and not self._caches:
            config.enable_prefix_caching = False
            print(UNCACHED, file=sys.stderr)  # noqa: T201  this process's log
        config.num_linear_attention_blocks = max_states
        with writable(spec.model_path) as path:
            if files.vision:
                self._pipeline = ov_genai.ContinuousBatchingPipeline(path, config, spec.device, options)
                tokenizer = self._pipeline.get_tokenizer()
                return tokenizer, prove_tokens(tokenizer, tokenizer.get_vocab()), None
            tokenizer = ov_genai.Tokenizer(path)
            loaded = threading.Event()
            with ThreadPoolExecutor(1, "tokenizer") as thread:
                thread.submit(loaded.wait, HOLD_SECONDS)
                plain = spec.decoding == "plain"
                compiler = thread.submit(prepare, tokenizer, files.vocab_size) if plain else None
                table = thread.submit(lambda: prove_tokens(tokenizer, tokenizer.get_vocab()))
                try:
                    self._pipeline = ov_genai.ContinuousBatchingPipeline(
                        path, tokenizer, config, spec.device, **options
                    )
                finally:
                    loaded.set()
            return tokenizer, table.result(), None if compiler is None else compiler.result()

    def _bound_context(self, room: int | None) -> None:
        """Bound the context by the tokens that the cache holds, if that is known and smaller."""
        limit = self.facts.max_length
        self.facts = msgspec.structs.replace(self.facts, cache_tokens=room or 0)
        if room is not None and (limit is None or room < limit):
            of_model = "" if limit is None else f", and a request could take {limit}"
            print(f"the KV cache holds {room} tokens{of_model}", file=sys.stderr)  # noqa: T201  this process's log
            self.facts = msgspec.structs.replace(self.facts, max_length=room)

    def _cache_tokens(self, spec: TextSpec) -> int | None:
        """Tokens for which a bounded cache has room, if that is known."""
        # With states, the library reports the use of these if that is larger.
        if self._cache_grows or self._max_states:
            return None
        two = filled(self._mode, Sampling(temperature=GREEDY_TEMPERATURE, ignore_eos=True))
        config = generation_config(self._mode, two, 2, (), self.facts, self.grammars.admitted)
        added = None if self._vision is None else self._vision.added
        return cache_tokens(self._pipeline, config, block_tokens(spec.device), added)

    def _answer(self, ids: openvino.Tensor, config: ov_genai.GenerationConfig) -> ov_genai.PerfMetrics:
        """Outside of the loop, while it is idle."""
        if self._vision is not None:
            return self._vision.answer(config)
        [answer] = self._pipeline.generate([ids], [config])
        return answer.perf_metrics

    # ---- the verbs of an engine

    @property
    def busy(self) -> bool:
        # A cancelled request leaves the library only with one more step.
        return bool(self._live) or self._pipeline.has_non_finished_requests()

    def live(self) -> list[int]:
        return list(self._live)

    def encode_prompts(self, requests: list[Add]) -> dict[int, openvino.Tensor]:
        """Return ids by request id; none where an image has to be measured and the room is limited."""
        if self._vision is None:
            return self.text.encode_prompts(requests)
        encoded: dict[int, openvino.Tensor] = {}
        for request in requests:
            if self._reservation.unbounded or self._vision.knows(request.images):
                with suppress(InvalidArgument):  # raised again when the request is added
                    encoded[request.id] = self._vision.encode_prompt(request)
        return encoded

    def can_schedule(self, request: Add, encoded: openvino.Tensor | None) -> bool:
        """Return whether a request may be added before the next step."""
        if encoded is None:
            return self._reservation.unbounded or not self.busy
        try:
            sampling, max_tokens = self._admit(request, encoded.shape[1])
        except OvserveError:
            return True  # it is raised again when the request is added
        return self._has_room(sampling, self._reservation.demand(sampling, encoded.shape[1], max_tokens))

    def _has_room(self, sampling: Sampling, demand: Demand) -> bool:
        if not self.busy:
            self._reservation.clear()
        return self._reservation.fits(demand) and not (scores_prompt(sampling) and self.busy)

    def add(self, request: Add, encoded: openvino.Tensor | None = None) -> Accepted:
        """`encoded`: the prompt's ids, from `encode_prompts`. Raises Unavailable for one that
        `can_schedule` would not let in."""
        if request.id in self._held:
            raise Internal(f"request {request.id} is already running")
        ids = (self._vision or self.text).encode_prompt(request) if encoded is None else encoded
        prompt_tokens = ids.shape[1]
        sampling, max_tokens = self._admit(request, prompt_tokens)
        if self._caches and scores_prompt(sampling):
            raise InvalidArgument(
                "logprobs with echo: this graph caches prefixes (enable_prefix_caching), and its engine "
                "cannot compute the log-probabilities of what it has cached",
                param="logprobs",
            )
        demand = self._reservation.demand(sampling, prompt_tokens, max_tokens)
        if 0 < self._max_states < demand.states:
            why = f"the cache has room for {self._max_states} sequences (cache_size)"
            raise InvalidArgument.at("best_of", f"{demand.states} beams: {why}")
        if not self._has_room(sampling, demand):
            raise Unavailable("the engine has no room for this request next to the others; try again later")
        stop_ids = self.text.stop_ids(sampling)
        if sampling.max_tokens == 0:  # a penalty has nothing to change
            sampling = msgspec.structs.replace(sampling, repetition_penalty=1.0)
        admitted = self.grammars.admitted
        config = generation_config(self._mode, sampling, max_tokens, stop_ids, self.facts, admitted)
        handle = self._add_request(request, ids, config)
        hidden = self.text.hidden(sampling.skip_special_tokens, sampling.markup)
        sequence = Sequence(handle, request.id, sampling, prompt_tokens, stop_ids, hidden)
        if self._mode != "plain":
            sequence.drafts = SpeculativeStats(self._mode, sampling, max_tokens)
        if sampling.echo:
            for branch in sequence.branches:
                branch.output.echo(self.text.prompt_text(request.prompt))
        self._live[request.id] = self._held[request.id] = sequence
        self._reservation.admitted(request.id, demand)
        return Accepted(request.id, prompt_tokens, max_tokens, None)

    def _admit(self, request: Add, prompt_tokens: int) -> tuple[Sampling, int]:
        """Return the options in effect, and how many tokens may be generated (see `admit`)."""
        sampling = filled(self._mode, request.sampling)
        max_tokens = admit(prompt_tokens, self.facts.max_length, sampling, self._prompt_limit, self._mode)
        return self._reservation.fitted(sampling, prompt_tokens, max_tokens)

    def _add_request(
        self, request: Add, ids: openvino.Tensor, config: ov_genai.GenerationConfig
    ) -> ov_genai.GenerationHandle:
        try:
            if self._vision is not None:
                text, images = self._vision.text(request), tensors(request.images)
                return self._pipeline.add_request(request.id, text, images, config)
            return self._pipeline.add_request(request.id, ids, config)
        except (RuntimeError, TypeError) as error:
            raise InvalidArgument(sentence(error)) from error

    def abort(self, request_id: int) -> None:
        if (sequence := self._live.pop(request_id, None)) is not None:
            self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Cancel a request that is no longer live, as soon as its prompt is not half read."""
        if self._caches and may_be_partly_computed(sequence, self._held.values()):
            return
        sequence.handle.cancel()
        del self._held[sequence.id]
        self._reservation.cancelled(sequence.id)

    def step(self) -> None:
        for sequence in [one for id_, one in self._held.items() if id_ not in self._live]:
            self._leave(sequence)
        self._pipeline.step()
        self._reservation.stepped()

    def collect(self) -> list[StepItem | Failed]:
        changed: list[Sequence] = []
        rows: list[list[int]] = []
        items: list[StepItem | Failed] = []
        for sequence in self._live.values():
            if (parts := read_parts(sequence)) is not None:
                self._reservation.prefilled(sequence.id)
                sequence.process(parts)
                changed.append(sequence)
                rows += sequence.rows()
        texts = iter(self.text.decode(rows))
        for sequence in changed:
            items += self._advance(sequence, texts)
        if self._live and not changed and not self._pipeline.has_non_finished_requests():
            # Never seen; but a request the library forgot would keep this loop spinning for ever.
            items += [Failed(id_, "internal", "the engine lost this request") for id_ in self._live]
            self._live.clear()
            self._held.clear()
        return items

    def usage(self) -> Usage:
        metrics = self._pipeline.get_metrics()
        cache, size = metrics.cache_usage / 100, metrics.cache_size_in_bytes  # the library counts in percent
        if self._cache_grows and size:  # relate it to what the cache may become, not to what it is now
            cache *= size / (size + memory().available)
        # How much of a prompt is read is unknown before its first token.
        to_prefill = tuple((s.id, s.prompt_tokens) for s in self._live.values() if not s.generated)
        return Usage(metrics.requests, metrics.scheduled_requests, cache, size, to_prefill)

    def _advance(self, sequence: Sequence, texts: Iterator[str]) -> Iterable[StepItem | Failed]:
        sequence.score(self.text.logprobs)
        items = sequence.advance(texts)
        if not sequence.finished:
            return items
        alone = len(self._held) == 1
        del self._live[sequence.id]
        if sequence.handle.get_status() == _RUNNING:  # the stop was found by us, not by the library
            self._leave(sequence)
        else:
            del self._held[sequence.id]
            self._reservation.ended(sequence.id)
        if sequence.cache_full and not alone:
            why = "the KV cache was full, and this request had to give its place to others; try again"
            return [Failed(sequence.id, "unavailable", why)]
        if sequence.cache_full and not sequence.generated:
            return [Failed(sequence.id, "resource_exhausted", self._no_room_for(sequence))]
        return items

    def _no_room_for(self, sequence: Sequence) -> str:
        size = self._pipeline.get_metrics().cache_size_in_bytes
        return (
            f"The prompt has {sequence.prompt_tokens} tokens and does not fit into the engine's KV cache of "
            f"{size / 2**20:.1f} MiB. Shorten the prompt, or give the engine a larger cache_size."
        )
