"""GGUF to OpenVINO IR, by the library's own reader.

    python -m ovserve.engine.backends.genai.convert FILE.gguf [fp16]

A process of its own, started by `ovserve/pull/convert.py`: the reader crashes on some files, and takes three
times their size of memory. It writes openvino_model, openvino_tokenizer and openvino_detokenizer next to the
file; weights stay as they are quantised, or are unpacked to fp16. The processor's kernels for weights of that
width are faster where a step has many tokens; unpacking here takes four bytes of memory per weight.
"""

from __future__ import annotations

import sys
from pathlib import Path

import openvino
import openvino_genai as ov_genai
from openvino.passes import ConstantFolding, Manager

NETWORK = "openvino_model.xml"


def main() -> None:
    try:
        ov_genai.LLMPipeline(sys.argv[1], "CPU", enable_save_ov_model=True)
        if sys.argv[2:] == ["fp16"]:
            _unpack(Path(sys.argv[1]).with_name(NETWORK))
    except RuntimeError as error:
        sys.exit(f"{error}")


def _unpack(network: Path) -> None:
    """Fold the constants: weights are made of their packed form, scale and zero point, which all are."""
    core = openvino.Core()
    model = core.read_model(network)
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(model)
    made = network.with_name("unpacked.xml")
    openvino.save_model(model, made, compress_to_fp16=True)
    del model  # it maps the file that is replaced
    for suffix in (".bin", ".xml"):
        made.with_suffix(suffix).replace(network.with_suffix(suffix))


if __name__ == "__main__":
    main()
