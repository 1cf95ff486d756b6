"""`python -m ovserve.kinds.encoders.worker.convert SOURCE DIRECTORY`: safetensors to OpenVINO IR.

SOURCE has config.json and model.safetensors. It is a process of its own, because the command never imports
OpenVINO.

The graph is built from the tensors, without torch. Families: BERT, RoBERTa and XLM-RoBERTa, and MPNet, with
or without the head of a sequence classifier. The three matrices of an attention block are one here: an
inference with few tokens waits less for memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as op

from ovserve.engine.model.files import end_with
from ovserve.engine.model.safetensors import Tensors
from ovserve.errors import LoadError
from ovserve.kinds.encoders.spec import MODEL

Node = Any  # an output of OpenVINO's graph; the library has no usable types
ACTIVATIONS = {"gelu": "ERF", "gelu_new": "TANH", "gelu_pytorch_tanh": "TANH"}
MPNET_BUCKETS, MPNET_DISTANCE = 32, 128


class Family(msgspec.Struct, frozen=True):
    """Tensor names of one family; `{}` is the layer."""

    prefix: str
    word: str = "embeddings.word_embeddings.weight"
    position: str = "embeddings.position_embeddings.weight"
    types: str = "embeddings.token_type_embeddings.weight"
    norm: str = "embeddings.LayerNorm"
    layer: str = "encoder.layer.{}."
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    out: str = "attention.output.dense"
    out_norm: str = "attention.output.LayerNorm"
    first: str = "intermediate.dense"
    second: str = "output.dense"
    second_norm: str = "output.LayerNorm"
    positions_from_mask: bool = False  # they begin behind the padding id and skip padding
    relative: str = ""  # a table of attention biases by distance


FAMILIES = {
    "bert": Family("bert."),
    "roberta": Family("roberta.", positions_from_mask=True),
    "xlm-roberta": Family("roberta.", positions_from_mask=True),
    "mpnet": Family(
        "mpnet.",
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        out="attention.attn.o",
        out_norm="attention.LayerNorm",
        positions_from_mask=True,
        relative="encoder.relative_attention_bias.weight",
    ),
}


def build(tensors: Tensors, config: Mapping[str, Any]) -> ov.Model:
    """Return the model: `last_hidden_state` [batch, tokens, hidden], or `logits` [batch, labels] with a head.

    Raises LoadError for another architecture.
    """
    kind = str(config.get("model_type"))
    if kind not in FAMILIES:
        raise LoadError(f"model_type {kind!r} cannot be converted; known: {', '.join(FAMILIES)}")
    if config.get("position_embedding_type", "absolute") != "absolute":
        raise LoadError(f"position_embedding_type {config['position_embedding_type']!r} cannot be converted")
    return _Builder(tensors, config, FAMILIES[kind]).model()


class _Builder:
    def __init__(self, tensors: Tensors, config: Mapping[str, Any], family: Family) -> None:
        self._tensors, self._config, self._family = tensors, config, family
        self._prefix = family.prefix if family.prefix + family.word in tensors else ""
        self._heads = int(config["num_attention_heads"])
        self._width = int(config["hidden_size"])
        self._epsilon = float(config.get("layer_norm_eps", 1e-12))
        activation = str(config.get("hidden_act", "gelu"))
        if activation not in ACTIVATIONS:
            raise LoadError(f"hidden_act {activation!r} cannot be converted; known: {', '.join(ACTIVATIONS)}")
        self._gelu = ACTIVATIONS[activation]

    def model(self) -> ov.Model:
        self._ids, self._mask = self._input("input_ids"), self._input("attention_mask")
        inputs = [self._ids, self._mask]
        x = self._embedded(inputs)
        mask = self._attention_mask()
        for layer in range(int(self._config["num_hidden_layers"])):
            x = self._layer(x, mask, self._family.layer.format(layer))
        name, result = self._head(x)
        result.output(0).set_names({name})
        model = ov.Model([op.result(result)], inputs, f"{self._config['model_type']}_encoder")
        model.set_rt_info("ovserve", "converted_by")
        return model

    # ---- parts

    def _embedded(self, inputs: list[Node]) -> Node:
        family, words = self._family, self._weight(self._family.word)
        x = op.gather(words, self._ids, op.constant(0))
        x = op.add(x, op.gather(self._weight(family.position), self._positions(), op.constant(0)))
        if self._prefix + family.types in self._tensors:
            table = self._tensors.float32(self._prefix + family.types)
            if table.shape[0] > 1:
                types = self._input("token_type_ids")
                inputs.append(types)
                x = op.add(x, op.gather(op.constant(table), types, op.constant(0)))
            else:
                x = op.add(x, op.constant(table[None]))
        return self._norm(x, family.norm)

    def _positions(self) -> Node:
        if self._family.positions_from_mask:
            padding = op.constant(np.int64(self._config.get("pad_token_id", 1)))
            counted = op.cum_sum(self._mask, op.constant(1))
            return op.add(op.multiply(counted, self._mask), padding)
        return op.unsqueeze(self._range(), op.constant(0))

    def _range(self) -> Node:
        length = op.gather(op.shape_of(self._ids), op.constant(1), op.constant(0))
        return op.range(op.constant(np.int64(0)), length, op.constant(np.int64(1)), output_type=ov.Type.i64)

    def _attention_mask(self) -> Node:
        """Zero where a token may be attended to, else a large negative number: [batch, 1 or heads, 1 or
        tokens, tokens]."""
        visible = op.unsqueeze(op.convert(self._mask, ov.Type.f32), op.constant(np.array([1, 2])))
        hidden = op.multiply(op.subtract(op.constant(np.float32(1)), visible), op.constant(np.float32(-1e4)))
        if not self._family.relative:
            return hidden
        positions = self._range()
        distance = op.subtract(
            op.unsqueeze(positions, op.constant(0)), op.unsqueeze(positions, op.constant(1))
        )
        table = self._tensors.float32(self._prefix + self._family.relative)
        most = int(self._config["max_position_embeddings"])
        values = table[_buckets(np.arange(1 - most, most))]
        index = op.add(distance, op.constant(np.int64(most - 1)))
        bias = op.gather(op.constant(values), index, op.constant(0))
        bias = op.unsqueeze(op.transpose(bias, op.constant(np.array([2, 0, 1]))), op.constant(0))
        return op.add(hidden, bias)

    def _layer(self, x: Node, mask: Node, layer: str) -> Node:
        family = self._family
        names = [layer + n for n in (family.query, family.key, family.value)]
        weight = np.concatenate([self._tensor(n + ".weight") for n in names])
        bias = np.concatenate([self._tensor(n + ".bias") for n in names])
        joined = op.add(op.matmul(x, op.constant(weight), False, True), op.constant(bias))
        size = self._width // self._heads
        # [batch, tokens, 3, heads, size] to three of [batch, heads, tokens, size]
        split = op.reshape(joined, op.constant(np.array([0, 0, 3, self._heads, size])), True)
        split = op.transpose(split, op.constant(np.array([2, 0, 3, 1, 4])))
        q, k, v = (op.gather(split, op.constant(i), op.constant(0)) for i in range(3))
        mixed = op.scaled_dot_product_attention(q, k, v, mask)
        mixed = op.transpose(mixed, op.constant(np.array([0, 2, 1, 3])))
        mixed = op.reshape(mixed, op.constant(np.array([0, 0, self._width])), True)
        x = self._norm(op.add(self._dense(mixed, layer + family.out), x), layer + family.out_norm)
        inner = op.gelu(self._dense(x, layer + family.first), self._gelu)
        return self._norm(op.add(self._dense(inner, layer + family.second), x), layer + family.second_norm)

    def _head(self, x: Node) -> tuple[str, Node]:
        """The classifier of a reranker, if there is one."""
        first = op.gather(x, op.constant(0), op.constant(1))
        if "classifier.out_proj.weight" in self._tensors:  # RoBERTa's
            inner = op.tanh(self._dense(first, "classifier.dense", ""))
            return "logits", self._dense(inner, "classifier.out_proj", "")
        if "classifier.weight" in self._tensors:
            inner = op.tanh(self._dense(first, "pooler.dense"))
            return "logits", self._dense(inner, "classifier", "")
        return "last_hidden_state", x

    # ---- small ones

    def _input(self, name: str) -> Node:
        parameter = op.parameter([-1, -1], ov.Type.i64, name)
        parameter.output(0).set_names({name})
        return parameter

    def _tensor(self, name: str) -> NDArray[np.float32]:
        return self._tensors.float32(self._prefix + name)

    def _weight(self, name: str) -> Node:
        return op.constant(self._tensor(name))

    def _dense(self, x: Node, name: str, prefix: str | None = None) -> Node:
        full = (self._prefix if prefix is None else prefix) + name
        weight, bias = (self._tensors.float32(f"{full}.{part}") for part in ("weight", "bias"))
        return op.add(op.matmul(x, op.constant(weight), False, True), op.constant(bias))

    def _norm(self, x: Node, name: str) -> Node:
        mvn = op.mvn(x, op.constant(np.array([-1])), True, self._epsilon, "inside_sqrt")
        scaled = op.multiply(mvn, self._weight(name + ".weight"))
        return op.add(scaled, self._weight(name + ".bias"))


def _buckets(distance: NDArray[np.int64]) -> NDArray[np.int64]:
    """MPNet's bucket of each distance: half of them for each direction, and logarithmic from a quarter on."""
    half = MPNET_BUCKETS // 2
    exact = half // 2
    away = np.abs(distance)
    with np.errstate(divide="ignore"):
        scaled = np.log(away / exact) / math.log(MPNET_DISTANCE / exact) * (half - exact)
    far = np.minimum(exact + np.where(away > 0, scaled, 0).astype(np.int64), half - 1)
    return np.where(distance > 0, half, 0) + np.where(away < exact, away, far)


def convert(source: Path, directory: Path) -> None:
    """Weights stay float32: the device chooses its own precision at load. Raises LoadError."""
    config = json.loads((source / "config.json").read_text("utf-8"))
    model = build(Tensors(source / "model.safetensors"), config)
    ov.save_model(model, directory / MODEL, compress_to_fp16=False)


if __name__ == "__main__":
    end_with(convert)
