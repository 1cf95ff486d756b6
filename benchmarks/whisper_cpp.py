"""Whisper for whisper.cpp: weights in CTranslate2's form become a ggml file. For `benchmarks/speech.py`.

A ggml file has a magic number and eleven sizes, the mel filters, the vocabulary as bytes, then tensors by
their names in OpenAI's code. Matrices are blocks of 32 values with 8 bits and a 16-bit scale (Q8_0).
Source: https://github.com/ggml-org/whisper.cpp models/README.md, read 2026-11-23
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ovserve.kinds.speech.worker.whisper_weights import Weights, open_weights

Float = NDArray[np.float32]
MAGIC, VERSION, FILE_Q8, F32, F16, Q8 = 0x67676D6C, 2, 7, 0, 1, 8
RATE, FFT, BINS, BLOCK, HEAD = 16_000, 400, 80, 32, 64
PARTS = {
    "self_attn.q_proj": "attn.query",
    "self_attn.k_proj": "attn.key",
    "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out",
    "self_attn_layer_norm": "attn_ln",
    "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.k_proj": "cross_attn.key",
    "encoder_attn.v_proj": "cross_attn.value",
    "encoder_attn.out_proj": "cross_attn.out",
    "encoder_attn_layer_norm": "cross_attn_ln",
    "fc1": "mlp.0",
    "fc2": "mlp.2",
    "final_layer_norm": "mlp_ln",
}


def write_ggml(source: Path, target: Path) -> None:
    """Write the file. `source` has the weights and tokenizer.json. Raises LoadError."""
    weights = open_weights(source)
    layers = {side: _layers(weights, side) for side in ("encoder", "decoder")}
    audio, width = weights.float32("model.encoder.embed_positions.weight").shape
    text = weights.float32("model.decoder.embed_positions.weight").shape[0]
    vocabulary = weights.float32("model.decoder.embed_tokens.weight").shape[0]
    heads = width // HEAD
    sizes = (vocabulary, audio, width, heads, layers["encoder"], text, width, heads, layers["decoder"], BINS)
    with target.open("wb") as out:
        out.write(struct.pack("<12i", MAGIC, *sizes, 1000 * VERSION + FILE_Q8))
        out.write(struct.pack("<2i", BINS, FFT // 2 + 1))
        out.write(mel_filters().tobytes())
        tokens = _vocabulary(source)
        out.write(struct.pack("<i", len(tokens)))
        for token in tokens:
            out.write(struct.pack("<i", len(token)) + token)
        for name, values in _tensors(weights, layers):
            _write(out, name, values)


def mel_filters() -> Float:
    """[BINS, FFT / 2 + 1]: triangles of equal area, even on Slaney's mel scale from 0 to 8 kHz."""

    def hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * np.log(6.4) / 27))

    top = 15 + np.log(RATE / 2 / 1000) * 27 / np.log(6.4)
    edges = hertz(np.linspace(0, top, BINS + 2))
    frequencies = np.linspace(0, RATE / 2, FFT // 2 + 1)
    slopes = edges[:, None] - frequencies[None]
    width = np.diff(edges)
    rising, falling = -slopes[:-2] / width[:-1, None], slopes[2:] / width[1:, None]
    filters = np.maximum(0, np.minimum(rising, falling)) * (2 / (edges[2:] - edges[:-2]))[:, None]
    return filters.astype(np.float32)


def _layers(weights: Weights, side: str) -> int:
    return next(i for i in range(100) if f"model.{side}.layers.{i}.fc1.weight" not in weights)


def _vocabulary(source: Path) -> list[bytes]:
    """The tokens without the special ones, as bytes in the order of their ids."""
    known: dict[str, int] = json.loads((source / "tokenizer.json").read_text("utf-8"))["model"]["vocab"]
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [value for value in range(256) if value not in set(plain)]
    value_of = {chr(value): value for value in plain} | {chr(256 + i): v for i, v in enumerate(others)}
    texts = sorted(known, key=known.__getitem__)
    return [bytes(value_of[c] for c in text) for text in texts if not text.startswith("<|")]


def _tensors(weights: Weights, layers: dict[str, int]) -> Iterator[tuple[str, Float]]:
    for side, count in layers.items():
        model = f"model.{side}."
        yield f"{side}.positional_embedding", weights.float32(model + "embed_positions.weight")
        if side == "encoder":
            for name in ("conv1", "conv2"):
                yield f"encoder.{name}.weight", weights.float32(f"{model}{name}.weight")
                yield f"encoder.{name}.bias", weights.float32(f"{model}{name}.bias")[:, None]
        else:
            yield "decoder.token_embedding.weight", weights.float32(model + "embed_tokens.weight")
        for layer in range(count):
            for there, here in PARTS.items():
                for kind in ("weight", "bias"):
                    name = f"{model}layers.{layer}.{there}.{kind}"
                    if name in weights:
                        yield f"{side}.blocks.{layer}.{here}.{kind}", weights.float32(name)
        last = "ln_post" if side == "encoder" else "ln"
        for kind in ("weight", "bias"):
            yield f"{side}.{last}.{kind}", weights.float32(f"{model}layer_norm.{kind}")


def _write(out: BinaryIO, name: str, values: Float) -> None:
    matrix = values.ndim == 2 and name.endswith("weight")
    kind = Q8 if matrix else F16 if values.ndim == 3 else F32
    encoded = name.encode()
    out.write(struct.pack("<3i", values.ndim, len(encoded), kind))
    out.write(struct.pack(f"<{values.ndim}i", *reversed(values.shape)))
    out.write(encoded)
    out.write(
        _blocks(values) if matrix else values.astype(np.float16 if kind == F16 else np.float32).tobytes()
    )


def _blocks(values: Float) -> bytes:
    rows = values.reshape(-1, BLOCK)
    scale = np.abs(rows).max(1, keepdims=True) / 127
    packed = np.rint(rows / np.where(scale == 0, 1, scale)).astype(np.int8)
    form = np.dtype([("scale", "<f2"), ("values", "i1", BLOCK)])
    blocks = np.zeros(len(rows), form)
    blocks["scale"], blocks["values"] = scale[:, 0].astype(np.float16), packed
    return blocks.tobytes()
