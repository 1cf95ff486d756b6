"""Rewrite a network in IR: merge projections, compress weights, or write the output layer in int8.

    python -m ovserve.kinds.text.worker.genai.convert NETWORK.xml [merge] [int8|int4] [int8_output]

A process of its own, started by `ovserve/pull/convert.py`, because the server imports no openvino. It
replaces the network. `merge`: see `merge.py`; `int8_output`: see `output_layer.py`; `int8` and `int4` are
the runtime's own compression of float weights, nncf. The last line is `changed:` and those that changed the
network.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import openvino

from ovserve.kinds.text.worker.genai.merge import Merger
from ovserve.kinds.text.worker.genai.output_layer import OutputLayer

GROUP_SIZE = 128  # weights with one scale and zero point, where that divides their row


def main() -> None:
    try:
        sys.stdout.write(f"\nchanged: {' '.join(_rewrite(Path(sys.argv[1]), sys.argv[2:]))}\n")
    except RuntimeError as error:
        sys.exit(f"{error}")


def _rewrite(network: Path, steps: list[str]) -> list[str]:
    """Return the steps that changed something."""
    model = openvino.Core().read_model(network)
    merger, output_layer = Merger(model), OutputLayer(model)  # they hold the weights until these are saved
    changed = []
    if "merge" in steps and merger.merge():
        changed.append("merge")
    changed += [bits for bits in ("int8", "int4") if bits in steps and compress(model, bits)]
    if "int8_output" in steps and output_layer.quantise():
        changed.append("int8_output")
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
