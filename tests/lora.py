"""A tiny language model with named layers, a LoRA adapter of it, and the model with the adapter merged in."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as ov_genai
from numpy.typing import NDArray
from openvino import opset13 as ops

from scripts.image_model import write_safetensors
from scripts.vision_parts import write_json, write_tiny

WIDTH, LAYERS, RANK = 64, 2, 4
PREFIX = "base_model.model.model.layers"
_WEIGHT = re.compile(r"model\.layers\[(\d+)\]\.(.*)\.weight")

Tensors = Mapping[str, NDArray[np.float32]]


def model(directory: Path, width: int = WIDTH, layers: int = LAYERS) -> None:
    """A random Llama as optimum exports it: each projection has the name of its layer."""
    directory.mkdir(parents=True)
    write_tiny(directory / "model.gguf", np.random.default_rng(0), (), width=width, layers=layers)
    ov_genai.LLMPipeline(str(directory / "model.gguf"), "CPU", enable_save_ov_model=True)
    (directory / "model.gguf").unlink()
    merge(directory, directory, {}, 0.0)


def adapter(
    directory: Path, seed: int, alpha: int | None = None, width: int = WIDTH, layers: int = LAYERS
) -> Tensors:
    """Write an adapter of q_proj and v_proj in PEFT's form; with `alpha` also its configuration."""
    random = np.random.default_rng(seed)
    tensors = {}
    for layer in range(layers):
        for name in ("q_proj", "v_proj"):
            key = f"{PREFIX}.{layer}.self_attn.{name}"
            tensors[f"{key}.lora_A.weight"] = random.normal(0, 0.3, (RANK, width)).astype(np.float32)
            tensors[f"{key}.lora_B.weight"] = random.normal(0, 0.3, (width, RANK)).astype(np.float32)
    directory.mkdir(parents=True)
    write_safetensors(directory / "adapter_model.safetensors", tensors)
    if alpha is not None:
        write_json(directory / "adapter_config.json", {"r": RANK, "lora_alpha": alpha})
    return tensors


def merge(source: Path, target: Path, tensors: Tensors, alpha: float) -> None:
    """Write the model with alpha times the product of the adapter's matrices added to its weights."""
    found = ov.Core().read_model(source / "openvino_model.xml")
    for node in found.get_ordered_ops():
        if node.get_type_name() != "MatMul":
            continue
        weight = _constant(node.input_value(1).get_node())
        named = _WEIGHT.fullmatch(weight.get_friendly_name())
        if named is None:
            continue
        node.set_friendly_name(f"__module.model.layers.{named[1]}.{named[2]}/MatMul")
        key = f"{PREFIX}.{named[1]}.{named[2]}"
        values = np.asarray(weight.data).astype(np.float32)
        if f"{key}.lora_A.weight" in tensors:
            product = tensors[f"{key}.lora_B.weight"] @ tensors[f"{key}.lora_A.weight"]
            values = values + np.float32(alpha) * product
        made = ops.constant(values, name=weight.get_friendly_name())
        node.input(1).replace_source_output(made.output(0))
    if target != source:
        shutil.copytree(source, target)
    ov.save_model(found, target / "new.xml", compress_to_fp16=False)
    for suffix in ("xml", "bin"):
        (target / f"new.{suffix}").replace(target / f"openvino_model.{suffix}")


def _constant(node: Any) -> Any:
    while node.get_type_name() in ("Convert", "Multiply", "Reshape", "Subtract"):
        node = node.input_value(0).get_node()
    return node
