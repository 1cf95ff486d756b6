"""The graph of a model with paged attention, made of an ordinary one by the runtime's transformation.

An input `rows` is added: only the hidden states of those tokens go through the output layer, which is a fifth
of a small model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops
from openvino._offline_transformations import paged_attention_transformation

from ovserve.errors import LoadError
from ovserve.kinds.text.worker.genai.options import sentence
from ovserve.kinds.text.worker.kernels.attention import PAGED_ATTENTION
from ovserve.kinds.text.worker.paged.runner import STATE_INPUTS, STATE_TOKENS, STATES

CACHES = "_cache."  # in the names of inputs
INPUTS = {
    "input_ids",
    "position_ids",
    "past_lens",
    "subsequence_begins",
    "block_indices",
    "block_indices_begins",
    "max_context_len",
    "rows",
    *STATE_INPUTS,
}
OF_STATES = "PagedCausalConv1D", "PagedGatedDeltaNet", "PagedSelectiveSSM"  # operations that compute states
# What may follow the output layer, element by element: scaling, a soft cap, a conversion.
ELEMENTWISE = ("Add", "Convert", "Divide", "Multiply", "Subtract", "Tanh")


def read_paged(core: openvino.Core, file: Path) -> openvino.Model:
    """Return the model with one output, logits of shape [rows, vocabulary] in f32. Raises LoadError."""
    model = core.read_model(file)
    if not any(sink.get_type_name() == "Assign" for sink in model.get_sinks()):
        raise LoadError(f"{file.name} keeps no KV cache, so it cannot have paged attention", field="engine")
    try:
        paged_attention_transformation(model)
    except RuntimeError as error:
        raise LoadError(
            f"this model cannot have paged attention: {sentence(error)}", field="engine"
        ) from error
    _mend_positions(model)
    _split_tokens_of_states(model)
    for port in model.inputs:  # some have a second name, a number
        if names := port.names & INPUTS:
            port.tensor.set_names(names)
    names = {port.any_name for port in model.inputs} | {"rows"}
    if strange := sorted(name for name in names - INPUTS if CACHES not in name and STATES not in name):
        raise LoadError(f"the paged engine does not know this model's inputs {strange}", field="engine")
    result = model.outputs[0].get_node()
    layer = result.input_value(0).get_node()
    while layer.get_type_name() in ELEMENTWISE:
        layer = layer.input_value(0).get_node()
    if layer.get_type_name() != "MatMul":
        raise LoadError("no output layer is found in this model", field="engine")
    rows = ops.parameter([-1], np.int32, name="rows")
    rows.output(0).get_tensor().set_names({"rows"})
    hidden = layer.input_value(0)
    users = list(hidden.get_target_inputs())  # offsets of the layer's groups are multiplied by sums of theirs
    row_states = ops.gather(hidden, rows, ops.constant(0))
    for user in users:
        user.replace_source_output(row_states.output(0))
    model.add_parameters([rows])
    logits = ops.convert(ops.squeeze(result.input_value(0), ops.constant([1])), "f32")
    model.remove_result(result)
    model.add_results([ops.result(logits.output(0))])
    return model


def _mend_positions(model: openvino.Model) -> None:
    """Let a model that counts its positions itself take those of its input. Raises LoadError.

    The transformation lets it count from the longest context of the step, so that all tokens would have one
    position. Seen: Qwen3.5 without its vision part, Granite 4's hybrids with rotary positions."""
    inputs = {name: port for port in model.inputs for name in port.names}
    if not {"max_context_len", "position_ids"} <= inputs.keys():
        return
    for count in _counts(inputs["max_context_len"].get_node()):
        positions = ops.convert(inputs["position_ids"], count.get_element_type())
        for port in count.get_target_inputs():
            user = port.get_node()
            rank = user.get_output_partial_shape(0).rank.get_length()
            if user.get_type_name() not in ("Reshape", "Unsqueeze") or rank < 2:
                raise LoadError("the model counts positions, how is not known", field="engine")
            shape = ops.constant(np.array([1] * (rank - 2) + [-1, 1]))  # a token of so many sequences
            own = ops.reshape(positions, shape, special_zero=False)
            for target in user.output(0).get_target_inputs():
                target.replace_source_output(own.output(0))
    model.validate_nodes_and_infer_types()


def _split_tokens_of_states(model: openvino.Model) -> None:
    """Give the operations that compute states an input of their own for the tokens of sequences."""
    inputs = {name: port for port in model.inputs for name in port.names}
    if STATE_INPUTS[0] not in inputs:
        return
    own = ops.parameter([-1], np.int32, name=STATE_TOKENS)
    own.output(0).get_tensor().set_names({STATE_TOKENS})
    for target in inputs["subsequence_begins"].get_target_inputs():
        if target.get_node().get_type_name() in OF_STATES:
            target.replace_source_output(own.output(0))
    model.add_parameters([own])


def _counts(longest: Any) -> list[Any]:
    """Return the first outputs, other than scalars and attention's, that depend on the longest context."""
    counts: list[Any] = []
    names, waiting = set[str](), [longest.output(0)]
    while waiting:
        for port in waiting.pop().get_target_inputs():
            user = port.get_node()
            if user.get_type_name() == PAGED_ATTENTION or user.get_friendly_name() in names:
                continue
            names.add(user.get_friendly_name())
            is_scalar = user.get_output_partial_shape(0).rank.get_length() == 0
            (waiting if is_scalar else counts).append(user.output(0))
    return counts
