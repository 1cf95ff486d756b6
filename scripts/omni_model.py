"""The part of Qwen3-Omni that reads and writes text, tiny and random: `python -m scripts.omni_model DIRECTORY`.

Made like the model of `qwen2vl_model.py`, with three differences. Positions have four dimensions, the vision
encoder is one model with separate position embeddings, and its output enters the language model a second time
(deepstack).
Where the talker would be, which makes sound, there is an empty file: what says that a model is an Omni, and
what the library does not read for text.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as ov_genai
from openvino import opset13 as ops

from scripts.qwen2vl_model import (
    MARKS,
    MERGED,
    PATCH,
    Eye,
    eye_inputs,
    spread_of_embeddings,
    turn_in_dimensions,
    write_processor,
)
from scripts.vision_parts import (
    CHATML,
    CONTEXT,
    END,
    IM_END,
    IM_START,
    copy_tokenizer,
    cut_embeddings,
    parameter,
    save,
    save_language,
    write_json,
    write_tiny,
)

AUDIO = ("<|audio_start|>", "<|audio_pad|>", "<|audio_end|>")
POSITIONS = 16  # a table of four rows and columns, interpolated for an image
TALKER = "openvino_talker_model.xml"


def make(directory: Path, *, seed: int = 0) -> None:
    random = np.random.default_rng(seed)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        source = Path(work) / "model.gguf"
        write_tiny(source, random, (*MARKS, *AUDIO))
        ov_genai.LLMPipeline(str(source), "CPU", enable_save_ov_model=True)
        language = ov.Core().read_model(source.with_name("openvino_model.xml"))
        width = cut_embeddings(language, directory)
        turn_in_dimensions(language, 4)
        _add_what_is_seen(language, width)
        save_language(language, directory)
        copy_tokenizer(source.parent, directory)
    _write_eye(directory, Eye(width, spread_of_embeddings(directory), random), random)
    (directory / TALKER).touch()
    _write_config(directory, width)
    write_processor(directory)
    (directory / "chat_template.jinja").write_text(CHATML)


def _add_what_is_seen(language: ov.Model, width: int) -> None:
    """Add to the embeddings that `visual_pos_masks` marks, in their order; a real one does it behind some layers."""
    mask = parameter([-1, -1], ov.Type.boolean, "visual_pos_masks")
    seen = parameter([1, -1, width], ov.Type.f32, "deepstack_visual_embeds")
    vectors = language.input("inputs_embeds").get_node()
    targets = list(vectors.output(0).get_target_inputs())
    marked = ops.convert(ops.reshape(mask, ops.constant([-1]), False), "i64")
    number = ops.maximum(ops.subtract(ops.cumsum(marked, ops.constant(0)), ops.constant(1)), ops.constant(0))
    rows = ops.gather(ops.squeeze(seen, ops.constant(0)), number, ops.constant(0))
    more = ops.multiply(rows, ops.unsqueeze(ops.convert(marked, "f32"), ops.constant(1)))
    flat = ops.add(ops.reshape(vectors, ops.constant([-1, width]), False), more)
    both = ops.reshape(flat, ops.shape_of(vectors), False)
    for target in targets:
        target.replace_source_output(both.output(0))
    language.add_parameters([mask, seen])


def _write_eye(directory: Path, eye: Eye, random: np.random.Generator) -> None:
    pixels = parameter([-1, Eye.PIXELS], ov.Type.f32, "hidden_states")
    places = parameter([-1, Eye.INNER], ov.Type.f32, "pos_embeds")
    mask, turns = eye_inputs()
    patches = ops.add(eye.patches(pixels), places)
    outputs = {
        "last_hidden_state": eye.tokens(patches, mask, turns),
        "deepstack_feature_lists": ops.unsqueeze(eye.tokens(patches, mask, turns), ops.constant(0)),
    }
    save(outputs, [pixels, places, mask, turns], directory / "openvino_vision_embeddings_model.xml")
    given = parameter([4, -1], ov.Type.i64, "input")
    table = ops.constant(random.normal(0, 0.3, (POSITIONS, Eye.INNER)).astype(np.float32))
    looked_up = ops.gather(table, given, ops.constant(0))
    save({"last_hidden_state": looked_up}, [given], directory / "openvino_vision_embeddings_pos_model.xml")


def _write_config(directory: Path, width: int) -> None:
    first = IM_END + 1
    ids = {mark: first + i for i, mark in enumerate((*MARKS, *AUDIO))}
    write_json(directory / "config.json", {
        "model_type": "qwen3_omni_moe",
        "architectures": ["Qwen3OmniMoeForConditionalGeneration"],
        "max_position_embeddings": CONTEXT,
        "enable_audio_output": True,
        "im_start_token_id": IM_START,
        "thinker_config": {
            "audio_token_id": ids["<|audio_pad|>"],
            "image_token_id": ids["<|image_pad|>"],
            "video_token_id": ids["<|video_pad|>"],
            "text_config": {"hidden_size": width},
            "vision_config": {
                "num_position_embeddings": POSITIONS,
                "deepstack_visual_indexes": [0],
                "patch_size": PATCH,
                "spatial_merge_size": MERGED,
                "temporal_patch_size": 2,
            },
        },
    })  # fmt: skip
    write_json(directory / "generation_config.json", {"eos_token_id": [IM_END, END], "pad_token_id": END})


if __name__ == "__main__":
    make(Path(sys.argv[1]))
