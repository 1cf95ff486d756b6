"""Mixtures of experts in the form that optimum-intel 2.2 exports of transformers' Qwen3-MoE, against OpenVINO's own
kernels with the same weights."""

from __future__ import annotations

import numpy as np
import openvino
import pytest
from openvino import opset13 as ops

from ovserve.engine.host.cpu import processor
from ovserve.kinds.text.worker.kernels.library import open_library
from ovserve.kinds.text.worker.kernels.matmul import has_experts, replace_products
from tests.engine.kernels.test_packed_matmul import EXACT, MOST_ROUNDING

EXPERTS, USED, WIDTH, INNER = 8, 2, 128, 64


def numbers(*values: int) -> openvino.Node:
    return ops.constant(np.array(values, np.int64))


def matrix(random: np.random.Generator, *shape: int, quantised: bool) -> openvino.Node:
    """As nncf compresses it in 8 bits, with a scale and a zero point for each row; or floats."""
    if not quantised:
        return ops.constant(random.standard_normal(shape).astype(np.float32))
    rows = (*shape[:-1], 1)
    values = ops.convert(ops.constant(random.integers(0, 256, shape, np.uint8)), "f16")
    zeros = ops.convert(ops.constant(random.integers(120, 137, rows, np.uint8)), "f16")
    scales = ops.constant(random.uniform(0.5, 1, rows).astype(np.float16) / 128)
    return ops.convert(ops.multiply(ops.subtract(values, zeros), scales), "f32")


def mixture(*, quantised: bool = True) -> openvino.Model:
    random = np.random.default_rng(4)
    tokens = ops.parameter([-1, WIDTH], np.float32)
    scores = ops.softmax(ops.matmul(tokens, matrix(random, EXPERTS, WIDTH, quantised=False), False, True), 1)
    best, indices = ops.topk(scores, np.int64(USED), -1, "max", "value", "i32").outputs()
    ids = ops.convert(indices, "i64")
    every = ops.concat([ops.gather(ops.shape_of(ids), numbers(0), np.int64(0)), numbers(EXPERTS)], 0)
    divided = ops.divide(best, ops.reduce_sum(best, numbers(-1), True))
    shares = ops.slice(divided, numbers(0, 0), ops.shape_of(ids), numbers(1, 1), numbers(0, 1))
    none = ops.broadcast(ops.constant(np.float32(0)), every)
    spread = ops.transpose(ops.scatter_elements_update(none, ids, shares, np.int64(1)), numbers(1, 0))
    copies = ops.reshape(ops.tile(tokens, numbers(EXPERTS, 1)), numbers(EXPERTS, -1, WIDTH), False)
    gate, up = (matrix(random, EXPERTS, INNER, WIDTH, quantised=quantised) for _ in range(2))
    active = ops.multiply(
        ops.swish(ops.matmul(copies, gate, False, True)), ops.matmul(copies, up, False, True)
    )
    outputs = ops.matmul(active, matrix(random, EXPERTS, WIDTH, INNER, quantised=quantised), False, True)
    weights = ops.unsqueeze(ops.reshape(spread, numbers(EXPERTS, 0), True), numbers(-1))
    product = ops.multiply(ops.reshape(outputs, numbers(EXPERTS, 0, WIDTH), True), weights)
    return openvino.Model([ops.result(ops.reduce_sum(product, numbers(0), False))], [tokens])


@pytest.mark.skipif(
    not processor().has_kernels and "amx_bf16" not in processor().flags, reason="the processor has no AVX2"
)
def test_our_kernels_compute_them() -> None:
    model, core = mixture(), openvino.Core()
    exact = core.compile_model(model, "CPU", EXACT)
    replaced = model.clone()
    assert replace_products(replaced, open_library()) > 0
    kinds = [node.get_type_name() for node in replaced.get_ops()]
    assert kinds.count("PackedExperts") == 3
    assert (
        kinds.count("MatMul") == 1
    )  # of the router, in floats, so that rounding does not choose other experts
    ours = core.compile_model(replaced, "CPU", EXACT)
    for count in (1, 5, 80):
        tokens = np.random.default_rng(count).standard_normal((count, WIDTH)).astype(np.float32)
        expected, result = exact(tokens)[0], ours(tokens)[0]
        error = np.linalg.norm(result - expected, axis=1) / np.linalg.norm(expected, axis=1)
        assert error.max() < 3 * MOST_ROUNDING  # of two products in a row, and of the shares


def test_floats_are_openvinos() -> None:
    assert has_experts(mixture())
    assert not has_experts(mixture(quantised=False))
