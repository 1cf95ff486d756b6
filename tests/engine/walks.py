"""Answers of models that compute nothing, under the library's own grammar matcher; for tests of grammars.

A real model shows what one model likes to write. `Walks.anything` takes what the grammar allows at random, so
every branch has its turn; `Walks.tries` wants to write exactly one text, so it tells whether the grammar
accepts that. Both cost a millisecond per token.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import openvino
import openvino_genai as ov_genai
from openvino import opset13 as ops

from ovserve.kinds.text.worker.genai.grammar import _config, _one_token
from ovserve.llm.grammar.constraint import Constraint, structural_tag

LIKED = 50.0  # the logit of the wanted token; all others have 0


class Walks:
    def __init__(self, model_path: str) -> None:
        self._tokenizer = ov_genai.Tokenizer(model_path)
        self._vocabulary = len(self._tokenizer.get_vocab())
        self._uniform = self._pipeline(None)
        self._wanting: ov_genai.LLMPipeline | None = None
        self._at: dict[
            str, tuple[int, int]
        ] = {}  # where a text begins among the wanted tokens, and its length

    def anything(self, constraint: Constraint, seed: int, tokens: int = 400) -> tuple[str, bool]:
        """One of the texts that the grammar allows, and whether it came to its end."""
        config = _config(structural_tag(constraint.format), tokens)
        config.do_sample, config.rng_seed = True, seed
        return self._text(self._uniform, _one_token(), config)

    def learn(self, texts: Iterable[str]) -> None:
        """All that `tries` will be asked for from now on."""
        wanted: list[int] = []
        self._at = {}
        for text in dict.fromkeys(texts):
            ids = self._tokenizer.encode(text, add_special_tokens=False).input_ids.data[0]
            self._at[text] = len(wanted), len(ids)
            wanted += [*map(int, ids), self._tokenizer.get_eos_token_id()]
        self._wanting = self._pipeline(wanted)

    def begins(self, constraint: Constraint, tokens: list[int]) -> bool:
        """Whether a text that the grammar accepts begins with these tokens."""
        config = _config(structural_tag(constraint.format), len(tokens))
        [written] = self._pipeline(tokens).generate(_one_token(), config).tokens
        return written == tokens

    def tries(self, constraint: Constraint, text: str) -> str:
        """`text` if the grammar accepts it; else it goes another way where the grammar refused."""
        assert self._wanting is not None, "it has learnt no text"
        at, size = self._at[text]
        prompt = openvino.Tensor(np.ones((1, at + 1), np.int64))  # its length says which text is wanted
        config = _config(structural_tag(constraint.format), size + 1)
        written, ended = self._text(self._wanting, prompt, config)
        return written if ended else written + "..."

    def _text(
        self, pipeline: ov_genai.LLMPipeline, prompt: openvino.Tensor, config: ov_genai.GenerationConfig
    ) -> tuple[str, bool]:
        [tokens] = pipeline.generate(prompt, config).tokens
        ended = tokens[-1] == self._tokenizer.get_eos_token_id()
        text = self._tokenizer.decode(tokens[:-1] if ended else tokens, skip_special_tokens=False)
        return text, ended

    def _pipeline(self, wanted: list[int] | None) -> ov_genai.LLMPipeline:
        ids = ops.parameter([-1, -1], openvino.Type.i64)
        mask = ops.parameter([-1, -1], openvino.Type.i64)
        beams = ops.parameter([-1], openvino.Type.i32)
        for node, name in ((ids, "input_ids"), (mask, "attention_mask"), (beams, "beam_idx")):
            node.output(0).get_tensor().set_names({name})
        # The place in the answer is the number of tokens so far, which the mask has as its length.
        length = ops.gather(ops.shape_of(mask), ops.constant(np.int64(1)), ops.constant(np.int64(0)))
        table = ops.constant(np.array([*(wanted or [0]), 0], np.int64))
        last = ops.constant(np.int64(len(wanted or [0])))
        place = ops.minimum(ops.subtract(length, ops.constant(np.int64(1))), last)
        token = ops.gather(table, place, ops.constant(np.int64(0)))
        like = ops.constant(np.float32(LIKED if wanted else 0.0))
        row = ops.one_hot(
            token, ops.constant(np.int64(self._vocabulary)), like, ops.constant(np.float32(0)), -1
        )
        result = ops.result(ops.unsqueeze(row, ops.constant(np.array([0, 1], np.int64))))
        result.output(0).get_tensor().set_names({"logits"})
        model = openvino.Model([result], [ids, mask, beams], "walks")
        with tempfile.TemporaryDirectory(prefix="ovserve-test-") as directory:
            path = Path(directory) / "walks.xml"
            openvino.save_model(model, path, compress_to_fp16=False)
            weights = np.fromfile(path.with_suffix(".bin"), np.uint8)
            return ov_genai.LLMPipeline(
                path.read_text(), openvino.Tensor(weights), self._tokenizer, "CPU", None,
                INFERENCE_NUM_THREADS=1, ATTENTION_BACKEND="SDPA",
            )  # fmt: skip
