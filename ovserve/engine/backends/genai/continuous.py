"""The real engine: OpenVINO GenAI's ContinuousBatchingPipeline.

Run by `worker.py`, from one thread, in the order add/abort, step, collect. The rules that shape this file,
each found by measuring the library:

- Whatever can raise inside `step()` is refused in `add()`: one such request takes all others with it.
- `read()` on an empty handle blocks for ever, so `can_read()` comes first.
- `ignore_eos` ignores `stop_token_ids` as well, so those are also looked for here.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
import openvino
import openvino_genai as ov_genai

from ovserve.engine.backends.genai.capacity import cache_tokens
from ovserve.engine.backends.genai.facts import engine_facts
from ovserve.engine.backends.genai.grammar import Grammars
from ovserve.engine.backends.genai.options import properties, scheduler_config, sentence, to_blame
from ovserve.engine.backends.genai.request import FINISH, generation_config
from ovserve.engine.backends.genai.text import Text, ids_tensor
from ovserve.engine.backends.genai.uncached import Uncached
from ovserve.engine.backends.genai.vision import Beside, VisionInput, tensors
from ovserve.engine.decoding.eviction_budget import EvictionRoom
from ovserve.engine.decoding.sequence import Part, Sequence
from ovserve.engine.decoding.speculation import LookupDrafts, SpeculativeStats
from ovserve.engine.decoding.token_budget import TokenBudget
from ovserve.engine.model.files import read_model_files
from ovserve.engine.prefix_cache.model import Gain, PrefixCacheModel
from ovserve.engine.protocol.admission import admit
from ovserve.engine.protocol.messages import Accepted, Add, Compiled, Failed, StepItem, Usage
from ovserve.engine.protocol.specs import TextSpec, block_tokens
from ovserve.errors import Internal, InvalidArgument, LoadError
from ovserve.llm.decoding import filled
from ovserve.llm.request import GREEDY_TEMPERATURE, Sampling

GIGABYTE = 1 << 30
FIRST_AGAIN = 1 << 62  # library ids of requests that are added again, above those of all clients

_IGNORED = ov_genai.GenerationStatus.IGNORED
_RUNNING = ov_genai.GenerationStatus.RUNNING


class Prompt(NamedTuple):
    """What it takes to add a request again."""

    ids: openvino.Tensor
    config: ov_genai.GenerationConfig
    asked: int | None  # tokens at most


class GenAIEngine:
    def __init__(self, spec: TextSpec) -> None:
        began = time.monotonic()
        files = read_model_files(spec.model_path)
        self._live: dict[int, Sequence] = {}
        self._mode = spec.decoding
        # Without split-fuse a prompt goes through in one step or makes the step raise.
        self._prompt_limit = None if spec.dynamic_split_fuse else spec.max_num_batched_tokens
        try:
            self._pipeline = ov_genai.ContinuousBatchingPipeline(
                spec.model_path, scheduler_config(spec), spec.device, properties(spec)
            )
            tokenizer, defaults = self._pipeline.get_tokenizer(), self._pipeline.get_config()
            loaded, cache = time.monotonic() - began, spec.cache_size * GIGABYTE
            self.facts = engine_facts(files, tokenizer, defaults, files.max_length, cache, loaded)
            self._text = Text(tokenizer, self.facts)
            self._vision: VisionInput | None = None
            if files.vision:
                encode, beside = self._text.encode, Beside(self._pipeline)
                markers = self.facts.image_markers
                self._vision = VisionInput(encode, beside, files, markers, lookup=spec.prompt_lookup)
                self.facts = self._vision.facts(self.facts)
            self._grammars = Grammars()
            room = self._bound_context(spec)
            self._prefix = prefix_account(spec, room) if self._vision is None else None
            cuts = spec.dynamic_split_fuse and spec.decoding == "plain" and self._vision is None
            self._room = TokenBudget(spec.max_num_batched_tokens) if cuts else None
            self._again = itertools.count(FIRST_AGAIN)
            self._prompts: dict[int, Prompt] = {}  # of requests without a token
            self._aside: list[int] = []  # requests that go on with the next step
            self._evictions = self._eviction_room(spec)
            self._caches = spec.enable_prefix_caching
            self._uncached = self._proven_uncached() if self._caches and self._vision is None else None
            with self._text.proving(uses_tokenizer=files.vision):
                # Others do not tell whether they find what was compiled beside them.
                if spec.decoding == "plain":
                    self._grammars.attach(self._answer, tokenizer, self.facts.vocab_size)
            self.facts = msgspec.structs.replace(
                self.facts,
                compiles_grammars=self._grammars.beside,
                longest_token=self._text.longest_token(),
            )
        except (RuntimeError, TypeError) as error:
            raise LoadError(sentence(error), field=to_blame(spec, str(error))) from error

    def _bound_context(self, spec: TextSpec) -> int | None:
        """By the cache, where that is smaller. A cache that evicts holds more than it has room for. Tokens
        that the cache holds, if that is known."""
        if spec.cache_eviction is not None:
            return None
        room, limit = self._cache_tokens(spec), self.facts.max_length
        if room is not None and (limit is None or room < limit):
            of_model = "" if limit is None else f", and the model could take {limit}"
            print(f"the KV cache holds {room} tokens{of_model}", file=sys.stderr)  # noqa: T201  this process's log
            self.facts = msgspec.structs.replace(self.facts, max_length=room)
        return room

    def _eviction_room(self, spec: TextSpec) -> EvictionRoom | None:
        if spec.cache_eviction is None or (room := self._cache_tokens(spec)) is None:
            return None
        block = block_tokens(spec.device)
        return EvictionRoom(
            spec.cache_eviction, block=block, blocks=room // block, batch=spec.max_num_batched_tokens
        )

    def _cache_tokens(self, spec: TextSpec) -> int | None:
        """Tokens for which a bounded cache has room, if that is known."""
        if not (spec.cache_size or spec.num_kv_blocks) or self._vision is not None:
            return None
        two = filled(self._mode, Sampling(temperature=GREEDY_TEMPERATURE, ignore_eos=True))
        config = generation_config(self._mode, two, 2, (), self.facts, self._grammars.admitted)
        return cache_tokens(self._pipeline, config, block_tokens(spec.device))

    def _proven_uncached(self) -> Uncached | None:
        sampling = Sampling(temperature=GREEDY_TEMPERATURE, ignore_eos=True, echo=True, logprobs=True)
        config = generation_config(
            self._mode, filled(self._mode, sampling), 1, (), self.facts, self._grammars.admitted
        )
        uncached = Uncached()
        return uncached if uncached.proven(self._pipeline, config, self._prefix) else None

    def _compute_whole(self, ids: openvino.Tensor, sampling: Sampling) -> openvino.Tensor:
        """Ids of which the prefix cache has nothing."""
        if not self._caches:
            return ids
        if self._uncached is None:
            raise InvalidArgument(
                "logprobs with echo: this graph caches prefixes (enable_prefix_caching), and its engine "
                "cannot compute the log-probabilities of what it has cached",
                param="logprobs",
            )
        if sampling.repetition_penalty != 1.0 and sampling.max_tokens != 0:
            raise InvalidArgument(  # the library looks ids up among its logits, and would raise in a step
                f"repetition_penalty: {sampling.repetition_penalty:g} is not possible together with echo and "
                "logprobs where prefixes are cached (enable_prefix_caching). Send 1, or max_tokens 0",
                param="repetition_penalty",
            )
        return self._uncached.renamed(ids)

    # ---- the verbs of an engine

    @property
    def busy(self) -> bool:
        # A cancelled request leaves the library only with one more step.
        return bool(self._live) or self._pipeline.has_non_finished_requests()

    def live(self) -> list[int]:
        return list(self._live)

    def encode_prompts(self, requests: list[Add]) -> dict[int, openvino.Tensor]:
        return {} if self._vision else self._text.encode_prompts(requests)

    def can_schedule(self, encoded: openvino.Tensor) -> bool:
        """Whether a prompt should be added before the next step."""
        tokens = encoded.shape[1]
        if self._evictions is not None and not self._evictions.can_schedule(tokens):
            return False
        return self._room is None or self._room.can_schedule(tokens)

    def overtakes(self, encoded: openvino.Tensor) -> bool:
        """Whether it may be added before the next step although that has no room. The long prompts that are
        being read step aside: they are cancelled, added again behind it, and find what they had read in the
        prefix cache. So not without that cache."""
        return bool(self._prefix and self._room and self._room.overtakes(encoded.shape[1]))

    def add(self, request: Add, encoded: openvino.Tensor | None = None) -> Accepted:
        """`encoded`: the prompt's ids, from `encode_prompts`."""
        if request.id in self._live:
            raise Internal(f"request {request.id} is already running")
        sampling = filled(self._mode, request.sampling)
        if self._vision is not None:
            ids = self._vision.encode_prompt(request)
        else:
            ids = self._text.encode_prompt(request) if encoded is None else encoded
        prompt_tokens = ids.shape[1]
        max_tokens = admit(prompt_tokens, self.facts.max_length, sampling, self._prompt_limit, self._mode)
        stop_ids = self._text.stop_ids(sampling)
        admitted = self._grammars.admitted
        given = self._compute_whole(ids, sampling) if sampling.echo and sampling.logprobs else ids
        if sampling.max_tokens == 0:  # a penalty has nothing to change
            sampling = msgspec.structs.replace(sampling, repetition_penalty=1.0)
        # Of no token but the prompt the library gives pieces, with what is in memory where it computed none.
        asked = max_tokens or int(sampling.max_tokens == 0)
        config = generation_config(self._mode, sampling, asked, stop_ids, self.facts, admitted)
        ahead = False
        try:
            if self._vision is not None:
                images = tensors(request.images)
                handle = self._pipeline.add_request(request.id, request.prompt, images, config)
            else:
                if ahead := not self.can_schedule(ids) and self.overtakes(ids):
                    self._step_aside()
                handle = self._pipeline.add_request(request.id, given, config)
        except (RuntimeError, TypeError) as error:
            raise InvalidArgument(sentence(error)) from error
        hidden = self._text.hidden(sampling.skip_special_tokens)
        sequence = Sequence(handle, request.id, sampling, prompt_tokens, stop_ids, hidden)
        sequence.drafts = self._drafts(sampling, max_tokens, ids)
        if sampling.echo:
            for branch in sequence.branches:
                branch.output.echo(self._text.prompt_text(request.prompt))
        self._live[request.id] = sequence
        cached = None
        if self._prefix is not None:
            cached = self._prefix.add(request.id, given.data.tobytes(), asked or None, sampling.beams)
            if not sampling.echo:  # whose log-probabilities would be lost with what the cache has
                self._prompts[request.id] = Prompt(ids, config, asked or None)
        if self._room is not None:
            unread = prompt_tokens - (cached or 0)
            if ahead:
                self._room.overtaken(request.id, unread, sampling.beams)
            else:
                resumes = request.id in self._prompts
                self._room.admitted(request.id, unread, sampling.beams, resumes=resumes)
        if self._evictions is not None:
            self._evictions.admitted(request.id, prompt_tokens, sampling.beams)
        return Accepted(request.id, prompt_tokens, max_tokens, cached)

    def _step_aside(self) -> None:
        """Have the long prompts out of the way of those that are added before the next step."""
        if self._aside or self._room is None:
            return
        self._aside = [id_ for id_ in self._room.in_the_way() if id_ in self._prompts]
        for id_ in self._aside:
            self._cancel(self._live[id_])

    def _go_on(self) -> None:
        """Those that stepped aside."""
        for id_ in self._aside:
            if (sequence := self._live.get(id_)) is None:  # it was aborted meanwhile
                continue
            prompt = self._prompts[id_]
            sequence.library_id = next(self._again)
            sequence.handle = self._pipeline.add_request(sequence.library_id, prompt.ids, prompt.config)
            if self._prefix is not None:
                beams = sequence.sampling.beams
                self._prefix.add(sequence.library_id, prompt.ids.data.tobytes(), prompt.asked, beams)
        self._aside.clear()

    def _drafts(
        self, sampling: Sampling, max_tokens: int, prompt: openvino.Tensor
    ) -> SpeculativeStats | None:
        if self._mode == "plain":
            return None
        if self._mode != "prompt_lookup":
            return SpeculativeStats(sampling, max_tokens)
        return LookupDrafts(sampling, max_tokens, prompt.data[0].tolist())

    def _answer(self, ids: openvino.Tensor, config: ov_genai.GenerationConfig) -> ov_genai.PerfMetrics:
        """Outside of the loop, while it is idle."""
        if self._vision is not None:
            return self._vision.answer(config)
        [answer] = self._pipeline.generate([ids], [config])
        if self._prefix is not None:
            [tokens] = answer.m_generation_ids
            self._prefix.replay(ids.data.tobytes(), tokens, cut=False)
        return answer.perf_metrics

    def abort(self, request_id: int) -> None:
        if sequence := self._live.pop(request_id, None):
            self._cancel(sequence)
            self._left(request_id, cancelled=True)

    def tokenize(self, texts: tuple[str, ...], add_special_tokens: bool) -> list[list[int]]:
        return self._text.tokenize(texts, add_special_tokens)

    def detokenize(self, rows: tuple[tuple[int, ...], ...], skip_special_tokens: bool) -> list[str]:
        return self._text.detokenize(rows, skip_special_tokens)

    def step(self) -> None:
        self._go_on()
        self._pipeline.step()
        if self._room is not None:
            self._room.stepped()
        if self._evictions is not None:
            self._evictions.stepped()

    def collect(self) -> list[StepItem | Failed]:
        changed: list[Sequence] = []
        rows: list[list[int]] = []
        gains: list[Gain] = []
        for sequence in self._live.values():
            handle = sequence.handle
            if handle.can_read():
                parts = [
                    Part(
                        sequence.tokens(p.generated_ids),
                        p.generated_log_probs,
                        p.score,
                        FINISH[p.finish_reason],
                    )
                    for p in handle.read().values()
                ]
                if parts or handle.get_status() == _IGNORED:
                    self._prompts.pop(sequence.id, None)
                    if self._prefix is not None:
                        gains.append(_gain(sequence, parts))
                    sequence.read(parts)
                    changed.append(sequence)
                    rows += sequence.rows()
        if self._prefix is not None and not self._prefix.step(gains):
            self._prefix = None  # better nothing than a figure that is wrong
            print("the account of the prefix cache went wrong; its hits are told no more", file=sys.stderr)  # noqa: T201
        texts = iter(self._text.decode(rows))
        gained: list[StepItem | Failed] = []
        for sequence in changed:
            gained += self._advance(sequence, texts)
        if self._live and not changed and not self._pipeline.has_non_finished_requests():
            # Never seen; but a request the library forgot would keep this loop spinning for ever.
            for id_ in list(self._live):
                self._left(id_)
                del self._live[id_]
                gained.append(Failed(id_, "internal", "the engine lost this request"))
        return gained

    def usage(self) -> Usage:
        seen = self._pipeline.get_metrics()
        if seen.la_peak_pool_blocks:
            self._prefix = None  # linear attention: its cache has rules of its own
        cache, size = seen.cache_usage / 100, seen.cache_size_in_bytes  # the library counts in percent
        return Usage(seen.requests, seen.scheduled_requests, cache, size)

    def _advance(self, sequence: Sequence, texts: Iterator[str]) -> Iterable[StepItem | Failed]:
        if sequence.sampling.logprobs:
            for branch in sequence.branches:
                branch.output.add_logprobs(self._text.logprobs(branch.scored))
                branch.scored = []
        items = sequence.advance(texts)
        if sequence.finished:
            del self._live[sequence.id]
            by_us = sequence.handle.get_status() == _RUNNING  # the stop was found by us, not by the library
            self._left(sequence.id, cancelled=by_us)
            if sequence.cache_full and not sequence.generated:
                return [Failed(sequence.id, "resource_exhausted", self._no_room_for(sequence))]
            if by_us:
                self._cancel(sequence)
        return items

    def _left(self, request_id: int, *, cancelled: bool = False) -> None:
        self._prompts.pop(request_id, None)
        if self._room is not None:
            self._room.ended(request_id)
        if self._evictions is not None:
            (self._evictions.cancelled if cancelled else self._evictions.ended)(request_id)

    def _cancel(self, sequence: Sequence) -> None:
        sequence.handle.cancel()
        if self._prefix is not None:
            self._prefix.cancel(sequence.library_id)

    # ---- grammars

    @property
    def compiling(self) -> bool:
        return self._grammars.busy

    def compile(self, id_: int, structural_tag: str, *, tried: bool = False) -> None:
        self._grammars.start(id_, structural_tag, tried=tried)

    def compiled(self) -> list[Compiled | Failed]:
        return self._grammars.finished()

    def forget_grammars(self) -> None:
        self._grammars.forget()

    def _no_room_for(self, sequence: Sequence) -> str:
        size = self._pipeline.get_metrics().cache_size_in_bytes
        return (
            f"The prompt has {sequence.prompt_tokens} tokens and does not fit into the engine's KV cache of "
            f"{size / 2**20:.1f} MiB. Shorten the prompt, or give the engine a larger cache_size."
        )


def prefix_account(spec: TextSpec, room: int | None) -> PrefixCacheModel | None:
    """Where the prefix cache goes by the prompts alone. `room`: tokens that a bounded cache holds."""
    bounded = bool(spec.cache_size or spec.num_kv_blocks)
    if not spec.enable_prefix_caching or spec.decoding != "plain" or spec.cache_eviction is not None:
        return None
    if (
        spec.cache_interval_multiplier is not None
        or not spec.device.startswith("CPU")
        or (bounded and room is None)
    ):
        return None
    size = block_tokens(spec.device)
    account = PrefixCacheModel(
        block=size,
        blocks=(room or 0) // size,
        batch=spec.max_num_batched_tokens,
        seqs=spec.max_num_seqs,
        split_fuse=spec.dynamic_split_fuse,
    )
    if bounded:
        account.replay(ids_tensor((0,)).data.tobytes(), [0], cut=True)  # the probe of capacity.py
    return account


def _gain(sequence: Sequence, parts: list[Part]) -> Gain:
    if not parts or sequence.sampling.beams > 1:  # there was no room; or all that beams found, at the end
        return Gain(sequence.library_id, [], True)
    [part] = parts
    return Gain(sequence.library_id, sequence.generated_ids(part), part.finish is not None)
