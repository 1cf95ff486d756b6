"""`python -m ovserve.kinds.speech.worker.convert SOURCE DIRECTORY [fp16]`: a Whisper model to OpenVINO IR.

SOURCE has config.json, tokenizer.json and weights, as safetensors or in CTranslate2's form. Matrices of
the decoder get 8 bits, or 16 with `fp16`. It is a process of its own, because the command never imports
OpenVINO.

Whisper's tokenizer.json becomes the two OpenVINO graphs that the library loads, without transformers. JSON
files that a CTranslate2 directory does not have are made of those that it has. Its config.json lists tokens
and attention heads; sizes are those of the tensors, and ids those of the tokenizer. All Whisper models share
the rest.

The graphs are built from the tensors, without torch. The encoder takes `input_features` [batch, mel bins,
3000] and returns `last_hidden_state`. The decoder keeps its attention cache as state, and is what OpenVINO
GenAI expects: inputs `input_ids`, `encoder_hidden_states` and `beam_idx`, output `logits`. The keys and
values of the audio are a state as well, computed by the first step after a reset: they are the same in all
steps. Cross-attention is written in single operations. As one operation it is taken apart when it is
compiled, and then each step transposes and scales all keys of the audio: 13.9 ms of a processor for a step of
whisper-base against 9.5 (2026-11-23, EPYC with avx512_bf16).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op
from openvino_tokenizers import tokenizer_pipeline as steps
from openvino_tokenizers.utils import change_inputs_type, change_outputs_type

from ovserve.engine.model.files import end_with, json_object
from ovserve.errors import LoadError
from ovserve.kinds.speech.spec import DECODER, DETOKENIZER, ENCODER, TOKENIZER
from ovserve.kinds.speech.worker.whisper_weights import CTranslate2Weights, Weights, open_weights

Node = Any  # an output of OpenVINO's graph; the library has no usable types
NORM_EPSILON = 1e-5
MASKED_SCORE = np.float32(-65504.0)  # the lowest float16, so that it stays finite in each precision
SCORES = "cross_attention_qk_scaled_scores"  # the library's name of the tensors it needs for word timestamps


def build(weights: Weights, config: Mapping[str, Any], *, int8: bool) -> tuple[ov.Model, ov.Model]:
    """Return encoder and decoder. `int8`: the decoder's matrices have 8 bits, with a scale and a zero point
    per row.

    The encoder is computed once per piece, where 8 bits save nothing and cost words: 13 errors against 11 of
    138 (2026-11-23, the sentences of benchmarks/speech.py). Raises LoadError for another architecture.
    """
    if config.get("model_type") != "whisper":
        raise LoadError(f"model_type {config.get('model_type')!r} cannot be converted; known: whisper")
    if config.get("activation_function", "gelu") != "gelu":
        raise LoadError(f"activation_function {config['activation_function']!r} cannot be converted")
    return _Encoder(weights, config, False).model(), _Decoder(weights, config, int8).model()


class _Builder:
    side: str

    def __init__(self, weights: Weights, config: Mapping[str, Any], int8: bool) -> None:
        self._weights, self._int8 = weights, int8
        self._prefix = f"model.{self.side}."
        if f"{self._prefix}layer_norm.weight" not in weights:
            self._prefix = f"{self.side}."  # a file of the bare model, without its head
        self._width = int(config["d_model"])
        self._heads = int(config[f"{self.side}_attention_heads"])
        self._layers = int(config[f"{self.side}_layers"])
        self._size = self._width // self._heads
        self._config = config

    def _tensor(self, name: str) -> NDArray[np.float32]:
        return self._weights.float32(self._prefix + name)

    def _matrix(self, name: str) -> Node:
        values = self._tensor(name + ".weight")
        return _compressed(values) if self._int8 else op.constant(values)

    def _dense(self, x: Node, name: str) -> Node:
        product = op.matmul(x, self._matrix(name), False, True)
        bias = name + ".bias"
        if self._prefix + bias not in self._weights:
            return product
        return op.add(product, op.constant(self._tensor(bias)))

    def _norm(self, x: Node, name: str) -> Node:
        mvn = op.mvn(x, op.constant(np.array([-1])), True, NORM_EPSILON, "inside_sqrt")
        scaled = op.multiply(mvn, op.constant(self._tensor(name + ".weight")))
        return op.add(scaled, op.constant(self._tensor(name + ".bias")))

    def _split(self, x: Node) -> Node:
        """[batch, tokens, width] to [batch, heads, tokens, size]."""
        x = op.reshape(x, op.constant(np.array([0, 0, self._heads, self._size])), True)
        return op.transpose(x, op.constant(np.array([0, 2, 1, 3])))

    def _attended(self, x: Node, name: str, keys: Node, values: Node, mask: Node | None) -> Node:
        query = self._split(self._dense(x, name + ".q_proj"))
        inputs = (query, keys, values) if mask is None else (query, keys, values, mask)
        mixed = op.scaled_dot_product_attention(*inputs)
        mixed.set_friendly_name(f"{self._prefix}{name}.attention")
        return self._joined(mixed, name)

    def _joined(self, mixed: Node, name: str) -> Node:
        """[batch, heads, tokens, size] to [batch, tokens, width], projected."""
        mixed = op.transpose(mixed, op.constant(np.array([0, 2, 1, 3])))
        mixed = op.reshape(mixed, op.constant(np.array([0, 0, self._width])), True)
        return self._dense(mixed, name + ".out_proj")

    def _feed_forward(self, x: Node, layer: str) -> Node:
        inner = op.gelu(self._dense(self._norm(x, layer + "final_layer_norm"), layer + "fc1"), "ERF")
        return op.add(x, self._dense(inner, layer + "fc2"))


class _Encoder(_Builder):
    side = "encoder"

    def model(self) -> ov.Model:
        bins, frames = int(self._config["num_mel_bins"]), 2 * int(self._config["max_source_positions"])
        features = _input("input_features", ov.PartialShape([-1, bins, frames]), ov.Type.f32)
        x = self._convolved(self._convolved(features, "conv1", 1), "conv2", 2)
        x = op.transpose(x, op.constant(np.array([0, 2, 1])))
        x = op.add(x, op.constant(self._tensor("embed_positions.weight")[None]))
        for i in range(self._layers):
            layer = f"layers.{i}."
            attention = layer + "self_attn"
            normed = self._norm(x, layer + "self_attn_layer_norm")
            keys = self._split(self._dense(normed, attention + ".k_proj"))
            values = self._split(self._dense(normed, attention + ".v_proj"))
            x = op.add(x, self._attended(normed, attention, keys, values, None))
            x = self._feed_forward(x, layer)
        return _model(
            [_with_name(self._norm(x, "layer_norm"), "last_hidden_state")], [], [features], "encoder"
        )

    def _convolved(self, x: Node, name: str, stride: int) -> Node:
        kernel = op.constant(self._tensor(name + ".weight"))
        convolved = op.convolution(x, kernel, [stride], [1], [1], [1])
        return op.gelu(op.add(convolved, op.constant(self._tensor(name + ".bias")[None, :, None])), "ERF")


class _Decoder(_Builder):
    side = "decoder"

    def model(self) -> ov.Model:
        ids = _input("input_ids", ov.PartialShape([-1, -1]), ov.Type.i64)
        self._audio = _input("encoder_hidden_states", ov.PartialShape([-1, -1, self._width]), ov.Type.f32)
        self._beams = _input("beam_idx", ov.PartialShape([-1]), ov.Type.i32)
        self._sinks: list[Any] = []
        shape = op.shape_of(ids)
        batch, length = (op.gather(shape, op.constant(np.array([i])), op.constant(0)) for i in (0, 1))
        empty = op.concat([batch, op.constant(np.array([self._heads, 0, self._size]))], 0)
        self._nothing = op.broadcast(op.constant(np.float32(0)), empty)
        words = self._matrix("embed_tokens")
        mask: Node | None = None
        x: Node = op.gather(words, ids, op.constant(0))
        for i in range(self._layers):
            layer = f"layers.{i}."
            pasts = [self._past(f"{layer}{which}") for which in ("key", "value")]
            if mask is None:  # all layers hold the same number of tokens
                past = op.gather(op.shape_of(pasts[0][0]), op.constant(np.array([2])), op.constant(0))
                positions = self._range(past, op.add(past, length))
                table = op.constant(self._tensor("embed_positions.weight"))
                x = op.add(x, op.gather(table, positions, op.constant(0)))
                mask = self._causal(positions, op.add(past, length))
            x = self._layer(x, layer, pasts, mask)
        logits = op.matmul(self._norm(x, "layer_norm"), words, False, True)
        inputs = [ids, self._audio, self._beams]
        return _model([_with_name(logits, "logits")], self._sinks, inputs, "decoder")

    def _layer(self, x: Node, layer: str, pasts: list[tuple[Node, str]], mask: Node) -> Node:
        attention = layer + "self_attn"
        normed = self._norm(x, layer + "self_attn_layer_norm")
        grown = []
        for (past, variable), projection in zip(pasts, (".k_proj", ".v_proj"), strict=True):
            both = op.concat([past, self._split(self._dense(normed, attention + projection))], 2)
            self._sinks.append(op.assign(both, variable))
            grown.append(both)
        x = op.add(x, self._attended(normed, attention, grown[0], grown[1], mask))
        attention = layer + "encoder_attn"
        keys, values = (self._remembered(attention + projection) for projection in (".k_proj", ".v_proj"))
        normed = self._norm(x, layer + "encoder_attn_layer_norm")
        x = op.add(x, self._heard(normed, attention, keys, values))
        return self._feed_forward(x, layer)

    def _heard(self, x: Node, name: str, keys: Node, values: Node) -> Node:
        """Attention to the audio."""
        query = op.multiply(self._dense(x, name + ".q_proj"), op.constant(np.float32(self._size**-0.5)))
        scores = op.matmul(self._split(query), keys, False, True)
        scores = op.add(scores, op.constant(np.zeros((1, 1, 1, 1), np.float32)))  # found as an `Add`
        scores.output(0).set_names({SCORES})
        return self._joined(op.matmul(op.softmax(scores, -1), values, False, False), name)

    def _past(self, variable: str) -> tuple[Node, str]:
        """The cache of one attention block, in the order of the beams, and its name."""
        shape = ov.PartialShape([-1, self._heads, -1, self._size])
        state = op.read_value(self._nothing, variable, ov.Type.f32, shape)
        return op.gather(state, self._beams, op.constant(0)), variable

    def _remembered(self, name: str) -> Node:
        """Keys or values of the audio: the first step after a reset computes them."""
        state = op.read_value(self._split(self._dense(self._audio, name)), name)
        self._sinks.append(op.assign(state, name))
        return state

    def _range(self, begin: Node, end: Node) -> Node:
        begin, end = (op.squeeze(value, op.constant(0)) for value in (begin, end))
        return op.range(begin, end, op.constant(np.int64(1)), output_type=ov.Type.i64)

    def _causal(self, positions: Node, length: Node) -> Node:
        """[1, 1, tokens, all tokens]: 0 where a token is not later, else MASKED_SCORE."""
        others = op.unsqueeze(self._range(op.constant(np.array([0])), length), op.constant(0))
        later = op.greater(others, op.unsqueeze(positions, op.constant(1)))
        values = op.select(later, op.constant(MASKED_SCORE), op.constant(np.float32(0)))
        return op.unsqueeze(values, op.constant(np.array([0, 1])))


def _input(name: str, shape: ov.PartialShape, kind: ov.Type) -> Node:
    parameter = op.parameter(shape, kind, name)
    parameter.output(0).set_names({name})
    return parameter


def _with_name(node: Node, name: str) -> Node:
    node.output(0).set_names({name})
    return node


def _model(results: list[Node], sinks: list[Any], inputs: list[Node], name: str) -> ov.Model:
    model = ov.Model([op.result(result) for result in results], sinks, inputs, f"whisper_{name}")
    model.set_rt_info("ovserve", "converted_by")
    return model


def _compressed(values: NDArray[np.float32]) -> Node:
    """A matrix with 8 bits per value, as a graph that the device reads as such: (value - zero) * scale."""
    low, high = np.minimum(values.min(1), 0)[:, None], np.maximum(values.max(1), 0)[:, None]
    scale = np.maximum((high - low) / 255, np.float32(1e-7)).astype(np.float16).astype(np.float32)
    zero = np.clip(np.rint(-low / scale), 0, 255)
    packed = np.clip(np.rint(values / scale) + zero, 0, 255).astype(np.uint8)
    wide = op.convert(op.constant(packed), ov.Type.f16)
    shifted = op.subtract(wide, op.convert(op.constant(zero.astype(np.uint8)), ov.Type.f16))
    scaled = op.multiply(shifted, op.constant(scale.astype(np.float16)))
    return op.convert(scaled, ov.Type.f32)


CONFIG, GENERATION, PREPROCESSOR = "config.json", "generation_config.json", "preprocessor_config.json"
HEAD_SIZE = 64  # of all Whisper models
RATE, HOP, FFT, SECONDS = 16_000, 160, 400, 30
DECODER_POSITIONS = 448  # of the decoder


def model_files(source: Path, weights: Weights) -> dict[str, dict[str, Any]]:
    """Return the JSON files by name: those of the directory, or made ones. Raises LoadError."""
    config = json_object(source / CONFIG, needed=True)
    if not isinstance(weights, CTranslate2Weights):
        return {CONFIG: config}
    tokens = token_ids(source)
    bins, frames, width, layers, vocabulary = _sizes(weights)
    ids = sorted((tokens[text], text) for text in tokens if tokens[text] in set(config.get("lang_ids", ())))
    return {
        CONFIG: {
            "architectures": ["WhisperForConditionalGeneration"],
            "model_type": "whisper",
            "activation_function": "gelu",
            "d_model": width,
            "num_mel_bins": bins,
            "max_source_positions": frames,
            "vocab_size": vocabulary,
            **{f"{side}_attention_heads": width // HEAD_SIZE for side in layers},
            **{f"{side}_layers": count for side, count in layers.items()},
        },
        GENERATION: {
            "alignment_heads": config.get("alignment_heads", []),
            "begin_suppress_tokens": config.get("suppress_ids_begin", []),
            "suppress_tokens": config.get("suppress_ids", []),
            "bos_token_id": tokens["<|endoftext|>"],
            "eos_token_id": tokens["<|endoftext|>"],
            "pad_token_id": tokens["<|endoftext|>"],
            "decoder_start_token_id": tokens["<|startoftranscript|>"],
            "no_timestamps_token_id": tokens["<|notimestamps|>"],
            "prev_sot_token_id": tokens["<|startofprev|>"],
            "is_multilingual": vocabulary >= 51865,  # the English models have one token less
            "lang_to_id": {text: id_ for id_, text in ids},
            "task_to_id": {task: tokens[f"<|{task}|>"] for task in ("transcribe", "translate")},
            "max_initial_timestamp_index": 50,
            "max_length": DECODER_POSITIONS,
            "return_timestamps": False,
        },
        PREPROCESSOR: {
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": bins,
            "sampling_rate": RATE,
            "hop_length": HOP,
            "n_fft": FFT,
            "chunk_length": SECONDS,
            "n_samples": SECONDS * RATE,
            "nb_max_frames": SECONDS * RATE // HOP,
        },
    }


def token_ids(source: Path) -> Mapping[str, int]:
    """Return the ids of the tokens that were added to the vocabulary. Raises LoadError."""
    added = json_object(source / TOKENIZER_FILE, needed=True).get("added_tokens", [])
    ids = {token["content"]: int(token["id"]) for token in added}
    required = ("<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>", "<|startofprev|>")
    for text in (*required, "<|transcribe|>", "<|translate|>"):
        if text not in ids:
            raise LoadError(f"has no token {text}", file=str(source / "tokenizer.json"))
    return ids


def _sizes(weights: Weights) -> tuple[int, int, int, dict[str, int], int]:
    """Return mel bins, positions of the audio, width, layers of each side, and tokens."""
    bins = weights.float32("model.encoder.conv1.weight").shape[1]
    frames, width = weights.float32("model.encoder.embed_positions.weight").shape
    layers = {side: _layers(weights, side) for side in ("encoder", "decoder")}
    return bins, frames, width, layers, weights.float32("model.decoder.embed_tokens.weight").shape[0]


def _layers(weights: Weights, side: str) -> int:
    count = 0
    while f"model.{side}.layers.{count}.fc1.weight" in weights:
        count += 1
    return count


DEFAULTS = {
    "unk_token": None,
    "continuing_subword_prefix": "",
    "end_of_word_suffix": "",
    "fuse_unk": False,
    "byte_fallback": False,
}
TIME_TOKEN_SECONDS = 0.02  # seconds between two tokens of time
TOKENIZER_FILE = "tokenizer.json"


def build_tokenizer(directory: Path, size: int) -> tuple[ov.Model, ov.Model]:
    """Return tokenizer and detokenizer. `size` is the model's number of tokens: the last ones are times,
    which some files do not list.

    Raises LoadError for a tokenizer that is not Whisper's.
    """
    file = directory / TOKENIZER_FILE
    try:
        described: dict[str, Any] = json.loads(file.read_text("utf-8"))
        kinds = (described["model"]["type"], described["pre_tokenizer"]["type"], described["decoder"]["type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LoadError(f"cannot be read: {error}", file=str(file)) from error
    if kinds != ("BPE", "ByteLevel", "ByteLevel"):
        raise LoadError(f"expected byte-level BPE, got {', '.join(kinds)}", file=str(file))
    described["model"] = DEFAULTS | described["model"]  # older files lack some
    added = described["added_tokens"]
    listed = max(token["id"] for token in added)
    for i, id_ in enumerate(range(listed + 1, size)):
        added.append({"id": id_, "content": f"<|{i * TIME_TOKEN_SECONDS:.2f}|>", "special": True})
    special = {token["id"]: token["content"] for token in added if token["special"]}
    pipeline = steps.TokenizerPipeline()
    pipeline.add_steps(steps.SpecialTokensSplit([steps.SpecialToken(token["content"]) for token in added]))
    pipeline.add_steps([steps.RegexSplitStep.byte_level_splitter(), steps.BytesToCharsStep()])
    pipeline.add_steps(steps.BPETokenizationStep.from_hf_json(described))
    pipeline.vocab = pipeline[-1].vocab
    # Texts are prompts: the library puts the special tokens around them itself.
    pipeline.add_steps(steps.CombineSegmentsStep([steps.Sequence()], add_special_tokens=False))
    ends = next((id_ for id_, text in special.items() if text == "<|endoftext|>"), 0)
    pipeline.add_steps(steps.PaddingStep(token="<|endoftext|>", _token_id=ends))
    pipeline.add_steps(
        steps.VocabDecoderStep.from_hf_json(
            tokenizer_json=described,
            pipeline_vocab=pipeline.vocab,
            skip_tokens=special,
            added_tokens={token["id"]: token["content"] for token in added},
            do_skip_tokens=True,
            is_byte_level=pipeline.is_byte_level,
        )
    )
    pipeline.add_steps([steps.CharsToBytesStep(), steps.UTF8ValidateStep(steps.UTF8ReplaceMode.REPLACE)])
    tokenizer = change_outputs_type(pipeline.get_tokenizer_ov_subgraph(), ov.Type.i64)
    return tokenizer, change_inputs_type(pipeline.get_detokenizer_ov_subgraph(), ov.Type.i64)


def convert(source: Path, directory: Path, *, int8: bool) -> None:
    """Write the four graphs, and the JSON files that SOURCE lacks. Raises LoadError."""
    weights = open_weights(source)
    files = model_files(source, weights)
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1) + "\n")
    config = files[CONFIG]
    tokenizers = build_tokenizer(source, int(config["vocab_size"]))
    for name, network in zip((TOKENIZER, DETOKENIZER), tokenizers, strict=True):
        ov.save_model(network, directory / name, compress_to_fp16=False)
    for name, network in zip((ENCODER, DECODER), build(weights, config, int8=int8), strict=True):
        ov.save_model(network, directory / name, compress_to_fp16=True)


if __name__ == "__main__":
    end_with(lambda *paths: convert(*paths, int8=sys.argv[3:] != ["fp16"]))
