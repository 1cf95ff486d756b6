"""Makes an EAGLE3 head and a model it drafts for, of the tiny models of `tiny.py`.

Both are written by the library itself of .gguf files. It finds its way in them by names that an export from
torch has and that are given here: the ends of the main model's layers, and that of the head's one layer. The
head gets the states of three of those layers through a matrix of its own and adds them to the embeddings of its
tokens; a real one mixes them by more than adding.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as ov_genai
from openvino import opset13 as ops

from scripts.vision_parts import is_a, parameter, write_json
from tests.engine import tiny

LAYERS = 12  # the library takes the states behind 2, the middle one, and 3 before the last; at least 10


def make(main: Path, head: Path, successors: Mapping[str, str], drafted: Mapping[str, str]) -> None:
    """Two directories: what the model says after each character, and what the head believes it says."""
    model = _read(main, successors, LAYERS)
    for number, end in enumerate(_ends_of_layers(model)):
        end.set_friendly_name(f"model.layers.{number}/add")
    _save(model, main, LAYERS)
    model = _read(head, drafted, 1)
    (end,) = _ends_of_layers(model)
    end.set_friendly_name("midlayer/add")
    _take_states(model)
    _save(model, head, 1)


def _read(directory: Path, successors: Mapping[str, str], layers: int) -> ov.Model:
    directory.mkdir()
    file = directory / "model.gguf"
    tiny.write(file, successors, layers)
    ov_genai.LLMPipeline(str(file), "CPU", enable_save_ov_model=True)
    file.unlink()
    read, weights = directory / "read.xml", directory / "read.bin"
    (directory / "openvino_model.xml").rename(read)
    (directory / "openvino_model.bin").rename(weights)
    return ov.Core().read_model(read)


def _ends_of_layers(model: ov.Model) -> list[Any]:
    """What the library looks for: a sum whose second part is a matrix times a product (of the gate)."""
    found = []
    for node in model.get_ordered_ops():
        if node.get_type_name() == "Add":
            second = node.input_value(1).get_node()
            if second.get_type_name() == "MatMul" and is_product(second.input_value(0)):
                found.append(node)
    return found


def is_product(value: Any) -> bool:
    return bool(value.get_node().get_type_name() == "Multiply")


def _take_states(model: ov.Model) -> None:
    states = parameter([-1, -1, -1], ov.Type.f32, "hidden_states")
    few = np.random.default_rng(0).normal(0, 0.01, (tiny.WIDTH, 3 * tiny.WIDTH)).astype(np.float32)
    ids = model.input("input_ids").get_node()
    (to_index,) = (t.get_node() for t in ids.output(0).get_target_inputs() if is_a(t, "Convert"))
    (lookup,) = (t.get_node() for t in to_index.output(0).get_target_inputs() if is_a(t, "Gather"))
    targets = list(lookup.output(0).get_target_inputs())
    both = ops.add(lookup, ops.matmul(states, ops.constant(few), False, True))
    for target in targets:
        target.replace_source_output(both.output(0))
    model.add_parameters([states])


def _save(model: ov.Model, directory: Path, layers: int) -> None:
    model.validate_nodes_and_infer_types()
    ov.save_model(model, directory / "openvino_model.xml", compress_to_fp16=False)
    config = {"model_type": "llama", "num_hidden_layers": layers, "max_position_embeddings": 4096}
    write_json(directory / "config.json", config)
