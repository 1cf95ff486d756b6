"""The default model cut to its first two layers, for tests that need any text of a real engine: `write(source, directory)`.

It has the vocabulary, the tokenizer and the chat template of the default model, and loads in 0.5 s of CPU time where
that one takes 2.4, or 4.6 from its .gguf file. What it says is no language.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

LAYERS = 2
# Rounding depends on how many tokens go through a matrix at once. Only so does it not show: plain and drafted
# text can then be compared exactly.
EXACT = (
    '{"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0, "INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}'
)
GRAPH = "openvino_model.xml"
COPIED = ("generation_config.json", "tokenizer_config.json", "openvino_tokenizer.*", "openvino_detokenizer.*")


def write(source: Path, directory: Path) -> None:
    """Cut what `ovserve pull` laid in `source`."""
    import openvino  # 0.2 s, which few processes of a run need

    model = openvino.Core().read_model(source / GRAPH)
    # The residual stream: to each sum of it a layer adds what attention found, and then what its feed-forward did.
    sums = [node for node in model.get_ordered_ops() if _is_residual_sum(node)]
    config = json.loads((source / "config.json").read_text())
    assert len(sums) == 2 * config["num_hidden_layers"], len(sums)
    for reader in sums[-1].output(0).get_target_inputs():
        reader.replace_source_output(sums[2 * LAYERS - 1].output(0))
    for sink in model.get_sinks():
        variable = sink.get_attributes()["variable_id"]  # such as past_key_values.7.key…
        if int(variable.split(".")[1]) >= LAYERS:
            model.remove_sink(sink)
            model.remove_variable(model.get_variable_by_id(variable))
    directory.mkdir(parents=True)
    openvino.save_model(model, directory / GRAPH, compress_to_fp16=False)
    (directory / "config.json").write_text(json.dumps(config | {"num_hidden_layers": LAYERS}))
    for pattern in COPIED:
        for file in source.glob(pattern):
            shutil.copy(file, directory)


def write_gguf(source: Path, file: Path) -> None:
    """Cut a .gguf file of the model so too, in 2.5 s of CPU time: its conversion and two loads take 15 s less."""
    from gguf import GGUFReader, GGUFWriter

    reader, writer = GGUFReader(source), GGUFWriter(file, "llama")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            value = LAYERS if name == "llama.block_count" else field.contents()
            writer.add_key_value(name, value, field.types[0], field.types[1] if field.types[1:] else None)
    for tensor in reader.tensors:
        layer = tensor.name.removeprefix("blk.").partition(".")[0]
        if not layer.isdecimal() or int(layer) < LAYERS:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _is_residual_sum(node: Any) -> bool:
    if node.get_type_name() != "Add":
        return False
    left, right = (value.get_source_output().get_node().get_type_name() for value in node.inputs())
    return right == "MatMul" and left != "Constant"
