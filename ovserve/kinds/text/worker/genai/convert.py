"""Rewrite a network in IR: merge projections, or write the output layer in int8.

    python -m ovserve.kinds.text.worker.genai.convert NETWORK.xml [merge] [int8_output]

A process of its own, started by `ovserve/pull/convert.py`, because the server imports no openvino. It
replaces the network. `merge`: see `merge.py`; `int8_output`: see `output_layer.py`. The last line is
`changed:` and those of the two that changed the network.
"""

from __future__ import annotations

import sys
from pathlib import Path

import openvino

from ovserve.kinds.text.worker.genai.merge import Merger
from ovserve.kinds.text.worker.genai.output_layer import OutputLayer


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
    if "int8_output" in steps and output_layer.quantise():
        changed.append("int8_output")
    if changed:
        _replace(network, model)
    return changed


def _replace(network: Path, model: openvino.Model) -> None:
    """Write the model in place of the file it was read from."""
    made = network.with_name("replaced.xml")
    openvino.save_model(model, made, compress_to_fp16=False)
    network.unlink()  # until the new one is there, the directory has no model
    made.with_suffix(".bin").replace(network.with_suffix(".bin"))
    made.replace(network)


if __name__ == "__main__":
    main()
