"""Replaces a model's products with quantised weights by the kernels of `packed_matmul.cpp`."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
import openvino
from numpy.typing import NDArray

from ovserve.engine.host.mappings import file_mappings, unmap_pages
from ovserve.kinds.text.worker.kernels.library import Library

ROWS_PER_BLOCK = 16  # of a block
CHUNKS = (64, 32)  # columns whose activations share a scale
LINE_BYTES = 64
ARRAYS_PER_MATRIX = 5  # of a matrix in the arena
BITS = {"u4": 4, "i4": 4, "u8": 8, "i8": 8}
FLIP = {"i4": 0x88888888, "i8": 0x80808080}  # makes signed values unsigned, by adding half their range
MAX_SCALE_ERROR = 2.0**-11  # of a scale in f16, as a share: half of its last bit


class Weights(NamedTuple):
    """A matrix in a model. All but the values have shape [rows, groups]."""

    values: Any  # openvino.op.Constant
    rows: int
    columns: int
    bits: int
    zero: int
    zeros: NDArray[np.float16] | None
    scales: NDArray[np.float16] | None
    row_scales: NDArray[np.float32] | None
    offsets: NDArray[np.int8] | None = None

    @property
    def group(self) -> int:
        return self.columns // (1 if self.scales is None else self.scales.shape[1])

    @property
    def chunk(self) -> int:
        """Columns whose activations share a scale, or 0 if the kernels cannot have them.

        As many as share one of weights, up to 64. By 32, SmolLM2's outputs are 0.0051 (KL divergence) from
        those with exact activations, and by 64 0.0091; with OpenVINO's kernels they are 0.0079.
        """
        return next((chunk for chunk in CHUNKS if self.group % chunk == 0), 0)

    @property
    def size(self) -> int:
        """Bytes in the arena, at most."""
        rows = -(-self.rows // ROWS_PER_BLOCK) * ROWS_PER_BLOCK
        per_group = sum(part.itemsize for part in (self.zeros, self.scales, self.offsets) if part is not None)
        bytes_of_row = self.columns * self.bits // 8 + self.columns // self.group * per_group + 4
        return rows * bytes_of_row + ARRAYS_PER_MATRIX * LINE_BYTES


class Product(NamedTuple):
    output: Any  # what is replaced
    activations: Any
    weights: Weights


def replace_products(model: openvino.Model, library: Library) -> int:
    """Let the library compute what it can. Return the bytes of its copy of the weights, or 0."""
    products = list(_products(model))
    size = sum(weights.size for weights in {id(p.weights): p.weights for p in products}.values())
    if not products:
        return 0
    arena = library.arena(size)
    handles: dict[int, int] = {}
    mappings = list(file_mappings())  # reading them takes 2 ms, which is a second for 500 matrices
    try:
        for product in products:
            weights = product.weights
            if id(weights) not in handles:
                values = weights.values.data
                handles[id(weights)] = library.pack(
                    arena,
                    (weights.rows, weights.columns),
                    weights.bits,
                    weights.group,
                    weights.chunk,
                    flip=FLIP.get(_type(weights.values), 0),
                    zero=weights.zero,
                    values=values,
                    scales=weights.scales,
                    zeros=weights.zeros,
                    offsets=weights.offsets,
                    row_scales=weights.row_scales,
                )
                unmap_pages(mappings, values.ctypes.data, weights.values.get_byte_size())
            node = library.product(product.activations, handles[id(weights)])
            node.set_friendly_name(product.output.get_node().get_friendly_name())
            for target in product.output.get_target_inputs():
                target.replace_source_output(node.output(0))
    finally:
        for handle in (arena, *handles.values()):
            library.release(handle)
    return size


def _products(model: openvino.Model) -> Iterator[Product]:
    weights_by_name: dict[str, Weights | None] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul" or node.get_output_element_type(0) != openvino.Type.f32:
            continue
        attributes = node.get_attributes()
        if attributes["transpose_a"] or not attributes["transpose_b"]:
            continue
        activations, source = node.input_value(0), node.input_value(1).get_node()
        output, offsets, key = node.output(0), None, [source.get_name()]
        if (addition_and_offsets := _added_offsets(node)) is not None:
            output, offsets = addition_and_offsets[0].output(0), addition_and_offsets[1]
            key.append(offsets.get_name())
        name = " ".join(key)
        if name not in weights_by_name:
            weights = _weights(source)
            if weights is not None and offsets is not None:
                weights = _with_offsets(weights, offsets)
            weights_by_name[name] = weights if weights is not None and weights.chunk else None
        if (weights := weights_by_name[name]) is not None:
            yield Product(output, activations, weights)


def _weights(node: Any) -> Weights | None:
    """Return what a node multiplies by, if it unpacks `scale * (value - zero)`."""
    shape = node.get_output_partial_shape(0)
    if shape.is_dynamic or len(shape) != 2:
        return None
    rows, columns = (size.get_length() for size in shape)
    node = _skip(node, "Convert", "Reshape")
    if node.get_type_name() != "Multiply":
        return None
    scales, node = _constant(node.input_value(1).get_node()), node.input_value(0).get_node()
    zeros: NDArray[Any] | None = np.zeros(1, np.uint8)
    if node.get_type_name() == "Subtract":
        zeros, node = _constant(node.input_value(1).get_node()), node.input_value(0).get_node()
    values = _skip(node, "Convert")
    if values.get_type_name() != "Constant" or _type(values) not in BITS or scales is None or zeros is None:
        return None
    if prod(values.shape) != rows * columns or scales.size % rows or columns % (scales.size // rows):
        return None
    return _in_our_form(values, rows, columns, scales, zeros)


def _in_our_form(
    values: Any, rows: int, columns: int, scales: NDArray[Any], zeros: NDArray[Any]
) -> Weights | None:
    if zeros.size not in (1, scales.size):
        return None
    # f32 holds the numbers of all types. Signed values become unsigned, and zero points with them.
    bits, is_signed = BITS[_type(values)], _type(values) in FLIP
    points = zeros.reshape(-1).astype(np.float32) + (1 << (bits - 1) if is_signed else 0)
    zero, each = float(points[0]), None
    if points.size > 1 or not zero.is_integer():
        zero, each = 0.0, _half(np.broadcast_to(points, scales.size), rows)
    if scales.size == rows:
        of_rows = np.ascontiguousarray(scales.astype(np.float32)).reshape(rows)
        return Weights(values, rows, columns, bits, int(zero), each, None, of_rows)
    half, exact = _half(scales, rows), scales.astype(np.float32).reshape(rows, -1)
    if not (np.abs(half - exact) <= np.abs(exact) * MAX_SCALE_ERROR).all():  # `allclose` takes 1.7 ms
        return None  # too small or too large for f16
    return Weights(values, rows, columns, bits, int(zero), each, half, None)


def _half(numbers: NDArray[Any], rows: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(numbers.astype(np.float16)).reshape(rows, -1)


def _added_offsets(node: Any) -> tuple[Any, Any] | None:
    """Return the addition, and the node that unpacks offsets, where the sums of groups of activations are
    multiplied by offsets and added (`gguf_forms.py`)."""
    targets = list(node.output(0).get_target_inputs())
    if len(targets) != 1 or targets[0].get_node().get_type_name() != "Add":
        return None
    addition = targets[0].get_node()
    other = addition.input_value(1 - targets[0].get_index()).get_node()
    if other.get_type_name() != "MatMul":
        return None
    sums = other.input_value(0).get_node()
    if sums.get_type_name() != "ReduceSum":
        return None
    groups = sums.input_value(0).get_node()
    if groups.get_type_name() != "Reshape" or groups.input_value(0) != node.input_value(0):
        return None
    return addition, other.input_value(1).get_node()


def _with_offsets(weights: Weights, node: Any) -> Weights | None:
    if node.get_type_name() != "Multiply" or weights.scales is None:
        return None
    offsets, scales = (_constant(node.input_value(at).get_node()) for at in (0, 1))
    if offsets is None or scales is None or offsets.dtype != np.int8 or offsets.shape != weights.scales.shape:
        return None
    if scales.size != weights.rows:
        return None
    row_scales = np.ascontiguousarray(scales.astype(np.float32)).reshape(-1)
    return weights._replace(offsets=np.ascontiguousarray(offsets), row_scales=row_scales)


def _skip(node: Any, *kinds: str) -> Any:
    while node.get_type_name() in kinds:
        node = node.input_value(0).get_node()
    return node


def _constant(node: Any) -> NDArray[Any] | None:
    """Return the numbers of a constant, in its shape; 4 bits as 8."""
    node = _skip(node, "Convert")
    if node.get_type_name() != "Constant":
        return None
    data: NDArray[Any] = node.data
    if _type(node) == "u4":
        both = np.stack([data & 15, data >> 4], axis=-1).reshape(-1)
        return both[: prod(node.shape)].reshape(tuple(node.shape))
    return None if _type(node) == "i4" else data


def _type(node: Any) -> str:
    return str(node.get_output_element_type(0).get_type_name())
