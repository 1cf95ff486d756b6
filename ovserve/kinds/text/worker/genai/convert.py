"""Rewrite a network in IR: merge projections, or compress weights.

    python -m ovserve.kinds.text.worker.genai.convert NETWORK.xml [merge] [int8|int4]

A process of its own, started by `ovserve/pull/convert.py`, because the server imports no openvino. It
replaces the network. `int8` and `int4` are the runtime's own compression of float weights, nncf. The last
line is `changed:` and those that changed the network.

`merge` makes one matrix product of the projections to query, key and value of each attention layer. They read
the same input, so their weights can be stacked, and a split gives each its rows of the product. The
runtime then starts one kernel in place of three, for which the two threads of a step meet once. Every output
value is computed from the same numbers, so the text stays what it was. Gains: docs/performance.md.

Gate and up of the feed-forward part stay apart, because their product is then split before the activation
function, which the runtime can no longer fuse. That made prompts 3 to 10 % slower.
"""

from __future__ import annotations

import logging
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray
from openvino import opset13 as ops

_OPS = ("Add", "Multiply", "Subtract")
ATTENTION = "ScaledDotProductAttention"
NAMES = ("q_proj", "k_proj", "v_proj")  # by the input of the attention that they reach


class Merger:
    """Changes one model. It holds the new weights, which the model only points to, so save before it goes."""

    def __init__(self, model: openvino.Model) -> None:
        self._model = model
        self._held: list[NDArray[np.uint8]] = []

    def merge(self) -> int:
        """Return the number of matrix products saved."""
        readers: dict[tuple[str, int], dict[int, Any]] = defaultdict(dict)
        for node in self._model.get_ordered_ops():
            if not (_multiplies_rows(node) and _is_constant(node.input_value(1))):
                continue
            place = _attention_input(node)
            source = node.input_value(0)
            if place is not None:
                readers[source.get_node().get_name(), source.get_index()].setdefault(place, node)
        saved = sum(self._merge(projections) for projections in readers.values())
        self._model.validate_nodes_and_infer_types()
        return saved

    def _merge(self, projections: dict[int, Any]) -> int:
        """Merge what has weights of one kind: all three, or two of them, because v is often finer."""
        for places in ((0, 1, 2), (0, 1), (1, 2), (0, 2)):
            if all(place in projections for place in places) and self._merge_all(
                [projections[place] for place in places], "".join("qkv"[place] for place in places)
            ):
                return len(places) - 1
        return 0

    def _merge_all(self, products: Sequence[Any], letters: str) -> bool:
        rows = [product.input_value(1).get_shape()[0] for product in products]
        weight = self._stack([product.input_value(1) for product in products], rows, 0)
        if weight is None:
            return False
        first = products[0]
        merged = ops.matmul(first.input_value(0), weight, transpose_a=False, transpose_b=True)
        merged.set_friendly_name(_merged_name(first.get_friendly_name(), letters))
        ends = [product.output(0) for product in products]
        biases = [bias for product in products if (bias := _bias(product)) is not None]
        if len(biases) == len(products):
            stacked = self._stack([added for _, added in biases], rows, -1)
            if stacked is not None:
                ends = [adding.output(0) for adding, _ in biases]
                merged = ops.add(merged, stacked)
                merged.set_friendly_name(_merged_name(biases[0][0].get_friendly_name(), letters))
        split = ops.variadic_split(merged, np.int64(-1), np.array(rows, np.int64))
        for i, end in enumerate(ends):
            for reader in list(end.get_target_inputs()):
                reader.replace_source_output(split.output(i))
        return True

    def _stack(self, values: Sequence[Any], rows: Sequence[int], axis: int) -> Any | None:
        """Return constant expressions stacked along an axis as one; None if their forms differ."""
        nodes = [value.get_node() for value in values]
        kinds = {
            (n.get_type_name(), value.get_element_type().get_type_name())
            for n, value in zip(nodes, values, strict=True)
        }
        if len(kinds) > 1:
            return None
        kind, first = nodes[0].get_type_name(), nodes[0]
        if kind == "Constant":
            return self._stack_constants(nodes, rows, axis)
        inner = [self._stack([n.input_value(0) for n in nodes], rows, axis)]
        if kind in _OPS:
            inner.append(self._stack([n.input_value(1) for n in nodes], rows, axis))
        if any(node is None for node in inner):
            return None
        if kind in _OPS:
            copy = getattr(ops, kind.lower())(*inner)
        elif kind == "Convert":
            copy = ops.convert(inner[0], first.get_element_type())
        elif (
            kind == "Reshape"
            and axis == 0
            and all(_keeps_rows(n, r) for n, r in zip(nodes, rows, strict=True))
        ):
            shape = [sum(rows), *list(first.get_output_shape(0))[1:]]
            copy = ops.reshape(inner[0], np.array(shape, np.int64), special_zero=False)
        else:
            return None
        for key, value in first.get_rt_info().items():  # such as the mark of weights to be kept packed
            copy.get_rt_info()[key] = value
        return copy

    def _stack_constants(self, nodes: Sequence[Any], rows: Sequence[int], axis: int) -> Any | None:
        shapes = [list(node.get_output_shape(0)) for node in nodes]
        raw = [np.asarray(node.data).reshape(-1).view(np.uint8) for node in nodes]
        if any(data.size != node.get_byte_size() for data, node in zip(raw, nodes, strict=True)):
            return None
        if all(np.prod(shape) == 1 for shape in shapes) and max(rows) > 1:
            return nodes[0] if len({data.tobytes() for data in raw}) == 1 else None
        for shape, count in zip(shapes, rows, strict=True):
            if not shape or shape[axis] != count or np.prod(shape[:axis] if axis else [1]) != 1:
                return None
        kind, shape = nodes[0].get_element_type(), list(shapes[0])
        if any(s[1:] != shape[1:] for s in shapes if not axis) or any(len(s) != len(shape) for s in shapes):
            return None
        if any(data.size * 8 != np.prod(s) * kind.bitwidth for data, s in zip(raw, shapes, strict=True)):
            return None  # a row that ends within a byte
        shape[axis] = sum(rows)
        self._held.append(np.concatenate(raw))
        constant = ops.constant(openvino.Tensor(self._held[-1], openvino.Shape(shape), kind))
        constant.set_friendly_name(_merged_name(nodes[0].get_friendly_name(), "qkv"[: len(nodes)]))
        return constant


def _multiplies_rows(node: Any) -> bool:
    """Return whether it multiplies by a matrix of known shape whose rows are outputs: [out, in]."""
    if node.get_type_name() != "MatMul":
        return False
    attributes, weight = node.get_attributes(), node.input_value(1)
    if attributes["transpose_a"] or not attributes["transpose_b"]:
        return False
    return weight.get_partial_shape().is_static and len(weight.get_shape()) == 2


def _is_constant(value: Any) -> bool:
    while value.get_node().get_type_name() in ("Convert", "Reshape", *_OPS):
        value = value.get_node().input_value(0)
    return bool(value.get_node().get_type_name() == "Constant")


def _attention_input(product: Any) -> int | None:
    """Return which input of the attention a product reaches first: 0 query, 1 key, 2 value."""
    visited, waiting = {product.get_name()}, [product.output(0)]
    while waiting:
        for reader in waiting.pop().get_target_inputs():
            node = reader.get_node()
            if node.get_type_name() == ATTENTION:
                return reader.get_index() if reader.get_index() < len(NAMES) else None
            if node.get_name() in visited or node.get_type_name() in ("MatMul", "ShapeOf"):
                continue
            visited.add(node.get_name())
            waiting += node.outputs()
    return None


def _bias(product: Any) -> tuple[Any, Any] | None:
    """Return the addition that is the only reader of a product, and what it adds, if that is constant."""
    readers = list(product.output(0).get_target_inputs())
    if len(readers) != 1 or readers[0].get_node().get_type_name() != "Add":
        return None
    added = readers[0].get_node().input_value(1 - readers[0].get_index())
    return (readers[0].get_node(), added) if _is_constant(added) else None


def _keeps_rows(node: Any, rows: int) -> bool:
    return bool(node.input_value(0).get_shape()[0] == rows == node.get_output_shape(0)[0])


def _merged_name(name: str, letters: str) -> str:
    """Return the name of a projection with the letters of those that are in it."""
    merged = f"{letters}_proj"
    return name.replace(NAMES["qkv".index(letters[0])], merged) if "_proj" in name else f"{merged}/{name}"


GROUP_SIZE = 128  # weights with one scale and zero point, where that divides their row


def main() -> None:
    try:
        sys.stdout.write(f"\nchanged: {' '.join(_rewrite(Path(sys.argv[1]), sys.argv[2:]))}\n")
    except RuntimeError as error:
        sys.exit(f"{error}")


def _rewrite(network: Path, steps: list[str]) -> list[str]:
    """Return the steps that changed something."""
    model = openvino.Core().read_model(network)
    merger = Merger(model)  # holds the weights until they are saved
    changed = []
    if "merge" in steps and merger.merge():
        changed.append("merge")
    changed += [bits for bits in ("int8", "int4") if bits in steps and compress(model, bits)]
    if changed:
        _replace(network, model)
    return changed


def compress(model: openvino.Model, bits: str) -> bool:
    """Compress the float weights in place, as optimum-intel does by default; return whether there were any.

    With int4, embeddings and the output layer are in int8, which costs less than what they lose.
    """
    import nncf

    nncf.set_log_level(logging.ERROR)
    before = _packed(model)
    if bits == "int8":
        nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
    else:
        nncf.compress_weights(
            model,
            mode=nncf.CompressWeightsMode.INT4_ASYM,
            group_size=GROUP_SIZE,
            advanced_parameters=nncf.AdvancedCompressionParameters(
                group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST  # rows that 128 does not divide
            ),
        )
    return _packed(model) > before


def _packed(model: openvino.Model) -> int:
    """Count the constants of 4 and 8 bits."""
    constants = (node for node in model.get_ops() if node.get_type_name() == "Constant")
    return sum(node.get_element_type().bitwidth <= 8 and len(node.shape) > 1 for node in constants)


def _replace(network: Path, model: openvino.Model) -> None:
    """Write the model in place of the file it was read from."""
    replacement = network.with_name("replaced.xml")
    openvino.save_model(model, replacement, compress_to_fp16=False)
    network.unlink()  # until the new one is there, the directory has no model
    replacement.with_suffix(".bin").replace(network.with_suffix(".bin"))
    replacement.replace(network)


if __name__ == "__main__":
    main()
