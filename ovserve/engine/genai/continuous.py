"""The real engine: OpenVINO GenAI's ContinuousBatchingPipeline.

Run by `worker.py`, from one thread, in the order add/abort, step, collect. The rules that shape this file,
each found by measuring the library:

- Whatever can raise inside `step()` is refused in `add()`: one such request takes all others with it.
- `read()` on an empty handle blocks for ever, so `can_read()` comes first.
- Rows of a batched decode are filled up with the padding token, which is visible when special tokens are
  kept; so we fill rows ourselves, with an id no vocabulary has, which decodes to nothing.
- `ignore_eos` ignores `stop_token_ids` as well, so those are also looked for here.
- Hidden special tokens are ours too: the library's own skipping drops markers like `<tool_call>`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator

import openvino
import openvino_genai as ov_genai

from ovserve.engine.admission import admit
from ovserve.engine.drafts import Drafts, LookupDrafts
from ovserve.engine.genai.grammar import Grammars
from ovserve.engine.genai.options import properties, scheduler_config, sentence, to_blame
from ovserve.engine.messages import (
    Accepted,
    Add,
    Compiled,
    EngineFacts,
    EngineSpec,
    Failed,
    StepItem,
    Usage,
)
from ovserve.engine.model_files import ModelFiles, read_model_files
from ovserve.engine.sequence import Part, Sequence
from ovserve.engine.token_bytes import prove
from ovserve.engine.whole_text import WholeText
from ovserve.errors import Internal, InvalidArgument, LoadError
from ovserve.llm.decoding import EFFECTIVE, filled
from ovserve.llm.request import GREEDY_TEMPERATURE, Sampling, TokenLogprob

FILLER = 2**31 - 1
GIGABYTE = 1 << 30

_FINISH = {
    ov_genai.GenerationFinishReason.NONE: None,
    ov_genai.GenerationFinishReason.LENGTH: "length",
    ov_genai.GenerationFinishReason.STOP: "stop",
}
_IGNORED = ov_genai.GenerationStatus.IGNORED
_RUNNING = ov_genai.GenerationStatus.RUNNING


class GenAIEngine:
    def __init__(self, spec: EngineSpec) -> None:
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
            self._tokenizer = self._pipeline.get_tokenizer()
            self.facts = self._facts(spec, files, began)
            self._token_bytes = prove(self._tokenizer.get_vocab(), self._decode_by_length)
            self._whole = WholeText(self._encode_ids, self.facts.max_length)
            self._can_fill = self._filler_decodes_to_nothing()
        except (RuntimeError, TypeError) as error:
            raise LoadError(sentence(error), field=to_blame(spec, str(error))) from error
        self._grammars = Grammars()
        if spec.decoding == "plain":  # other modes take none, see llm/decoding.py
            self._grammars.attach(self._pipeline, self._tokenizer, self.facts.vocab_size)
        self._ends = frozenset(self.facts.eos_token_ids)
        self._hidden = self._ends | {self._tokenizer.get_bos_token_id(), self._tokenizer.get_pad_token_id()}

    # ---- the verbs of an engine

    @property
    def busy(self) -> bool:
        # A cancelled request leaves the library only with one more step.
        return bool(self._live) or self._pipeline.has_non_finished_requests()

    def live(self) -> list[int]:
        return list(self._live)

    def encode_prompts(self, requests: list[Add]) -> dict[int, openvino.Tensor]:
        """Token ids by request id for `add`, of the requests that gain from being tokenised together: one
        call for many texts takes a quarter of the time of many calls (measured: 50 and 190 us a prompt)."""
        found: dict[int, openvino.Tensor] = {}
        for special in (True, False):
            texts = {
                r.id: r.prompt
                for r in requests
                if isinstance(r.prompt, str) and r.add_special_tokens is special
            }
            if len(texts) < 2:
                continue
            try:
                rows = self._tokenizer.encode(list(texts.values()), add_special_tokens=special)
            except (RuntimeError, TypeError):
                continue  # `add` finds whose fault it is
            for id_, ids, mask in zip(texts, rows.input_ids.data, rows.attention_mask.data, strict=True):
                whole = ids[mask == 1]
                if not self._whole.is_cut(len(whole)):
                    found[id_] = _tensor(whole)
        return found

    def add(self, request: Add, encoded: openvino.Tensor | None = None) -> Accepted:
        """`encoded`: the prompt's ids, from `encode_prompts`."""
        if request.id in self._live:
            raise Internal(f"request {request.id} is already running")
        sampling = filled(self._mode, request.sampling)
        ids = self._tokenise(request) if encoded is None else encoded
        prompt_tokens = ids.shape[1]
        max_tokens = admit(prompt_tokens, self.facts.max_length, sampling, self._prompt_limit, self._mode)
        stop_ids = frozenset(sampling.stop_token_ids)
        if not sampling.ignore_eos:
            stop_ids |= self._ends
        config = self._generation_config(sampling, max_tokens, stop_ids)
        try:
            handle = self._pipeline.add_request(request.id, ids, config)
        except (RuntimeError, TypeError) as error:
            raise InvalidArgument(sentence(error)) from error
        hidden = self._hidden if sampling.skip_special_tokens else frozenset()
        sequence = Sequence(handle, request.id, sampling, prompt_tokens, stop_ids, hidden)
        sequence.drafts = self._drafts(sampling, max_tokens, ids)
        if sampling.echo:
            prompt = (
                request.prompt if isinstance(request.prompt, str) else self._decode([list(request.prompt)])[0]
            )
            for branch in sequence.branches:
                branch.output.echo(prompt)
        self._live[request.id] = sequence
        return Accepted(request.id, prompt_tokens, max_tokens)

    def _drafts(self, sampling: Sampling, max_tokens: int, prompt: openvino.Tensor) -> Drafts | None:
        if self._mode == "plain":
            return None
        if self._mode != "prompt_lookup":
            return Drafts(sampling, max_tokens)
        return LookupDrafts(sampling, max_tokens, prompt.data[0].tolist())

    def abort(self, request_id: int) -> None:
        if sequence := self._live.pop(request_id, None):
            sequence.handle.cancel()

    def tokenize(self, texts: tuple[str, ...], add_special_tokens: bool) -> list[list[int]]:
        # One by one: a batch comes back padded, and the mask that tells padding from text costs more.
        return [self._whole.encode(text, add_special_tokens) for text in texts]

    def detokenize(self, rows: tuple[tuple[int, ...], ...], skip_special_tokens: bool) -> list[str]:
        for row in rows:
            self._check_ids(row, "tokens")
        hidden = self._hidden if skip_special_tokens else frozenset()
        return self._decode([[id_ for id_ in row if id_ not in hidden] for row in rows])

    def step(self) -> None:
        self._pipeline.step()

    def collect(self) -> list[StepItem | Failed]:
        changed: list[Sequence] = []
        rows: list[list[int]] = []
        for sequence in self._live.values():
            handle = sequence.handle
            if handle.can_read():
                parts = [
                    Part(p.generated_ids, p.generated_log_probs, p.score, _FINISH[p.finish_reason])
                    for p in handle.read().values()
                ]
                if parts or handle.get_status() == _IGNORED:
                    sequence.read(parts)
                    changed.append(sequence)
                    rows += sequence.rows()
        texts = iter(self._decode(rows))
        gained: list[StepItem | Failed] = []
        for sequence in changed:
            gained += self._advance(sequence, texts)
        if self._live and not changed and not self._pipeline.has_non_finished_requests():
            # Never seen; but a request the library forgot would keep this loop spinning for ever.
            gained += [Failed(id_, "internal", "the engine lost this request") for id_ in self._live]
            self._live.clear()
        return gained

    def usage(self) -> Usage:
        seen = self._pipeline.get_metrics()
        cache, size = seen.cache_usage / 100, seen.cache_size_in_bytes  # the library counts in percent
        return Usage(seen.requests, seen.scheduled_requests, cache, size)

    def _advance(self, sequence: Sequence, texts: Iterator[str]) -> Iterable[StepItem | Failed]:
        if sequence.sampling.logprobs:
            for branch in sequence.branches:
                branch.output.add_logprobs(self._token_logprobs(branch.scored))
                branch.scored = []
        items = sequence.advance(texts)
        if sequence.finished:
            del self._live[sequence.id]
            if sequence.cache_full and not sequence.generated:
                return [Failed(sequence.id, "resource_exhausted", self._no_room_for(sequence))]
            if sequence.handle.get_status() == _RUNNING:  # the stop was found by us, not by the library
                sequence.handle.cancel()
        return items

    def _token_logprobs(self, scored: list[tuple[int, float | None]]) -> list[TokenLogprob]:
        if self._token_bytes is not None:
            pieces = [self._token_bytes.of(id_) for id_, _ in scored]
        else:
            pieces = [text.encode() for text in self._decode([[id_] for id_, _ in scored])]
        return [
            TokenLogprob(piece.decode("utf-8", "replace"), piece, logprob)
            for piece, (_, logprob) in zip(pieces, scored, strict=True)
        ]

    # ---- grammars

    @property
    def compiling(self) -> bool:
        return self._grammars.busy

    def compile(self, id_: int, structural_tag: str) -> None:
        self._grammars.start(id_, structural_tag)

    def compiled(self) -> list[Compiled | Failed]:
        return self._grammars.finished()

    # ---- text

    def _tokenise(self, request: Add) -> openvino.Tensor:
        if isinstance(request.prompt, str):
            tensor = self._encode(request.prompt, request.add_special_tokens)
            if not self._whole.is_cut(tensor.shape[1]):
                return tensor
            return _tensor(self._whole.encode(request.prompt, request.add_special_tokens))
        self._check_ids(request.prompt, "prompt")
        return _tensor(request.prompt)

    def _encode(self, text: str, add_special_tokens: bool) -> openvino.Tensor:
        try:
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).input_ids
        except (RuntimeError, TypeError) as error:
            raise InvalidArgument(f"the prompt cannot be tokenised: {sentence(error)}") from error

    def _encode_ids(self, text: str, add_special_tokens: bool) -> list[int]:
        ids: list[int] = self._encode(text, add_special_tokens).data[0].tolist()
        return ids

    def _check_ids(self, ids: tuple[int, ...], param: str) -> None:
        size = self.facts.vocab_size
        for id_ in ids:
            if not 0 <= id_ < size:
                raise InvalidArgument(f"token id {id_} is not in the vocabulary of {size}", param=param)

    def _decode(self, rows: list[list[int]]) -> list[str]:
        """By table where that is proven right, else one library call for all rows (see token_bytes.py)."""
        if self._token_bytes is not None:
            return self._token_bytes.decode(rows)
        if not rows:
            return []
        longest = max(map(len, rows))
        if not self._can_fill:
            return self._decode_by_length(rows)
        filled = [row + [FILLER] * (longest - len(row)) if len(row) < longest else row for row in rows]
        texts: list[str] = self._tokenizer.decode(filled, skip_special_tokens=False)
        return texts

    def _decode_by_length(self, rows: list[list[int]]) -> list[str]:
        texts = [""] * len(rows)
        for length in {len(row) for row in rows} - {0}:
            places = [at for at, row in enumerate(rows) if len(row) == length]
            decoded = self._tokenizer.decode([rows[at] for at in places], skip_special_tokens=False)
            for at, text in zip(places, decoded, strict=True):
                texts[at] = text
        return texts

    def _filler_decodes_to_nothing(self) -> bool:
        rows = [[id_ % self.facts.vocab_size for id_ in range(start, start + 3)] for start in (3, 97, 997)]
        plain = self._tokenizer.decode(rows, skip_special_tokens=False)
        filled = self._tokenizer.decode([row + [FILLER] * 2 for row in rows], skip_special_tokens=False)
        nothing = self._tokenizer.decode([[FILLER]], skip_special_tokens=False)
        return bool(plain == filled and nothing == [""])

    # ---- configuration

    def _generation_config(
        self, sampling: Sampling, max_tokens: int, stop_ids: Iterable[int]
    ) -> ov_genai.GenerationConfig:
        config = ov_genai.GenerationConfig()
        wanted: dict[str, object] = {
            "apply_chat_template": False,
            "eos_token_id": self.facts.eos_token_ids[0] if self.facts.eos_token_ids else -1,
            "stop_token_ids": {*stop_ids, *self.facts.eos_token_ids},  # validate() wants the eos ids in it
            "ignore_eos": sampling.ignore_eos,
            "min_new_tokens": sampling.min_tokens,
            "repetition_penalty": sampling.repetition_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "presence_penalty": sampling.presence_penalty,
            "echo": sampling.echo,
            "logprobs": int(sampling.logprobs),
        }
        # The library's own defaults, 0, mean "not at all" to a pipeline that always drafts.
        for name in EFFECTIVE[self._mode]:
            if value := getattr(sampling, name):
                wanted[name] = value
        if sampling.constraint is not None:
            wanted["structured_output_config"] = self._grammars.admitted(sampling.constraint)
        if max_tokens or sampling.echo:
            wanted["max_new_tokens"] = max_tokens
        if sampling.beams > 1:
            wanted |= {
                "num_beams": sampling.beams,
                "num_beam_groups": sampling.beam_groups,
                "num_return_sequences": sampling.n,
                "length_penalty": sampling.length_penalty,
                "diversity_penalty": sampling.diversity_penalty,
            }
        elif sampling.temperature != GREEDY_TEMPERATURE:
            wanted |= {
                "do_sample": True,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "min_p": sampling.min_p,
                "rng_seed": sampling.seed,
            }
            if sampling.top_k is not None:
                wanted["top_k"] = sampling.top_k
        for name, value in wanted.items():
            if isinstance(value, float) and not math.isfinite(value):
                raise InvalidArgument(f"{name} must be a finite number, not {value}", param=name)
            try:
                setattr(config, name, value)
            except (TypeError, OverflowError) as error:
                raise InvalidArgument(f"{name}: {value!r} is not a possible value", param=name) from error
        try:
            config.validate()
        except RuntimeError as error:
            raise InvalidArgument(sentence(error)) from error
        return config

    def _facts(self, spec: EngineSpec, files: ModelFiles, began: float) -> EngineFacts:
        tokenizer, defaults = self._tokenizer, self._pipeline.get_config()
        ends = [defaults.eos_token_id, *files.end_token_ids, *sorted(defaults.stop_token_ids)]
        ends.append(tokenizer.get_eos_token_id())
        return EngineFacts(
            max_length=files.max_length,
            chat_template=files.chat_template or tokenizer.get_original_chat_template() or None,
            tool_template=files.tool_template,
            bos_token=tokenizer.get_bos_token(),
            eos_token=tokenizer.get_eos_token(),
            pad_token=tokenizer.get_pad_token(),
            pad_token_id=pad if (pad := tokenizer.get_pad_token_id()) >= 0 else None,
            eos_token_ids=tuple(dict.fromkeys(id_ for id_ in ends if id_ >= 0)),
            add_bos_token=files.add_bos_token,
            vocab_size=files.vocab_size or len(tokenizer.get_vocab()),
            generation_config=files.generation_config,
            architecture=files.architecture,
            engine=f"openvino-genai {ov_genai.get_version()}",
            cache_bytes=spec.cache_size * GIGABYTE,
            load_seconds=round(time.monotonic() - began, 3),
        )

    def _no_room_for(self, sequence: Sequence) -> str:
        size = self._pipeline.get_metrics().cache_size_in_bytes
        return (
            f"The prompt has {sequence.prompt_tokens} tokens and does not fit into the engine's KV cache of "
            f"{size / 2**20:.1f} MiB. Shorten the prompt, or give the engine a larger cache_size."
        )


def _tensor(ids: Collection[int]) -> openvino.Tensor:
    tensor = openvino.Tensor(openvino.Type.i64, openvino.Shape([1, len(ids)]))
    if len(ids):
        tensor.data[0] = ids
    return tensor
