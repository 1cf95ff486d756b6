"""The JSON files of a Whisper model that a CTranslate2 directory does not have, made of those that it has.

Its config.json lists tokens and attention heads; sizes are those of the tensors, and ids those of the
tokenizer. All Whisper models share the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ovserve.errors import LoadError
from ovserve.kinds.speech.worker.whisper_weights import CTranslate2Weights, Weights

CONFIG, GENERATION, PREPROCESSOR = "config.json", "generation_config.json", "preprocessor_config.json"
HEAD_SIZE = 64  # of all Whisper models
RATE, HOP, FFT, SECONDS = 16_000, 160, 400, 30
DECODER_POSITIONS = 448  # of the decoder


def model_files(source: Path, weights: Weights) -> dict[str, dict[str, Any]]:
    """Return the JSON files by name: those of the directory, or made ones. Raises LoadError."""
    config = _read(source / CONFIG)
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
    added = _read(source / "tokenizer.json").get("added_tokens", [])
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


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot be read: {error}", file=str(file)) from error
    if not isinstance(content, dict):
        raise LoadError("is not a JSON object", file=str(file))
    return content
