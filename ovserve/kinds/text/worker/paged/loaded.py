"""A paged engine as it is loaded: the model, its cache, texts, and facts."""

from __future__ import annotations

import math
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import openvino
import openvino_genai as ov_genai

from ovserve.engine.host.cpu import processor
from ovserve.engine.host.memory import memory
from ovserve.engine.model.files import read_model_files
from ovserve.engine.protocol.admission import context_limit
from ovserve.engine.protocol.messages import Compiled, Failed
from ovserve.engine.protocol.specs import PagedTextSpec
from ovserve.errors import LoadError
from ovserve.kinds.text.worker.genai.facts import engine_facts
from ovserve.kinds.text.worker.genai.options import properties, sentence, to_blame
from ovserve.kinds.text.worker.genai.text import Text, prove_tokens
from ovserve.kinds.text.worker.genai.vocabulary import vocabulary
from ovserve.kinds.text.worker.paged.blocks import BlockPool
from ovserve.kinds.text.worker.paged.budget import PrefillBudget
from ovserve.kinds.text.worker.paged.draft_model import FIELD, DraftModel
from ovserve.kinds.text.worker.paged.drafts import StepCosts
from ovserve.kinds.text.worker.paged.grammars import Grammars
from ovserve.kinds.text.worker.paged.inputs import Inputs
from ovserve.kinds.text.worker.paged.model import BLOCK_TOKENS, FEW_TOKENS, FILE, PagedModel
from ovserve.kinds.text.worker.paged.prefix_store import PrefixStore, store_file
from ovserve.kinds.text.worker.paged.scheduler import Scheduler

GIGABYTE = 1 << 30
MAX_CACHE_SHARE = 0.5  # of the memory that is free after the load, for a cache that grows as needed
RESERVE_BYTES = 320 << 20  # that the cache leaves free: with less than 256 MB, requests are rejected


class LoadedModel:
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
                table = thread.submit(lambda: prove_tokens(opened.result()))
                model = self._model = PagedModel(directory / FILE, spec.device, properties(spec), tiles)
                tokenizer, cache = opened.result(), spec.cache_size * GIGABYTE
                self.facts = engine_facts(files, tokenizer, defaults, files.max_length, cache, 0.0)
                ends = self.facts.eos_token_ids
                grammars = thread.submit(lambda: Grammars(*vocabulary(tokenizer, ends, model.vocabulary)))
                thread.submit(model.read_forms)
                model.compile()
            self._draft_model = None if spec.draft is None else DraftModel(spec, spec.draft, tiles)
            blocks = self._blocks(spec)
            model.allocate(blocks)
            if self._draft_model is not None:
                check_draft_tokens(spec, tokenizer, self._draft_model.vocabulary)
                self._draft_model.allocate(blocks, model.vocabulary)
            loaded = round(time.monotonic() - began, 3)
            self.facts = msgspec.structs.replace(self.facts, load_seconds=loaded)
            self._text = Text(tokenizer, self.facts)
            self._bound_context(spec)
            self._text.use(table.result())
            self._grammars = grammars.result()
        except (RuntimeError, TypeError) as error:
            raise LoadError(sentence(error), field=to_blame(spec, str(error))) from error
        self.facts = msgspec.structs.replace(
            self.facts,
            engine=f"paged, on openvino {openvino.get_version()}",
            longest_token=self._text.longest_token(),
            compiles_grammars=True,
        )
        pool = BlockPool(
            self._model.blocks,
            caches=spec.enable_prefix_caching,
            copy=self._model.copy_block,
            room=self._room,
            store=self._prefix_store(spec),
        )
        self._scheduler = Scheduler(
            pool,
            spec.max_num_batched_tokens,
            spec.max_num_seqs,
            PrefillBudget(),
            splits=spec.dynamic_split_fuse,
            deterministic=spec.deterministic,
        )
        self._prompt_limit = None if spec.dynamic_split_fuse else spec.max_num_batched_tokens
        self._last_live = -math.inf  # time.perf_counter(), when a request ran that is not a line of a batch
        self._arriving: set[int] = set()  # requests whose prompts were encoded, and that were not added yet
        self._inputs = Inputs(self._model.runner)
        self._few: Inputs | None = None
        self._single: Inputs | None = None
        self._costs = StepCosts(model.step_seconds())
        self._candidate = 0.0  # what each one costs in this step, in tokens
        self._scheduled = 0  # requests in the last step
        self._failed: list[Failed] = []
        model.start_forms()
        if spec.deterministic:  # else the first steps would be computed in another form
            model.wait()

    def _prefix_store(self, spec: PagedTextSpec) -> PrefixStore | None:
        if not spec.prefix_cache_path:
            return None
        weights = (Path(spec.model_path) / FILE).with_suffix(".bin")
        parts = (
            spec.max_num_batched_tokens if spec.deterministic else 0
        )  # of prompts, on which a block depends
        layout = f"{self._model.layout()} {parts}"
        try:
            file = store_file(Path(spec.prefix_cache_path), weights, layout)
        except OSError as error:
            raise LoadError(str(error), field="prefix_cache_path") from error
        return PrefixStore(file, spec.prefix_cache_size * GIGABYTE, self._model.cache_bytes())

    def _blocks(self, spec: PagedTextSpec) -> int:
        available = memory().available
        self._reserve = min(RESERVE_BYTES, int(available * (1 - MAX_CACHE_SHARE)))
        if spec.num_kv_blocks:
            return spec.num_kv_blocks
        size: int = spec.cache_size * GIGABYTE or int(available * MAX_CACHE_SHARE)
        if spec.draft is None or self._draft_model is None:
            return max(2, size // self._model.block_bytes)
        if spec.draft.cache_size is None:
            return max(2, size // self.block_bytes)
        of_draft = spec.draft.cache_size * GIGABYTE // self._draft_model.block_bytes
        return max(2, min(size // self._model.block_bytes, of_draft))

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in the caches of both models."""
        return self._model.block_bytes + (self._draft_model.block_bytes if self._draft_model else 0)

    def _room(self) -> int:
        """Return for how many more blocks there is memory: other models or programs may have taken some."""
        available = memory().available
        if not available:
            return self._model.blocks
        return max(0, available - self._reserve) // self.block_bytes

    def _bound_context(self, spec: PagedTextSpec) -> None:
        """The context is no longer than the cache, nor than the graph's `max_model_len`."""
        room, limit = (
            self._model.blocks * BLOCK_TOKENS,
            context_limit(self.facts.max_length, spec.max_model_len),
        )
        if spec.cache_size or spec.num_kv_blocks:
            self.facts = msgspec.structs.replace(self.facts, cache_tokens=room)
        if limit is None or room < limit:
            of_model = "" if limit is None else f", and a request could take {limit}"
            print(f"the KV cache holds {room} tokens{of_model}", file=sys.stderr)  # noqa: T201  this process's log
            limit = room
        self.facts = msgspec.structs.replace(self.facts, max_length=limit)

    def _inputs_for(self, tokens: int, alone: bool) -> Inputs:
        """Return the inputs of the form for a step of `tokens`; `alone`: of one token of one request."""
        if alone and self._model.single is not None:
            if self._single is None:
                self._single = Inputs(self._model.single)
            return self._single
        if tokens <= FEW_TOKENS and self._model.few is not None:
            if self._few is None:
                self._few = Inputs(self._model.few)
            return self._few
        return self._inputs

    def wait_for_forms(self) -> None:
        """Wait until the forms for steps of few tokens are compiled."""
        self._model.wait()

    # ---- the verbs of an engine that need no step

    def tokenize(self, texts: tuple[str, ...], add_special_tokens: bool) -> list[list[int]]:
        return self._text.tokenize(texts, add_special_tokens)

    def detokenize(
        self, rows: tuple[tuple[int, ...], ...], skip_special_tokens: bool, escaped: bool
    ) -> list[str]:
        return self._text.detokenize(rows, skip_special_tokens, escaped)

    @property
    def compiling(self) -> bool:
        return self._grammars.compiling

    def compile(self, id_: int, structural_tag: str, *, validated: bool = False) -> None:
        self._grammars.compile(id_, structural_tag, validated=validated)

    def compiled(self) -> list[Compiled | Failed]:
        return self._grammars.compiled()

    def clear_grammars(self) -> None:
        self._grammars.clear_grammars()


def check_draft_tokens(spec: PagedTextSpec, tokenizer: ov_genai.Tokenizer, vocabulary: int) -> None:
    """Raises LoadError for a draft whose tokens are others. One without a tokenizer is trusted."""
    assert spec.draft is not None, "it was loaded"
    own = tokenizer.get_vocab()
    if vocabulary <= max(own.values(), default=-1):
        raise LoadError(f"the draft model has {vocabulary} tokens, and the model has {len(own)}", field=FIELD)
    path = Path(spec.draft.model_path)
    if (path / "openvino_tokenizer.xml").is_file() and ov_genai.Tokenizer(path).get_vocab() != own:
        raise LoadError("the tokenizers of the draft model and of the model differ", field=FIELD)
