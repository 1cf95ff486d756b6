"""Tensors of Whisper models by their Hugging Face names, from safetensors or from a CTranslate2 file.

Packages carry Whisper as CTranslate2's model.bin: a version, the name and the revision of a specification,
then tensors, each with a name, a shape, a type and its values, then aliases. It joins the matrices of an
attention block, which are split here.
Source: https://github.com/OpenNMT/CTranslate2 python/ctranslate2/specs/model_spec.py, read 2026-11-22
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ovserve.engine.model.safetensors import Tensors
from ovserve.errors import LoadError

Float = NDArray[np.float32]
TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
CT2_FILE, SAFETENSORS_FILE = "model.bin", "model.safetensors"
LARGEST_NAME, LARGEST_RANK = 1 << 12, 8


def open_weights(directory: Path) -> Weights:
    """Raises LoadError for a directory without weights in a known form."""
    if (directory / SAFETENSORS_FILE).is_file():
        return Tensors(directory / SAFETENSORS_FILE)
    if (directory / CT2_FILE).is_file():
        return CTranslate2Weights(directory / CT2_FILE)
    raise LoadError(f"has neither {SAFETENSORS_FILE} nor {CT2_FILE}", file=str(directory))


class _Reader:
    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from("<" + form, self._data, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def text(self) -> str:
        length = self.number("H")
        if not 0 < length <= LARGEST_NAME:
            raise ValueError(f"a name of {length} bytes")
        return bytes(self.take(length)[:-1]).decode()  # it ends with a zero byte

    def take(self, length: int) -> memoryview:
        end = self._at + length
        if end > len(self._data):
            raise ValueError("the file ends early")
        part, self._at = self._data[self._at : end], end
        return part


# Parts of a layer, by Hugging Face's names: the name there, and which matrix of how many it is.
PARTS = {
    "self_attn_layer_norm": ("self_attention/layer_norm", 0, 1),
    "self_attn.q_proj": ("self_attention/linear_0", 0, 3),
    "self_attn.k_proj": ("self_attention/linear_0", 1, 3),
    "self_attn.v_proj": ("self_attention/linear_0", 2, 3),
    "self_attn.out_proj": ("self_attention/linear_1", 0, 1),
    "encoder_attn_layer_norm": ("attention/layer_norm", 0, 1),
    "encoder_attn.q_proj": ("attention/linear_0", 0, 1),
    "encoder_attn.k_proj": ("attention/linear_1", 0, 2),
    "encoder_attn.v_proj": ("attention/linear_1", 1, 2),
    "encoder_attn.out_proj": ("attention/linear_2", 0, 1),
    "final_layer_norm": ("ffn/layer_norm", 0, 1),
    "fc1": ("ffn/linear_0", 0, 1),
    "fc2": ("ffn/linear_1", 0, 1),
}
OTHERS = {
    "embed_tokens.weight": "embeddings/weight",
    "embed_positions.weight": "position_encodings/encodings",
    **{f"layer_norm.{part}": f"layer_norm/{name}" for part, name in (("weight", "gamma"), ("bias", "beta"))},
    **{f"{conv}.{part}": f"{conv}/{part}" for conv in ("conv1", "conv2") for part in ("weight", "bias")},
}
_NAME = re.compile(r"model\.(encoder|decoder)\.(?:layers\.(\d+)\.(.+)\.(weight|bias)|(.+))")


class CTranslate2Weights:
    """A Whisper model in CTranslate2's form. Raises LoadError for another file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._raw = _tensors(_Reader(memoryview(np.memmap(file, np.uint8, mode="r").data)))
        except (struct.error, ValueError, IndexError, KeyError) as error:
            raise LoadError(f"not a CTranslate2 model: {error}", file=str(file)) from error

    def __contains__(self, name: str) -> bool:
        return self._find(name)[0] in self._raw

    def float32(self, name: str) -> Float:
        there, index, count = self._find(name)
        if there not in self._raw:
            raise LoadError(f"tensor {name!r} is missing", file=str(self._file))
        values = np.asarray(self._raw[there], np.float32)
        if self._raw[there].dtype == np.int8:
            scale = np.asarray(self._raw[there + "_scale"], np.float32)
            values = values / (scale[:, None] if scale.size > 1 else scale)
        return np.ascontiguousarray(np.split(values, count)[index])

    def _find(self, name: str) -> tuple[str, int, int]:
        """Return the name of a tensor in the file, and which part of how many it is; "" if there is none."""
        match = _NAME.fullmatch(name)
        if match is None:
            return "", 0, 1
        side, layer, part, kind, other = match.groups()
        if layer is None:
            return f"{side}/{OTHERS.get(other, '')}", 0, 1
        if part not in PARTS or (part.endswith("k_proj") and kind == "bias"):  # Whisper's keys have no bias
            return "", 0, 1
        there, index, count = PARTS[part]
        if part.endswith("norm"):
            kind = "gamma" if kind == "weight" else "beta"
        return f"{side}/layer_{layer}/{there}/{kind}", index, count


def _tensors(reader: _Reader) -> dict[str, NDArray[Any]]:
    reader.number("I")  # of the binary form
    spec = reader.text()
    if spec != "WhisperSpec":
        raise ValueError(f"it holds a {spec}")
    reader.number("I")  # revision of the specification
    tensors: dict[str, NDArray[Any]] = {}
    for _ in range(reader.number("I")):
        name = reader.text()
        rank = reader.number("B")
        if rank > LARGEST_RANK:
            raise ValueError(f"{name} has {rank} dimensions")
        shape = [reader.number("I") for _ in range(rank)]
        kind = TYPES[reader.number("B")]
        tensors[name] = np.frombuffer(reader.take(reader.number("I")), kind).reshape(shape)
    for _ in range(reader.number("I")):
        alias = reader.text()
        tensors[alias] = tensors[reader.text()]
    return tensors


Weights = Tensors | CTranslate2Weights
