"""A continuous batching pipeline as it is loaded: facts, texts, grammars, and what is tried at load."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import openvino
import openvino_genai as ov_genai

from ovserve.engine.model.files import ModelFiles, read_model_files, refuse_for_library
from ovserve.engine.protocol.admission import context_limit
from ovserve.engine.protocol.specs import TextSpec, block_tokens
from ovserve.errors import LoadError
from ovserve.kinds.text.worker.decoding.sequence import Sequence
from ovserve.kinds.text.worker.genai.facts import engine_facts
from ovserve.kinds.text.worker.genai.grammar import CompilesGrammars, GrammarCompiler, Grammars, prepare
from ovserve.kinds.text.worker.genai.options import properties, scheduler_config, sentence, to_blame
from ovserve.kinds.text.worker.genai.quirks.capacity import cache_tokens
from ovserve.kinds.text.worker.genai.quirks.poisoned_step import prompt_limit
from ovserve.kinds.text.worker.genai.quirks.read_only_gguf import writable
from ovserve.kinds.text.worker.genai.request import generation_config
from ovserve.kinds.text.worker.genai.reservation import CacheReservation
from ovserve.kinds.text.worker.genai.text import Text, prove_tokens
from ovserve.kinds.text.worker.genai.vision import Beside, VisionInput
from ovserve.llm.decoding import filled
from ovserve.llm.request import GREEDY_TEMPERATURE, Sampling
from ovserve.llm.token_bytes import TokenBytes

GIGABYTE = 1 << 30
# The server imports for as long after it has sent the model, and with three busy threads on two cores the
# pipeline would take 0.15 s longer.
HOLD_SECONDS = 0.5


class LoadedPipeline(CompilesGrammars):
    def __init__(self, spec: TextSpec) -> None:
        began = time.monotonic()
        files = read_model_files(spec.model_path)
        refuse_for_library(spec.model_path, files)
        self._live: dict[int, Sequence] = {}
        self._held: dict[
            int, Sequence
        ] = {}  # in the library: also aborted ones, see quirks/partial_prefill.py
        self._mode = spec.decoding
        self._prompt_limit = prompt_limit(spec)
        self._cache_grows = not (spec.cache_size or spec.num_kv_blocks)
        try:
            tokenizer, table, compiler = self._load(spec, files)
            defaults = self._pipeline.get_config()
            loaded, cache = time.monotonic() - began, spec.cache_size * GIGABYTE
            self.facts = engine_facts(files, tokenizer, defaults, files.max_length, cache, loaded)
            self._text = Text(tokenizer, self.facts)
            self._text.use(table)
            self._vision: VisionInput | None = None
            if files.vision:
                encode, beside = self._text.encode, Beside(self._pipeline)
                markers = self.facts.image_markers
                self._vision = VisionInput(encode, beside, files, markers, lookup=spec.prompt_lookup)
                self.facts = self._vision.facts(self.facts)
            self._grammars = Grammars()
            self._caches = spec.enable_prefix_caching
            length = context_limit(self.facts.max_length, spec.max_model_len)
            self.facts = msgspec.structs.replace(self.facts, max_length=length)
            room = self._cache_tokens(spec)
            self._reservation = CacheReservation(spec, room)
            if spec.cache_eviction is None:  # with which prompts may be longer than the cache
                self._bound_context(room)
            # Others do not report whether they use what was compiled for them.
            if spec.decoding == "plain":
                self._grammars.attach(self._answer, tokenizer, self.facts.vocab_size, compiler)
            self.facts = msgspec.structs.replace(
                self.facts,
                compiles_grammars=self._grammars.parallel,
                longest_token=self._text.longest_token(),
            )
        except (RuntimeError, TypeError) as error:
            raise LoadError(sentence(error), field=to_blame(spec, str(error))) from error

    def _load(
        self, spec: TextSpec, files: ModelFiles
    ) -> tuple[ov_genai.Tokenizer, TokenBytes | None, GrammarCompiler | None]:
        """Load the pipeline. Return its tokenizer, the table of tokens, and what may compile grammars for it.

        The library loads on one core, without the interpreter lock. So what needs only the tokenizer is made
        on another thread meanwhile, which takes 0.2 s off a start (SmolLM2). A pipeline with a vision part
        loads its own tokenizer.
        """
        config, options = scheduler_config(spec), properties(spec)
        with writable(spec.model_path) as path:
            if files.vision:
                self._pipeline = ov_genai.ContinuousBatchingPipeline(path, config, spec.device, options)
                tokenizer = self._pipeline.get_tokenizer()
                return tokenizer, prove_tokens(tokenizer), None
            tokenizer = ov_genai.Tokenizer(path)
            loaded = threading.Event()
            with ThreadPoolExecutor(1, "tokenizer") as thread:
                thread.submit(loaded.wait, HOLD_SECONDS)
                plain = spec.decoding == "plain"
                compiler = thread.submit(prepare, tokenizer, files.vocab_size) if plain else None
                table = thread.submit(prove_tokens, tokenizer)
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
        if self._cache_grows:
            return None
        two = filled(self._mode, Sampling(temperature=GREEDY_TEMPERATURE, ignore_eos=True))
        config = generation_config(self._mode, two, 2, (), self.facts, self._grammars.admitted)
        added = None if self._vision is None else self._vision.added
        return cache_tokens(self._pipeline, config, block_tokens(spec.device), added)

    def _answer(self, ids: openvino.Tensor, config: ov_genai.GenerationConfig) -> ov_genai.PerfMetrics:
        """Outside of the loop, while it is idle."""
        if self._vision is not None:
            return self._vision.answer(config)
        [answer] = self._pipeline.generate([ids], [config])
        return answer.perf_metrics

    def tokenize(self, texts: tuple[str, ...], add_special_tokens: bool) -> list[list[int]]:
        return self._text.tokenize(texts, add_special_tokens)

    def detokenize(
        self, rows: tuple[tuple[int, ...], ...], skip_special_tokens: bool, escaped: bool
    ) -> list[str]:
        return self._text.detokenize(rows, skip_special_tokens, escaped)
