"""A model's attention computed by the kernels of `attention.h`."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

from ovserve.kinds.text.worker.kernels.library import Library

ADDRESSES, ADDRESS_BYTES = "cache_addresses", 8
PAGED_ATTENTION = "PagedAttentionExtension"
MAX_SIZE, SIZE_UNIT = 256, 32  # numbers of a head
CACHE_AT = 3, 4  # inputs of the operation: keys, values
PLACES_AT = 5, 6, 7, 8  # past_lens, subsequence_begins, block_indices, block_indices_begins
SCALE_AT, WINDOW_AT, SINKS_AT = 9, 10, 20
# Inputs behind them are off where they have no elements, or are a scalar of zero.
MAX_CONTEXT_AT, FIRST_OPTION_AT = 12, 11
HEADS = {"num_k_heads", "k_head_size", "num_v_heads", "v_head_size"}  # what the transformation says of them


def replace_attention(model: openvino.Model, library: Library, block_tokens: int) -> dict[str, list[int]]:
    """Return the shapes of a block of each cache, in bytes: [kv_heads, block_tokens, 2 * size] in bf16.

    An input of addresses, in their order, replaces the caches: an inference binds and checks one input and
    not 60, and no shape depends on their size. If there are none, nothing changes: the kernels cannot compute
    the model's attention.
    """
    layers = [node for node in model.get_ordered_ops() if node.get_type_name() == PAGED_ATTENTION]
    if not layers or not all(map(_is_plain, layers)):
        return {}
    shapes: dict[str, list[int]] = {}
    addresses = ops.parameter([ADDRESS_BYTES * 2 * len(layers)], np.uint8, name=ADDRESSES)
    addresses.output(0).get_tensor().set_names({ADDRESSES})
    for layer, node in enumerate(layers):
        for letter, port in zip("kv", [node.input_value(at) for at in CACHE_AT], strict=True):
            heads, size = _shape(node, letter)
            shapes[port.get_any_name()] = [heads, block_tokens, 2 * size]
            model.remove_parameter(port.get_node())
        inputs = [*(node.input_value(at) for at in range(3)), addresses.output(0)]
        inputs += [node.input_value(at) for at in PLACES_AT]
        scale, window = (_number(node.input_value(at).get_node()) for at in (SCALE_AT, WINDOW_AT))
        if (sinks := node.input_value(SINKS_AT).get_node().data).size:
            inputs.append(ops.constant(sinks.astype(np.float32).reshape(-1)).output(0))
        attributes = {"scale": scale or 0.0, "window": int(window or 0), "kv_heads": heads, "layer": layer}
        attention = library.attention(inputs, **attributes)
        for target in node.output(0).get_target_inputs():
            target.replace_source_output(attention.output(0))
    model.add_parameters([addresses])
    model.validate_nodes_and_infer_types()
    return shapes


def _shape(node: Any, letter: str) -> tuple[int, int]:
    """Return heads and size of the keys ("k") or values of an attention."""
    info = node.get_rt_info()
    return info[f"num_{letter}_heads"].astype(int), info[f"{letter}_head_size"].astype(int)


def _is_plain(node: Any) -> bool:
    """Return whether an attention has nothing besides scale, window and sinks, and each cache to itself."""
    sources = [node.input_value(at).get_node() for at in range(node.get_input_size())]
    if any(sources[at].get_type_name() != "Parameter" for at in (*CACHE_AT, *PLACES_AT)):
        return False
    if any(len(sources[at].output(0).get_target_inputs()) != 1 for at in CACHE_AT):
        return False
    if not set(node.get_rt_info()) >= HEADS:
        return False
    shapes = {_shape(node, letter) for letter in "kv"}
    if len({heads for heads, _ in shapes}) > 1:
        return False
    if any(size % SIZE_UNIT or size > MAX_SIZE for _, size in shapes):
        return False
    if any(node.output(at).get_target_inputs() for at in range(1, node.get_output_size())):
        return False
    options = [at for at in range(FIRST_OPTION_AT, len(sources)) if at != MAX_CONTEXT_AT]
    if any(sources[at].get_type_name() != "Constant" for at in options):
        return False
    if any(sources[at].data.any() for at in options if at != SINKS_AT):
        return False
    return all(_number(sources[at]) is not None for at in (SCALE_AT, WINDOW_AT))


def _number(node: Any) -> float | None:
    """Return a scalar; None if it is computed. A window comes as a product of constants."""
    if node.get_type_name() == "Constant":
        return float(node.data)
    if node.get_type_name() not in ("Convert", "Multiply"):
        return None
    product = 1.0
    for at in range(node.get_input_size()):
        if (factor := _number(node.input_value(at).get_node())) is None:
            return None
        product *= factor
    return product
