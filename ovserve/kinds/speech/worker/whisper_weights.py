"""Tensors of Whisper models by their Hugging Face names, from safetensors or from a CTranslate2 file.

Packages carry Whisper as CTranslate2's model.bin: a version, the name and the revision of a specification,
then tensors, each with a name, a shape, a type and its values, then aliases. It joins the matrices of an
attention block, which are split here.
Source: https://github.com/OpenNMT/CTranslate2 python/ctranslate2/specs/model_spec.py, read 2026-11-22
"""

from __future__ import annotations

import struct
from collections.abc import Callable
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


class CTranslate2Weights:
    """A Whisper model in CTranslate2's form. Raises LoadError for another file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        try:
            self._raw = _tensors(_Reader(memoryview(np.memmap(file, np.uint8, mode="r").data)))
        except (struct.error, ValueError, IndexError, KeyError) as error:
            raise LoadError(f"not a CTranslate2 model: {error}", file=str(file)) from error
        self._names = dict(self._table())

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def float32(self, name: str) -> Float:
        if name not in self._names:
            raise LoadError(f"tensor {name!r} is missing", file=str(self._file))
        return np.ascontiguousarray(self._names[name]())

    def _plain(self, name: str) -> Float:
        values = np.asarray(self._raw[name], np.float32)
        if self._raw[name].dtype == np.int8:
            scale = np.asarray(self._raw[name + "_scale"], np.float32)
            values = values / (scale[:, None] if scale.size > 1 else scale)
        return values

    def _part(self, name: str, index: int, count: int) -> Float:
        return np.split(self._plain(name), count)[index]

    def _table(self) -> Any:
        """Yield each Hugging Face name with the function that makes the tensor."""
        for side in ("encoder", "decoder"):
            prefix = f"model.{side}."
            if side == "encoder":
                for conv in ("conv1", "conv2"):
                    yield from self._pairs(prefix + conv, f"encoder/{conv}")
            else:
                yield prefix + "embed_tokens.weight", self._of("decoder/embeddings/weight")
            yield prefix + "embed_positions.weight", self._of(f"{side}/position_encodings/encodings")
            yield from self._norm(prefix + "layer_norm", f"{side}/layer_norm")
            layer = 0
            while f"{side}/layer_{layer}/ffn/linear_0/weight" in self._raw:
                yield from self._layer(
                    f"{side}/layer_{layer}/", f"{prefix}layers.{layer}.", side == "decoder"
                )
                layer += 1

    def _layer(self, here: str, there: str, cross: bool) -> Any:
        yield from self._norm(there + "self_attn_layer_norm", here + "self_attention/layer_norm")
        yield from self._joined(there + "self_attn.", here + "self_attention/linear_0", "qkv")
        yield from self._pairs(there + "self_attn.out_proj", here + "self_attention/linear_1")
        if cross:
            yield from self._norm(there + "encoder_attn_layer_norm", here + "attention/layer_norm")
            yield from self._joined(there + "encoder_attn.", here + "attention/linear_0", "q")
            yield from self._joined(there + "encoder_attn.", here + "attention/linear_1", "kv")
            yield from self._pairs(there + "encoder_attn.out_proj", here + "attention/linear_2")
        yield from self._norm(there + "final_layer_norm", here + "ffn/layer_norm")
        yield from self._pairs(there + "fc1", here + "ffn/linear_0")
        yield from self._pairs(there + "fc2", here + "ffn/linear_1")

    def _of(self, name: str) -> Callable[[], Float]:
        return lambda: self._plain(name)

    def _pairs(self, there: str, here: str) -> Any:
        for part in ("weight", "bias"):
            yield f"{there}.{part}", self._of(f"{here}/{part}")

    def _norm(self, there: str, here: str) -> Any:
        yield there + ".weight", self._of(here + "/gamma")
        yield there + ".bias", self._of(here + "/beta")

    def _joined(self, there: str, here: str, matrices: str) -> Any:
        for i, which in enumerate(matrices):
            for part in ("weight", "bias"):
                if which != "k" or part == "weight":  # Whisper's keys have no bias
                    name, count = f"{here}/{part}", len(matrices)
                    yield (
                        f"{there}{which}_proj.{part}",
                        lambda name=name, i=i, count=count: self._part(name, i, count),
                    )


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
