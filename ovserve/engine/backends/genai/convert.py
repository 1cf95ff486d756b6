"""GGUF to OpenVINO IR by the library's own reader, and the form of a network in IR.

    python -m ovserve.engine.backends.genai.convert FILE.gguf|NETWORK.xml [fp16] [merge] [int8_output]

A process of its own, started by `ovserve/pull/convert.py`: the reader crashes on some files, and takes three
times their size of memory. It writes openvino_model, openvino_tokenizer and openvino_detokenizer next to the
file; a network is replaced. Weights stay as they are quantised, or `fp16` unpacks them, which takes four
bytes of memory per weight. The processor's kernels for weights of that width are faster where a step has many
tokens. The packed weights are kept in a second network, PACKED, which is merged. `merge`: see `merge.py`;
`int8_output`: see `output_layer.py`. The last line of the output is `changed:` and those of the two that
changed the network.
"""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path

import openvino
import openvino_genai as ov_genai
from openvino.passes import ConstantFolding, Manager

from ovserve.engine.backends.genai.merge import Merger
from ovserve.engine.backends.genai.output_layer import OutputLayer
from ovserve.engine.model.files import PACKED

NETWORK = "openvino_model.xml"


def main() -> None:
    source, steps = Path(sys.argv[1]), sys.argv[2:]
    try:
        if source.suffix == ".gguf":
            ov_genai.LLMPipeline(str(source), "CPU", enable_save_ov_model=True)
            source = source.with_name(NETWORK)
        if "fp16" in steps:
            _keep_packed(source)
            _unpack(source)
        sys.stdout.write(f"\nchanged: {' '.join(_rewrite(source, steps))}\n")
    except RuntimeError as error:
        sys.exit(f"{error}")


def _keep_packed(network: Path) -> None:
    """Write the model to PACKED, unless hardly any of its weights are packed."""
    model = openvino.Core().read_model(network)
    weights = {False: 0, True: 0}  # by whether they are packed
    for node in model.get_ops():
        if node.get_type_name() == "Constant" and len(node.shape) > 1:
            weights[node.get_element_type().bitwidth <= 8] += prod(node.shape)
    if weights[True] > 0.1 * weights[False]:
        merger = Merger(model)  # it holds the weights until these are saved
        merger.merge()
        openvino.save_model(model, network.with_name(PACKED), compress_to_fp16=False)


def _unpack(network: Path) -> None:
    """Fold the constants: weights are made of their packed form, scale and zero point, which all are."""
    model = openvino.Core().read_model(network)
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(model)
    _replace(network, model, to_fp16=True)


def _rewrite(network: Path, steps: list[str]) -> list[str]:
    """Return the steps that changed something."""
    if not {"merge", "int8_output"} & set(steps):
        return []
    model = openvino.Core().read_model(network)
    merger, output_layer = Merger(model), OutputLayer(model)  # they hold the weights until these are saved
    changed = []
    if "merge" in steps and merger.merge():
        changed.append("merge")
    if "int8_output" in steps and output_layer.quantise():
        changed.append("int8_output")
    if changed:
        _replace(network, model, to_fp16=False)
    return changed


def _replace(network: Path, model: openvino.Model, *, to_fp16: bool) -> None:
    """Write the model in place of the file it was read from."""
    made = network.with_name("replaced.xml")
    openvino.save_model(model, made, compress_to_fp16=to_fp16)
    network.unlink()  # until the new one is there, the directory has no model
    made.with_suffix(".bin").replace(network.with_suffix(".bin"))
    made.replace(network)


if __name__ == "__main__":
    main()
