"""A tiny image generation pipeline in Stable Diffusion's layout: `python -m scripts.image_model DIRECTORY`.

Its networks have random weights and a few layers, so that it draws coloured noise in milliseconds. The picture
depends on the prompt, the negative prompt, the guidance, the seed, the steps, and the input image and mask.
"""

from __future__ import annotations

import json
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai as ov_genai
from numpy.typing import NDArray
from openvino import Type
from openvino import opset13 as ops

from scripts.vision_parts import copy_tokenizer, parameter, save, write_json, write_tiny

WIDTH, LATENT, SIDE, TOKENS = (
    32,
    4,
    8,
    77,
)  # of a text vector; channels; pixels per latent; tokens of a prompt
PROJECTION = "context"  # the layer that an adapter changes

SCHEDULER = {
    "_class_name": "DDIMScheduler", "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear",
    "clip_sample": False, "num_train_timesteps": 1000, "prediction_type": "epsilon", "set_alpha_to_one": False,
    "steps_offset": 1, "trained_betas": None, "timestep_spacing": "leading",
}  # fmt: skip
PARTS = {
    "scheduler": ["diffusers", "DDIMScheduler"], "text_encoder": ["transformers", "CLIPTextModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"], "unet": ["diffusers", "UNet2DConditionModel"],
    "vae_decoder": ["diffusers", "AutoencoderKL"], "vae_encoder": ["diffusers", "AutoencoderKL"],
}  # fmt: skip


def make(directory: Path, *, seed: int = 0, edits: bool = True, work: int = 0) -> None:
    """Write the pipeline; without `edits` it has no encoder of images, so it can only generate.

    A step takes about 30 ms longer for each unit of `work` on a core with AVX2.
    """
    random = np.random.default_rng(seed)
    parts = {name: part for name, part in PARTS.items() if edits or name != "vae_encoder"}
    for name in parts:
        (directory / name).mkdir(parents=True, exist_ok=True)
    write_json(
        directory / "model_index.json",
        {"_class_name": "StableDiffusionPipeline", **parts, "vae": ["diffusers", "AutoencoderKL"]},
    )
    write_json(directory / "scheduler/scheduler_config.json", SCHEDULER)
    _tokenizer(directory / "tokenizer", random)
    _text_encoder(directory / "text_encoder", random)
    _unet(directory / "unet", random, work)
    vae = {
        "in_channels": 3, "out_channels": 3, "latent_channels": LATENT, "scaling_factor": 0.18215,
        "block_out_channels": [8, 8, 8, 8],
    }  # fmt: skip
    for name in ("vae_decoder", "vae_encoder")[: 1 + edits]:
        write_json(directory / name / "config.json", vae)
    _vae_decoder(directory / "vae_decoder", random)
    if edits:
        _vae_encoder(directory / "vae_encoder", random)


def make_adapter(file: Path, *, seed: int = 1, rank: int = 4) -> None:
    """Write a LoRA adapter of the layer PROJECTION, in the names of kohya's trainer."""
    random = np.random.default_rng(seed)
    file.parent.mkdir(parents=True, exist_ok=True)
    tensors = {
        f"lora_unet_{PROJECTION}.lora_down.weight": random.normal(0, 0.5, (rank, WIDTH)).astype(np.float32),
        f"lora_unet_{PROJECTION}.lora_up.weight": random.normal(0, 0.5, (LATENT, rank)).astype(np.float32),
    }
    write_safetensors(file, tensors)


def write_safetensors(file: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    """Write float32 tensors in the format of https://github.com/huggingface/safetensors, read 2026-11-22."""
    head, at = {}, 0
    for name, tensor in tensors.items():
        head[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [at, at := at + tensor.nbytes]}
    text = json.dumps(head).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(t.tobytes() for t in tensors.values()))


def _tokenizer(directory: Path, random: np.random.Generator) -> None:
    with tempfile.TemporaryDirectory() as work:
        write_tiny(Path(work) / "model.gguf", random, (), width=64, layers=1)
        ov_genai.LLMPipeline(str(Path(work) / "model.gguf"), "CPU", enable_save_ov_model=True)
        copy_tokenizer(Path(work), directory)


def _weights(random: np.random.Generator, *shape: int, scale: float = 1.0) -> Any:
    fan_in = int(np.prod(shape[1:]))
    return ops.constant(random.normal(0, scale / fan_in**0.5, shape).astype(np.float32))


def _text_encoder(directory: Path, random: np.random.Generator) -> None:
    write_json(directory / "config.json", {"max_position_embeddings": TOKENS, "num_hidden_layers": 1})
    ids = parameter([-1, -1], Type.i64, "input_ids")
    table = ops.constant(random.normal(0, 1, (512, WIDTH)).astype(np.float32))
    words = ops.gather(table, ops.convert(ids, "i32"), ops.constant(0))
    places = ops.constant(random.normal(0, 1, (1, TOKENS, WIDTH)).astype(np.float32))
    hidden = ops.multiply(words, places)
    pooled = ops.reduce_mean(hidden, ops.constant([1]), False)
    save({"last_hidden_state": hidden, "pooler_output": pooled}, [ids], directory / "openvino_model.xml")


def _unet(directory: Path, random: np.random.Generator, work: int) -> None:
    config = {"in_channels": LATENT, "out_channels": LATENT, "sample_size": 8, "time_cond_proj_dim": None}
    write_json(directory / "config.json", config)
    sample = parameter([-1, LATENT, -1, -1], Type.f32, "sample")
    step = parameter([-1], Type.i64, "timestep")
    text = parameter([-1, -1, WIDTH], Type.f32, "encoder_hidden_states")
    mean = ops.reduce_sum(text, ops.constant([1]), False)
    context = ops.matmul(mean, _weights(random, LATENT, WIDTH, scale=0.3), False, True)
    context.set_friendly_name(f"__module.{PROJECTION}/aten::linear/MatMul")
    context = ops.unsqueeze(context, ops.constant([2, 3]))
    late = ops.divide(ops.convert(step, "f32"), ops.constant(np.float32(1000)))
    seen = ops.convolution(sample, _weights(random, LATENT, LATENT, 3, 3), [1, 1], [1, 1], [1, 1], [1, 1])
    noise = ops.add(ops.multiply(sample, late), ops.tanh(ops.add(seen, context)))
    if work:
        matrix = _weights(random, 1024, 1024)
        power = ops.multiply(matrix, ops.reduce_mean(sample, ops.constant([0, 1, 2, 3]), False))
        for _ in range(work):
            power = ops.matmul(power, matrix, False, False)
        noise = ops.add(noise, ops.multiply(_mean(power), ops.constant(np.float32(1e-6))))
    save({"out_sample": noise}, [sample, step, text], directory / "openvino_model.xml")


def _mean(matrix: Any) -> Any:
    return ops.reduce_mean(matrix, ops.constant([0, 1]), False)


def _vae_decoder(directory: Path, random: np.random.Generator) -> None:
    latent = parameter([-1, LATENT, -1, -1], Type.f32, "latent_sample")
    colours = ops.convolution(latent, _weights(random, 3, LATENT, 1, 1), [1, 1], [0, 0], [0, 0], [1, 1])
    scales = ops.constant(np.array([SIDE, SIDE], np.float32))
    large = ops.interpolate(
        ops.tanh(colours), scales, "linear_onnx", "scales", coordinate_transformation_mode="half_pixel",
        axes=ops.constant([2, 3]),
    )  # fmt: skip
    save({"sample": large}, [latent], directory / "openvino_model.xml")


def _vae_encoder(directory: Path, random: np.random.Generator) -> None:
    image = parameter([-1, 3, -1, -1], Type.f32, "sample")
    small = ops.avg_pool(image, [SIDE, SIDE], [0, 0], [0, 0], [SIDE, SIDE], False)
    means = ops.convolution(small, _weights(random, LATENT, 3, 1, 1), [1, 1], [0, 0], [0, 0], [1, 1])
    spread = ops.subtract(ops.multiply(means, ops.constant(np.float32(0))), ops.constant(np.float32(20)))
    both = ops.concat([means, spread], 1)
    save({"latent_parameters": both}, [image], directory / "openvino_model.xml")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
