"""`python -m ovserve.kinds.voice.worker.convert KOKORO.onnx DIRECTORY`: Kokoro to OpenVINO IR.

It is a process of its own, because the command never imports OpenVINO. The input `style` becomes `ref_s`, as
the library calls it. In the inverse Fourier transform, the range of batch indices is replaced by the one
index 0: OpenVINO 2026.4.1 computes it from the wrong dimension, and `Broadcast` fails.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset13

from ovserve.engine.model.files import end_with

MODEL = "openvino_model.xml"
BATCH_RANGE = "istft/stft/Expand"


def convert(source: Path, directory: Path) -> None:
    """Weights become float16. Raises ValueError for a network without Kokoro's inputs."""
    model = ov.convert_model(source)
    styles = [i for i in model.inputs if i.any_name == "style"]
    if len(styles) != 1:
        raise ValueError(f"expected one input `style`, got {[i.any_name for i in model.inputs]}")
    styles[0].get_tensor().set_names({"ref_s"})
    for node in model.get_ops():
        if node.get_type_name() == "Broadcast" and node.get_friendly_name().endswith(BATCH_RANGE):
            batch = node.input(0).get_source_output()
            zero = opset13.constant(np.zeros((1, 1), np.int64)).output(0)
            for reader in list(batch.get_target_inputs()):
                reader.replace_source_output(zero)
    model.validate_nodes_and_infer_types()
    ov.save_model(model, directory / MODEL, compress_to_fp16=True)


if __name__ == "__main__":
    end_with(convert)
