"""Rewrites the output layer, which makes the logits, in int8 with a scale per row.

Sources often keep this layer finer than the others: in 16 bits, or in 8 bits with a scale per group of
weights. A step of one stream reads all of it, a fifth of its time for a small model. An embedding that shares
its weights with this layer keeps them, so the file grows by a byte per weight. Gains: docs/performance.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from numpy.typing import NDArray
from openvino import opset13 as ops

FLOATS = ("f16", "bf16", "f32")
BYTES = ("u8", "i8")
CHUNK_ROWS = 4096  # rows that are unpacked at once, so that a large vocabulary takes little memory
MAX_INT8 = 127
_OPS: dict[str, Callable[[NDArray[np.float32], NDArray[np.float32]], NDArray[np.float32]]] = {
    "Add": np.add,
    "Multiply": np.multiply,
    "Subtract": np.subtract,
}


class OutputLayer:
    """The output layer of one model. It holds the new weights, which the model only points to, so save before
    it goes."""

    def __init__(self, model: ov.Model) -> None:
        self._model = model
        self._held: list[NDArray[Any]] = []

    def quantise(self) -> bool:
        """Return whether the layer was finer, and is now in int8 per row."""
        product = _last_product(self._model)
        if product is None or not _is_finer(product.input_value(1)):
            return False
        weight = product.input_value(1)
        rows, columns = weight.get_shape()
        values, scales = np.empty((rows, columns), np.int8), np.empty((rows, 1), np.float32)
        for at in range(0, rows, CHUNK_ROWS):
            part = slice(at, at + CHUNK_ROWS)
            values[part], scales[part] = quantised(_unpacked(weight, part, rows))
        self._held += [values, scales]
        packed = ops.constant(values, shared_memory=True)
        name = product.get_friendly_name()
        packed.set_friendly_name(f"{name}/weight")
        whole = ops.multiply(ops.convert(packed, "f32"), ops.constant(scales, shared_memory=True))
        product.input(1).replace_source_output(whole.output(0))
        self._model.validate_nodes_and_infer_types()
        return True


def quantised(weights: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return values [rows, columns] and scales [rows, 1], whose product is nearest to the weights."""
    scales = np.abs(weights).max(axis=1, keepdims=True) / MAX_INT8
    scales[scales == 0] = 1
    return np.rint(weights / scales).astype(np.int8), scales.astype(np.float32)


def _last_product(model: ov.Model) -> Any | None:
    """Return the matrix product that makes the only result; None if it is not one by a constant [out, in]."""
    if len(model.outputs) != 1:
        return None
    node = model.output(0).get_node().input_value(0).get_node()
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    if node.get_type_name() != "MatMul":
        return None
    attributes, weight = node.get_attributes(), node.input_value(1)
    if attributes["transpose_a"] or not attributes["transpose_b"]:
        return None
    return node if weight.get_partial_shape().is_static and len(weight.get_shape()) == 2 else None


def _is_finer(weight: Any) -> bool:
    """Return whether it is made of numbers of 16 bits or more, or of 8 bits with several scales per row."""
    node, grouped = weight.get_node(), False
    while node.get_type_name() != "Constant":
        if node.get_type_name() not in ("Convert", "Reshape", *_OPS):
            return False
        grouped |= len(node.get_output_shape(0)) == 3
        node = node.input_value(0).get_node()
    kind = node.get_element_type().get_type_name()
    return kind in FLOATS or (kind in BYTES and grouped)


def _unpacked(value: Any, part: slice, rows: int) -> NDArray[np.float32]:
    """Return rows of a constant expression."""
    node = value.get_node()
    kind = node.get_type_name()
    if kind == "Constant":
        data = _numbers(node)
        return (data[part] if data.ndim and data.shape[0] == rows else data).astype(np.float32)
    inputs = [_unpacked(source, part, rows) for source in node.input_values()[: 2 if kind in _OPS else 1]]
    if kind == "Reshape":
        return inputs[0].reshape(len(inputs[0]), -1)
    return _OPS[kind](*inputs) if kind in _OPS else inputs[0]


def _numbers(constant: Any) -> NDArray[Any]:
    data = np.asarray(constant.data)
    if constant.get_element_type() == ov.Type.bf16:
        bits = data.view(np.uint16).astype(np.uint32) << 16
        return bits.view(np.float32).reshape(constant.get_output_shape(0))
    return data
