"""Query, key and value as one matrix product: the same numbers, in every form that weights have."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from ovserve.kinds.text.worker.genai.convert import Merger

pytestmark = pytest.mark.long

WIDTH, HEAD, GROUP = 64, 16, 32
HEADS = {"q": 4, "k": 2, "v": 2}
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}


class Layer:
    """An attention layer, and next to it two products of the same input that stay apart."""

    def __init__(self, kinds: dict[str, str], *, bias: bool = False) -> None:
        self._random = np.random.default_rng(0)
        self.held: list[Any] = []  # what the model only points to
        given = ops.parameter([-1, -1, WIDTH], ov.Type.f32, name="x")
        reached = [self._heads(given, name, kinds[name], bias=bias) for name in HEADS]
        mixed = ops.scaled_dot_product_attention(*reached, causal=True)
        gate, up = (self._product(given, f"{name}_proj", WIDTH, "f16") for name in ("gate", "up"))
        self.model = ov.Model([ops.result(mixed), ops.result(ops.multiply(gate, up))], [given], "layer")

    def _heads(self, given: Any, name: str, kind: str, *, bias: bool) -> Any:
        rows = HEADS[name] * HEAD
        made = self._product(given, f"{name}_proj", rows, kind)
        if bias:
            made = ops.add(made, ops.constant(self._random.normal(size=(1, 1, rows)).astype(np.float32)))
        heads = ops.transpose(ops.reshape(made, [0, 0, HEADS[name], HEAD], special_zero=True), [0, 2, 1, 3])
        return heads if name == "q" else ops.tile(heads, [1, HEADS["q"] // HEADS[name], 1, 1])

    def _product(self, given: Any, name: str, rows: int, kind: str) -> Any:
        made = ops.matmul(given, self._weights(rows, kind), False, True)
        made.set_friendly_name(f"__module.model.layers.0.self_attn.{name}/MatMul")
        return made

    def _weights(self, rows: int, kind: str) -> Any:
        if kind == "f16":
            values = self._random.normal(0, 0.1, (rows, WIDTH)).astype(np.float16)
            return ops.convert(ops.constant(values), "f32")
        grouped = not kind.endswith("row")
        type_ = getattr(ov.Type, kind.removesuffix("row"))
        shape = [rows, WIDTH // GROUP, GROUP] if grouped else [rows, WIDTH]
        scale_shape = [*shape[:-1], 1]
        made = ops.convert(self._packed(shape, type_), "f16")
        if kind.startswith("u"):
            made = ops.subtract(made, ops.convert(self._packed(scale_shape, type_), "f16"))
        scale = self._random.uniform(0.01, 0.02, scale_shape).astype(np.float16)
        made = ops.multiply(made, ops.constant(scale))
        if grouped:
            made = ops.reshape(made, [rows, WIDTH], special_zero=False)
        return ops.convert(made, "f32")

    def _packed(self, shape: list[int], type_: ov.Type) -> Any:
        data = self._random.integers(0, 256, int(np.prod(shape)) * type_.bitwidth // 8, np.uint8)
        self.held.append(data)
        return ops.constant(ov.Tensor(data, ov.Shape(shape), type_))


def outputs(model: ov.Model) -> list[Any]:
    x = np.random.default_rng(1).normal(size=(2, 5, WIDTH)).astype(np.float32)
    found = ov.Core().compile_model(model, "CPU", EXACT)(x)
    return [np.array(found[i]) for i in range(2)]


def products(model: ov.Model) -> list[str]:
    return [n.get_friendly_name() for n in model.get_ordered_ops() if n.get_type_name() == "MatMul"]


@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("kind", ["u4", "i4", "u8", "i8", "i8row", "f16"])
def test_three_products_become_one(kind: str, bias: bool) -> None:
    layer = Layer(dict.fromkeys(HEADS, kind), bias=bias)
    before = outputs(layer.model)
    merger = Merger(layer.model)
    assert merger.merge() == 2
    names = products(layer.model)
    assert len(names) == 3
    assert "__module.model.layers.0.self_attn.qkv_proj/MatMul" in names
    for was, now in zip(before, outputs(layer.model), strict=True):
        np.testing.assert_allclose(now, was, rtol=1e-5, atol=1e-5)
    additions = [n for n in layer.model.get_ordered_ops() if n.get_type_name() == "Add"]
    assert len(additions) == bias
    assert merger.merge() == 0


def test_a_value_of_another_form_stays_apart() -> None:
    """As in files of mixed types, such as Q4_K_M."""
    layer = Layer({"q": "u4", "k": "u4", "v": "u8"}, bias=True)
    before = outputs(layer.model)
    merger = Merger(layer.model)
    assert merger.merge() == 1
    assert {name.rpartition(".")[2] for name in products(layer.model)} == {
        *("qk_proj/MatMul", "v_proj/MatMul", "gate_proj/MatMul", "up_proj/MatMul")
    }
    for was, now in zip(before, outputs(layer.model), strict=True):
        np.testing.assert_allclose(now, was, rtol=1e-5, atol=1e-5)


def test_a_model_without_such_layers_is_left_alone() -> None:
    layer = Layer({"q": "u4", "k": "u8", "v": "f16"})
    merger = Merger(layer.model)
    assert merger.merge() == 0
    assert len(products(layer.model)) == 5
