"""The output layer in int8 per row: nearly the same logits, from every form that is finer, and only from
those."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from ovserve.kinds.text.worker.genai import convert
from ovserve.kinds.text.worker.genai.convert import OutputLayer, quantised

ROWS, WIDTH, GROUP = 70, 64, 32
EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
HELD: list[Any] = []  # models only point to their weights


def weights(kind: str) -> Any:
    random = np.random.default_rng(0)
    if kind in ("f32", "f16", "bf16"):
        values = ops.constant(random.normal(0, 0.1, (ROWS, WIDTH)).astype(np.float32), dtype=_type(kind))
        return values if kind == "f32" else ops.convert(values, "f32")
    type_ = _type(kind.removesuffix("row"))
    shape = [ROWS, WIDTH] if kind.endswith("row") else [ROWS, WIDTH // GROUP, GROUP]
    HELD.append(random.integers(0, 256, ROWS * WIDTH * type_.bitwidth // 8, np.uint8))
    made = ops.convert(ops.constant(ov.Tensor(HELD[-1], ov.Shape(shape), type_)), "f16")
    if kind.startswith("u"):
        made = ops.subtract(made, ops.constant(np.full((1,) * len(shape), 7, np.float16)))
    scales = random.uniform(0.001, 0.002, [*shape[:-1], 1]).astype(np.float16)
    made = ops.multiply(made, ops.constant(scales))
    return ops.convert(ops.reshape(made, [ROWS, WIDTH], special_zero=False), "f32")


def _type(name: str) -> ov.Type:
    found: ov.Type = getattr(ov.Type, name)
    return found


def network(weight: Any, *, tied: bool = False) -> ov.Model:
    given = ops.parameter([-1, -1], ov.Type.i32, name="ids")
    random = np.random.default_rng(1)
    table = weight if tied else ops.constant(random.normal(size=(ROWS, WIDTH)).astype(np.float32))
    hidden = ops.tanh(ops.matmul(ops.gather(table, given, 0), np.eye(WIDTH, dtype=np.float32), False, True))
    product = ops.matmul(hidden, weight, False, True)
    product.set_friendly_name("lm_head")
    return ov.Model([ops.result(product)], [given], "m")


def logits(model: ov.Model) -> Any:
    ids = np.arange(10, dtype=np.int32).reshape(2, 5)
    return np.array(ov.Core().compile_model(model, "CPU", EXACT)(ids)[0])


def last_constant(model: ov.Model) -> Any:
    (product,) = (n for n in model.get_ops() if n.get_friendly_name() == "lm_head")
    node = product.input_value(1).get_node()
    while node.get_type_name() != "Constant":
        node = node.input_value(0).get_node()
    return node


@pytest.mark.parametrize("tied", [False, True], ids=["apart", "tied"])
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "u8", "i8"])
def test_finer_weights_become_int8_per_row(kind: str, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convert, "CHUNK_ROWS", 16)  # the last chunk is smaller
    model = network(weights(kind), tied=tied)
    before = logits(model)
    layer = OutputLayer(model)
    assert layer.quantise()
    made = last_constant(model)
    assert (made.get_element_type(), list(made.get_output_shape(0))) == (ov.Type.i8, [ROWS, WIDTH])
    after = logits(model)
    assert 0 < np.abs(after - before).max() < 0.01 * np.abs(before).max()
    if tied:  # the embedding keeps its weights
        kinds = {n.get_element_type() for n in model.get_ops() if n.get_type_name() == "Constant"}
        assert _type(kind) in kinds
    assert not layer.quantise()


@pytest.mark.parametrize("kind", ["u4", "i4", "i8row", "u8row"])
def test_other_weights_stay(kind: str) -> None:
    model = network(weights(kind))
    before = logits(model)
    assert not OutputLayer(model).quantise()
    np.testing.assert_array_equal(logits(model), before)


def test_a_model_whose_result_is_not_a_product_by_weights_stays() -> None:
    given = ops.parameter([-1, 4], ov.Type.f32, name="x")
    added = ov.Model([ops.result(ops.add(given, given))], [given], "m")
    assert not OutputLayer(added).quantise()
    square = ov.Model([ops.result(ops.matmul(given, given, False, True))], [given], "m")
    assert not OutputLayer(square).quantise()


def test_every_weight_is_within_half_a_step() -> None:
    made = np.random.default_rng(2).normal(size=(9, 50)).astype(np.float32)
    made[3] = 0
    made[4] *= 1e-30
    values, scales = quantised(made)
    assert np.all(np.abs(values * scales - made) <= scales / 2 * 1.001)
    assert values.min() == -127 or values.max() == 127
    assert not values[3].any()
