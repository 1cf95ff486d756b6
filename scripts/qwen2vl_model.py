"""A vision model in Qwen2-VL's layout, made on the spot: `python -m scripts.qwen2vl_model DIRECTORY [MODEL]`.

Like `vision_model.py`, it makes a vision model of a language model. In this layout the number of an image's
tokens depends on its size, and positions have three dimensions (time, height, width). MODEL is a directory in
OpenVINO's form that `ovserve pull --convert` wrote of a .gguf file of Qwen2.5; without it a tiny random one is
made. A change of the graph gives the rotary embedding its three dimensions. The vision encoder is Qwen2-VL's with
random weights: answers depend on each pixel, but it is untrained.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as ov_genai
from openvino import opset13 as ops

from scripts.vision_parts import (
    CHATML,
    CONTEXT,
    END,
    IM_END,
    copy_tokenizer,
    cut_embeddings,
    is_a,
    parameter,
    save,
    save_language,
    write_json,
    write_tiny,
)

VISION_START, VISION_END, VISION, IMAGE, VIDEO = MARKS = (
    "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
PATCH, MERGED = 14, 2  # pixels of a patch's side; patches of a token's side
MIN_PIXELS, MAX_PIXELS = 3136, 401408
MEAN, SPREAD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]


def image_tokens(width: int, height: int) -> int:
    """Count the tokens of an image within MAX_PIXELS, its markers included: a token for each 28 x 28 pixels, sides rounded."""
    side = PATCH * MERGED
    return max(1, round(width / side)) * max(1, round(height / side)) + 2


def make(directory: Path, source: Path | None = None, *, seed: int = 0) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        if source is None:
            source = Path(work)
            write_tiny(source / "model.gguf", np.random.default_rng(seed), MARKS)
            ov_genai.LLMPipeline(str(source / "model.gguf"), "CPU", enable_save_ov_model=True)
        language = ov.Core().read_model(source / "openvino_model.xml")
        width = cut_embeddings(language, directory)
        turn_in_dimensions(language, 3)
        save_language(language, directory)
        _write_eye(directory, Eye(width, spread_of_embeddings(directory), np.random.default_rng(seed + 1)))
        copy_tokenizer(source, directory)
        _write_configs(directory, source / "config.json")


def turn_in_dimensions(language: ov.Model, dimensions: int) -> None:
    """Positions are [dimensions, batch, tokens]: a share of the frequencies turns with each of the first three."""
    old = language.input("position_ids").get_node()
    positions = parameter([dimensions, -1, -1], ov.Type.i64, "position_ids")
    node = old
    while node.get_type_name() != "MatMul":  # of the frequencies and the positions
        (target,) = (t for t in node.output(0).get_target_inputs() if not is_a(t, "ShapeOf"))
        node = target.get_node()
    angles = next(t.get_node() for t in node.output(0).get_target_inputs() if is_a(t, "Transpose"))
    frequencies = node.input_value(0).get_node()
    while frequencies.get_type_name() != "Constant":
        frequencies = frequencies.input_value(0).get_node()
    rates = np.asarray(frequencies.data, np.float32).reshape(-1)
    of_time = len(rates) // 4
    of_height = (len(rates) - of_time) // 2
    share = np.zeros((dimensions, 1, 1, len(rates)), np.float32)
    share[0, ..., :of_time] = share[1, ..., of_time : of_time + of_height] = 1
    share[2, ..., of_time + of_height :] = 1
    turned = ops.multiply(ops.unsqueeze(ops.convert(positions, "f32"), ops.constant(3)), share * rates)
    angles.output(0).replace(ops.reduce_sum(turned, ops.constant([0]), False).output(0))
    for target in list(old.output(0).get_target_inputs()):  # which ask for the shape, of one dimension less
        target.replace_source_output(ops.gather(positions, ops.constant(0), ops.constant(0)).output(0))
    language.remove_parameter(old)
    language.add_parameters([positions])


def spread_of_embeddings(directory: Path) -> float:
    table = ov.Core().compile_model(directory / "openvino_text_embeddings_model.xml", "CPU")
    return float(np.std(table(np.arange(256)[None])[0]))


class Eye:
    """One layer of random weights, INNER numbers per patch in two heads, and the part that makes one token of
    four patches. What it gives is as wide and as loud as the embeddings of text."""

    INNER, HEADS = 32, 2
    EACH = INNER // HEADS
    PIXELS = 3 * 2 * PATCH * PATCH  # of a patch, in three colours and two frames

    def __init__(self, width: int, loud: float, random: np.random.Generator) -> None:
        self.width = width
        self._loud = loud
        self._random = random

    def patches(self, pixels: Any) -> Any:
        return self._linear(pixels, self.INNER, self.PIXELS)

    def tokens(self, patches: Any, mask: Any, turns: Any) -> Any:
        """[tokens, width]. `mask` is [1, patches, patches], `turns` [patches, EACH / 2] in radians."""
        angles = ops.unsqueeze(ops.concat([turns, turns], -1), ops.constant(1))
        three = self._linear(_norm(patches), 3 * self.INNER, self.INNER)
        split = ops.reshape(three, ops.constant([-1, 3, self.HEADS, self.EACH]), False)

        def part(index: int, *, turned: bool) -> Any:
            """[heads, patches, EACH]"""
            value = ops.gather(split, ops.constant(index), ops.constant(1))
            if turned:
                low, high = ops.split(value, ops.constant(2), 2).outputs()
                half = ops.concat([ops.negative(high), low], -1)
                value = ops.add(ops.multiply(value, ops.cos(angles)), ops.multiply(half, ops.sin(angles)))
            return ops.transpose(value, ops.constant([1, 0, 2]))

        query, key, value = part(0, turned=True), part(1, turned=True), part(2, turned=False)
        seen = ops.scaled_dot_product_attention(query, key, value, mask)
        flat = ops.reshape(
            ops.transpose(seen, ops.constant([1, 0, 2])), ops.constant([-1, self.INNER]), False
        )
        mixed = ops.add(patches, self._linear(flat, self.INNER, self.INNER))
        four = MERGED**2 * self.INNER
        together = ops.reshape(_norm(mixed), ops.constant([-1, four]), False)
        deep = ops.gelu(self._linear(together, four, four), "erf")
        out = ops.tanh(self._linear(deep, self.width, four))
        return ops.multiply(out, ops.constant(np.float32(2 * self._loud)))

    def _linear(self, value: Any, rows: int, columns: int) -> Any:
        matrix = self._random.normal(0, columns**-0.5, (rows, columns)).astype(np.float32)
        return ops.matmul(value, ops.constant(matrix), False, True)


def _norm(value: Any) -> Any:
    return ops.mvn(value, ops.constant([1]), True, 1e-6, "inside_sqrt")


def eye_inputs() -> tuple[Any, Any]:
    """The mask between the patches of one image and another, and their rotary positions."""
    mask = parameter([1, -1, -1], ov.Type.f32, "attention_mask")
    return mask, parameter([-1, Eye.EACH // 2], ov.Type.f32, "rotary_pos_emb")


def _write_eye(directory: Path, eye: Eye) -> None:
    pixels = parameter([-1, Eye.PIXELS], ov.Type.f32, "hidden_states")
    first = directory / "openvino_vision_embeddings_model.xml"
    save({"last_hidden_state": eye.patches(pixels)}, [pixels], first)
    patches, (mask, turns) = parameter([-1, Eye.INNER], ov.Type.f32, "hidden_states"), eye_inputs()
    merger = directory / "openvino_vision_embeddings_merger_model.xml"
    save({"last_hidden_state": eye.tokens(patches, mask, turns)}, [patches, mask, turns], merger)


def _write_configs(directory: Path, of_text: Path) -> None:
    """`of_text`: the language model's config.json; a tiny one has none."""
    known = json.loads(of_text.read_text()) if of_text.exists() else {}
    context = known.get("max_position_embeddings", CONTEXT)
    ends = known.get("eos_token_id", IM_END)
    write_json(directory / "config.json", {
        "model_type": "qwen2_vl",
        "architectures": ["Qwen2VLForConditionalGeneration"],
        "max_position_embeddings": context,
        "eos_token_id": ends,
        "vision_config": {"patch_size": PATCH, "spatial_merge_size": MERGED, "temporal_patch_size": 2},
    })  # fmt: skip
    pad = known.get("bos_token_id", END)
    every = list(dict.fromkeys([*(ends if isinstance(ends, list) else [ends]), pad]))
    write_json(directory / "generation_config.json", {"eos_token_id": every, "pad_token_id": pad})
    write_processor(directory)
    (directory / "chat_template.jinja").write_text(CHATML)


def write_processor(directory: Path) -> None:
    write_json(directory / "preprocessor_config.json", {
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": MIN_PIXELS,
        "max_pixels": MAX_PIXELS,
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGED,
        "image_mean": MEAN,
        "image_std": SPREAD,
    })  # fmt: skip


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
