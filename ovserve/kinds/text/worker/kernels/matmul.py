"""Replaces a model's products with quantised weights by the kernels of `packed_matmul.cpp`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino import opset13 as ops
from openvino.utils.node_factory import NodeFactory

from ovserve.engine.host.mappings import file_mappings, is_in_a_file, unmap_pages
from ovserve.kinds.text.worker.kernels.library import FLIP, Library, Weights, element_type

NODES = NodeFactory("opset13")
BITS = {"u4": 4, "i4": 4, "f4e2m1": 4, "u6": 6, "u8": 8, "i8": 8}
UNPACKING = ("Convert", "Reshape", "Multiply", "Subtract", "Add")  # operations
FLOATS = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # twice those of 4 bits, by their codes
FLOATS_ZERO = 12  # of the kernels' table of these
FLOATS_BIAS = 128  # of the exponents of their groups
MIN_OFFSET_UNIT = 2.0**-100
MAX_SCALE_ERROR = 2.0**-11  # of a scale in f16, as a share: half of its last bit


class MissingKernel(Exception):
    """A part of a mixture of experts that the kernels do not compute, with the reason."""


class Product(NamedTuple):
    output: Any  # what is replaced
    activations: Any
    weights: Weights
    is_stacked: bool = False  # [experts, tokens, columns] times the matrices of as many


def has_experts(model: openvino.Model) -> bool:
    """Return whether a model has mixtures of which OpenVINO would compute all experts for every token."""
    return any(_routing(node) is not None for node in model.get_ops())


def replace_products(model: openvino.Model, library: Library) -> int:
    """Let the library compute what it can. Return the bytes of its copy of the weights, or 0."""
    products = {product.output.get_node().get_name(): product for product in _products(model)}
    size = sum(weights.size for weights in {id(p.weights): p.weights for p in products.values()}.values())
    if not products:
        return 0
    arena = library.arena(size)
    handles: dict[str, int] = {}
    mappings = list(file_mappings())  # reading them takes 2 ms, which is a second for 500 matrices
    try:
        for product in products.values():
            values = product.weights.values
            name = values.get_name()
            if name not in handles:
                start, size_in_file = values.data.ctypes.data, values.get_byte_size()
                is_file = is_in_a_file(mappings, start, size_in_file)
                handles[name] = library.pack(arena, product.weights, is_file=is_file)
                for constant in _constants_of(product.output.get_node()):
                    unmap_pages(mappings, constant.data.ctypes.data, constant.get_byte_size())
            if not product.is_stacked:
                _replace(product.output, library.product(product.activations, handles[name]))
        for node in model.get_ordered_ops():
            if (routing := _routing(node)) is not None:
                try:
                    _replace(node.output(0), _mixed(*routing, products, library, handles))
                except MissingKernel as error:
                    print(f"OpenVINO computes all experts for each token: {error}", file=sys.stderr)  # noqa: T201  this process's log
        _replace_lookups(model, library, handles)
    finally:
        for handle in (arena, *handles.values()):
            library.release(handle)
    return size


def _replace(output: Any, node: Any) -> None:
    node.set_friendly_name(output.get_node().get_friendly_name())
    for target in output.get_target_inputs():
        target.replace_source_output(node.output(0))


def _mixed(
    outputs: Any,
    spread: Any,
    products: Mapping[str, Product],
    library: Library,
    handles: Mapping[str, int],
) -> Any:
    """Return the sum of what the experts of each token make of it, in their shares.

    `outputs` and `spread` are of `_routing`, `products` by the names of their nodes. Raises MissingKernel.
    """
    experts = outputs.get_output_partial_shape(0)[0].get_length()
    ids, shares = (spread.input_value(at) for at in (1, 2))
    of_tokens: dict[str, Any] = {}

    def of_chosen(node: Any) -> Any:
        """Return [tokens, chosen, columns] for the [experts, tokens, columns] of a node."""
        name, kind = node.get_name(), node.get_type_name()
        if name in of_tokens:
            return of_tokens[name]
        if kind == "Constant":
            is_bias = len(node.shape) == 3 and node.shape[0] == experts
            new = ops.gather(ops.squeeze(node, np.array([1])), ids, np.int64(0)) if is_bias else node
        elif (part := products.get(name)) is not None:
            tokens = _copied(part.activations.get_node()) or of_chosen(part.activations.get_node()).output(0)
            new = library.experts(tokens, ids, handles[part.weights.values.get_name()], experts)
        elif kind in ("MatMul", "Parameter"):
            raise MissingKernel(f"{node.get_friendly_name()} is a {kind} of no form that they have")
        else:
            inputs = [of_chosen(node.input_value(at).get_node()) for at in range(node.get_input_size())]
            new = NODES.create(kind, [each.output(0) for each in inputs], node.get_attributes())
        return of_tokens.setdefault(name, new)

    parts = ops.multiply(of_chosen(outputs), ops.unsqueeze(shares, ops.constant(np.int64(2))))
    return ops.reduce_sum(parts, ops.constant(np.array([1])), False)


def _copied(node: Any) -> Any:
    """Return the tokens, [tokens, columns], of which a node has a copy for each expert, or None."""
    if node.get_type_name() != "Reshape" or node.input_value(0).get_node().get_type_name() != "Tile":
        return None
    return node.input_value(0).get_node().input_value(0)


def widen(model: openvino.Model) -> None:
    """Make weights that only our kernels compute with into such that OpenVINO's do: of 5 and 6 bits and of
    floats, 8, and of a factor and a number, a scale. It would unpack all to f32."""
    for node in model.get_ordered_ops():
        wide: NDArray[Any] | None = None
        if node.get_type_name() == "Constant" and element_type(node) == "u6":
            triples = node.data.reshape(-1, 3)
            high = (triples[:, 2:] >> np.array([6, 4, 2, 0], np.uint8) & 3) << 4
            low = np.repeat(triples[:, :2], 2, 1) >> np.array([4, 0, 4, 0], np.uint8) & 15
            wide = (low | high).reshape(tuple(node.shape))
        elif node.get_type_name() == "Constant" and element_type(node) == "f4e2m1":
            pairs = np.stack([node.data & 15, node.data >> 4], -1)
            wide = np.array(FLOATS, np.int8)[pairs].reshape(tuple(node.shape))
        elif node.get_type_name() == "Convert" and element_type(node.input_value(0).get_node()) == "f8e8m0":
            wide = np.exp2(node.input_value(0).get_node().data - np.float32(FLOATS_BIAS)).astype(np.float16)
        elif node.get_type_name() == "Add" and (parts := _five_bits(node)) is not None:
            low, high = parts[0].data, np.unpackbits(parts[1])
            wide = (np.stack([low & 15, low >> 4], -1).reshape(-1) | high << 4).reshape(tuple(parts[0].shape))
        elif node.get_type_name() == "Multiply":
            factors, numbers = (_constant(node.input_value(at).get_node()) for at in (0, 1))
            if factors is None or numbers is None or factors.ndim != 3 or factors.dtype != np.int8:
                continue
            if _is_scale_or_offset(node):
                scales = factors * numbers.astype(np.float32)
                wide = scales.astype(node.get_output_element_type(0).to_dtype())
        if wide is not None:
            constant = ops.constant(wide)
            if node.get_type_name() == "Add":  # as a constant of numbers in f16 it would become f32
                constant = ops.convert(constant, node.get_output_element_type(0))
            for target in node.output(0).get_target_inputs():
                target.replace_source_output(constant.output(0))


def _is_scale_or_offset(node: Any) -> bool:
    """Return whether a product is not of weights in int8 and their scales, which looks alike."""
    if node.input_value(1).get_node().get_type_name() == "Convert":
        return True  # offsets are in f32
    users = [user for target in node.output(0).get_target_inputs() for user in _users(target.get_node())]
    return all(user.get_node().get_type_name() == "Multiply" and user.get_index() == 1 for user in users)


def _users(node: Any) -> list[Any]:
    return list(node.output(0).get_target_inputs())


def _replace_lookups(model: openvino.Model, library: Library, handles: Mapping[str, int]) -> None:
    """Look up rows of a matrix that is packed, so that there is no second copy of a table of embeddings."""
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Gather" or node.get_output_element_type(0) != openvino.Type.f32:
            continue
        source = node.input_value(0).get_node()
        if _skip(source, "Convert", "Reshape").get_type_name() != "Multiply":
            continue  # numbers that are scaled after they were looked up
        values = _values(source)
        axis = _constant(node.input_value(2).get_node())
        if values is None or values.get_name() not in handles or axis is None or axis.any():
            continue
        _replace(node.output(0), library.lookup(node.input_value(1), handles[values.get_name()]))


def _products(model: openvino.Model) -> Iterator[Product]:
    weights_by_name: dict[str, Weights | None] = {}
    most_dimensions = 3 if has_experts(model) else 2
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul" or node.get_output_element_type(0) != openvino.Type.f32:
            continue
        attributes = node.get_attributes()
        if attributes["transpose_a"] or not attributes["transpose_b"]:
            continue
        activations, source = node.input_value(0), node.input_value(1).get_node()
        dimensions = len(source.get_output_partial_shape(0))
        if (values := _values(source)) is None or dimensions > most_dimensions:
            continue
        output, offsets = node.output(0), None
        if (addition_and_offsets := _added_offsets(node)) is not None:
            output, offsets = addition_and_offsets[0].output(0), addition_and_offsets[1]
        name = values.get_name()  # of one matrix: all of a model multiply by it in one way
        if name not in weights_by_name:
            weights = _weights(source)
            if weights is not None and offsets is not None:
                weights = _with_offsets(weights, offsets)
            weights_by_name[name] = weights if weights is not None and weights.chunk else None
        if (weights := weights_by_name[name]) is not None:
            yield Product(output, activations, weights, is_stacked=dimensions > 2)


def _routing(node: Any) -> tuple[Any, Any] | None:
    """Return what the experts make and what spreads the tokens' shares over all, if a node adds it up.

    In models that optimum-intel exports, reshaping does nothing in between, and weights may be floats.
    """
    product = node.input_value(0).get_node() if node.get_type_name() == "ReduceSum" else None
    if product is None or product.get_type_name() != "Multiply":
        return None
    outputs, shares = (product.input_value(at).get_node() for at in (0, 1))
    outputs, spread = _skip(outputs, "Reshape"), _skip(shares, "Unsqueeze", "Reshape", "Transpose")
    is_written_here = spread.get_type_name() == "ScatterElementsUpdate" and spread is not shares
    layer = _skip(outputs, "Add")  # of offsets and biases
    is_layer = is_written_here and layer.get_type_name() == "MatMul"
    return (outputs, spread) if is_layer and _values(layer.input_value(1).get_node()) is not None else None


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


def _constants_of(node: Any) -> Iterator[Any]:
    """Yield the constants of a product's weights: values, and what unpacks them."""
    kind = node.get_type_name()
    if kind == "Constant":
        yield node
    for at in {"MatMul": (1,), "Add": (0, 1)}.get(kind, range(2) if kind in UNPACKING else ()):
        if at < node.get_input_size():
            yield from _constants_of(node.input_value(at).get_node())


def _values(node: Any) -> Any:
    """Return the constant that a node unpacks, or None."""
    while node.get_type_name() in UNPACKING:
        node = node.input_value(0).get_node()
    return node if node.get_type_name() == "Constant" and element_type(node) in BITS else None


def _weights(node: Any) -> Weights | None:
    """Return what a node multiplies by, if it unpacks `scale * (value - zero)`."""
    shape = node.get_output_partial_shape(0)
    if shape.is_dynamic or len(shape) not in (2, 3):
        return None
    *stacked, columns = (size.get_length() for size in shape)
    rows = prod(stacked)
    node = _skip(node, "Convert", "Reshape")
    if node.get_type_name() != "Multiply":
        return None
    of_groups, node = node.input_value(1).get_node(), node.input_value(0).get_node()
    if element_type(_skip(node, "Convert")) == "f4e2m1":
        return _of_floats(_skip(node, "Convert"), rows, columns, _skip(of_groups, "Convert"))
    zeros: NDArray[Any] | None = np.zeros(1, np.uint8)
    if node.get_type_name() == "Subtract":
        zeros, node = _constant(node.input_value(1).get_node()), node.input_value(0).get_node()
    high, bits = None, 0
    if (parts := _five_bits(node)) is not None:
        (values, high), bits = parts, 5
    else:
        values = _skip(node, "Convert")
    if values.get_type_name() != "Constant" or element_type(values) not in BITS or zeros is None:
        return None
    if prod(values.shape) != rows * columns:
        return None
    if (scales := _constant(of_groups)) is None:
        of_spans = Weights(values, rows, columns, bits or BITS[element_type(values)], 0, high=high)
        return _of_two_numbers(of_spans, of_groups, zeros)
    if scales.size % rows or columns % (scales.size // rows):
        return None
    weights = _in_our_form(values, rows, columns, scales, zeros)
    return weights if weights is None or high is None else weights._replace(bits=bits, high=high)


def _of_floats(values: Any, rows: int, columns: int, powers: Any) -> Weights | None:
    """Return weights of floats in 4 bits, and exponents of groups."""
    if (
        element_type(powers) != "f8e8m0"
        or powers.get_type_name() != "Constant"
        or values.shape != [rows, columns // 32, 32]
    ):
        return None
    factors = powers.data.view(np.int8).reshape(rows, -1)
    halves = np.full(rows, 0.5, np.float32)  # the kernels' table has twice the floats
    return Weights(values, rows, columns, 4, 32, FLOATS_ZERO, factors=factors, row_scales=halves)


def _five_bits(node: Any) -> tuple[Any, NDArray[np.uint8]] | None:
    """Return the constant of low halves and the fifth bits, if a node adds these as `low + 16 * high`."""
    if node.get_type_name() != "Add":
        return None
    low, product = (node.input_value(at).get_node() for at in (0, 1))
    values = _skip(low, "Convert")
    if (
        values.get_type_name() != "Constant"
        or element_type(values) != "u4"
        or product.get_type_name() != "Multiply"
    ):
        return None
    bits = _skip(product.input_value(0).get_node(), "Convert")
    factor = _constant(product.input_value(1).get_node())
    if (
        bits.get_type_name() != "Constant"
        or element_type(bits) != "u1"
        or factor is None
        or (factor != 16).any()
    ):
        return None
    return values, bits.data


def _of_two_numbers(weights: Weights, of_groups: Any, zeros: NDArray[Any]) -> Weights | None:
    """Return weights of which a scale is a factor of its group times a number of a span of groups."""
    numbers = _two_numbers(of_groups, weights.rows)
    if numbers is None or zeros.size != 1 or element_type(weights.values) in FLIP:
        return None
    factors, scales = numbers
    group = weights.columns * weights.rows // factors.size
    return weights._replace(group=group, zero=int(zeros.reshape(-1)[0]), factors=factors, scales=scales)


def _two_numbers(node: Any, rows: int) -> tuple[NDArray[np.int8], NDArray[np.float16]] | None:
    """Return the factors and the numbers in f16 that a node multiplies: [rows, groups] and [rows, spans]."""
    node = _skip(node, "Reshape", "Convert")
    if node.get_type_name() != "Multiply":
        return None
    factors, numbers = (_constant(node.input_value(at).get_node()) for at in (0, 1))
    if factors is None or numbers is None or factors.dtype != np.int8 or factors.ndim != 3:
        return None
    if numbers.dtype != np.float16 or numbers.shape != (*factors.shape[:2], 1) or len(factors) != rows:
        return None
    return np.ascontiguousarray(factors), np.ascontiguousarray(numbers)


def _in_our_form(
    values: Any, rows: int, columns: int, scales: NDArray[Any], zeros: NDArray[Any]
) -> Weights | None:
    if zeros.size not in (1, scales.size):
        return None
    # f32 holds the numbers of all types. Signed values become unsigned, and zero points with them.
    bits, is_signed = BITS[element_type(values)], element_type(values) in FLIP
    points = zeros.reshape(-1).astype(np.float32) + (1 << (bits - 1) if is_signed else 0)
    zero, each = float(points[0]), None
    if points.size > 1 or not zero.is_integer():
        zero, each = 0.0, _half(np.broadcast_to(points, scales.size), rows)
    weights = Weights(values, rows, columns, bits, columns * rows // scales.size, int(zero), zeros=each)
    if scales.size == rows:
        of_rows = np.ascontiguousarray(scales.astype(np.float32)).reshape(rows)
        return weights._replace(row_scales=of_rows)
    half = _exact_half(scales, rows)
    return None if half is None else weights._replace(scales=half)


def _exact_half(numbers: NDArray[Any], rows: int) -> NDArray[np.float16] | None:
    """Return numbers in f16, or None if they are too small or too large for that."""
    half, exact = _half(numbers, rows), numbers.astype(np.float32).reshape(rows, -1)
    if not (np.abs(half - exact) <= np.abs(exact) * MAX_SCALE_ERROR).all():  # `allclose` takes 1.7 ms
        return None
    return half


def _half(numbers: NDArray[Any], rows: int) -> NDArray[np.float16]:
    return np.ascontiguousarray(numbers.astype(np.float16)).reshape(rows, -1)


def _with_offsets(weights: Weights, node: Any) -> Weights | None:
    if weights.scales is None or weights.zeros is not None:
        return None
    unit, node = 1.0, _skip(node, "Reshape")
    if (numbers := _two_numbers(node, weights.rows)) is None:
        if node.get_type_name() != "Multiply":
            return None
        offsets, of_rows = (_constant(node.input_value(at).get_node()) for at in (0, 1))
        if offsets is None or of_rows is None or offsets.dtype != np.int8 or of_rows.size != weights.rows:
            return None
        unit = 2.0 ** np.floor(np.log2(max(np.abs(of_rows).max(), MIN_OFFSET_UNIT)))
        if (half := _exact_half(of_rows / unit, weights.rows)) is None:
            return None
        numbers = np.ascontiguousarray(offsets), half
    if numbers[0].size * weights.group != weights.rows * weights.columns:
        return None
    return weights._replace(offsets=numbers[0], offset_scales=numbers[1], offset_unit=unit)


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
    if element_type(node) == "u4":
        both = np.stack([data & 15, data >> 4], axis=-1).reshape(-1)
        return both[: prod(node.shape)].reshape(tuple(node.shape))
    return None if element_type(node) in ("i4", "u1", "f4e2m1", "f8e8m0") else data
