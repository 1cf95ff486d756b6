"""A vision model in LLaVA's layout, made on the spot: `python -m scripts.vision_model DIRECTORY [MODEL.gguf]`.

No registry has a small vision model, so one is made of a language model. The library converts a .gguf file to
OpenVINO's form. The table of token embeddings is cut off that graph and becomes the text embeddings model; the
rest takes embeddings. The vision encoder is untrained: one convolution over patches and one matrix.

Without MODEL.gguf the language model is random too, and tiny: half a megabyte, made in a second, and its answer
depends on every token and pixel, which is all that tests of the path need. With the default model it speaks
fluently, and still cannot see.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import openvino as ov
import openvino_genai as ov_genai
from gguf import GGUFReader, GGUFValueType, GGUFWriter, TokenType
from openvino import opset13 as ops

from scripts.vision_parts import (
    CHATML,
    CONTEXT,
    copy_tokenizer,
    cut_embeddings,
    finish,
    parameter,
    save,
    save_language,
    write_json,
    write_tiny,
)

IMAGE = "<image>"  # LLaVA's token, which the library looks for
SIDE, PATCH = 56, 14  # pixels
IMAGE_TOKENS = (SIDE // PATCH) ** 2 + 1  # and the newline that the library puts after an image


def make(directory: Path, gguf: Path | None = None, *, seed: int = 0) -> None:
    with tempfile.TemporaryDirectory() as work:
        source = Path(work) / "model.gguf"
        if gguf is None:
            write_tiny(source, np.random.default_rng(seed), [IMAGE])
        else:
            _copy_with_image_token(gguf, source)
        ov_genai.LLMPipeline(str(source), "CPU", enable_save_ov_model=True)
        directory.mkdir(parents=True, exist_ok=True)
        language = ov.Core().read_model(source.with_name("openvino_model.xml"))
        width = cut_embeddings(language, directory)
        save_language(language, directory)
        eye = directory / "openvino_vision_embeddings_model.xml"
        _write_eye(eye, width, np.random.default_rng(seed + 1))
        copy_tokenizer(source.parent, directory)
    write_json(directory / "config.json", {
        "model_type": "llava",
        "architectures": ["LlavaForConditionalGeneration"],
        "max_position_embeddings": CONTEXT,
        "vision_config": {"patch_size": PATCH, "image_size": SIDE},
    })  # fmt: skip
    half = [0.5, 0.5, 0.5]
    write_json(directory / "preprocessor_config.json", {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": SIDE},
        "crop_size": {"height": SIDE, "width": SIDE},
        "image_mean": half,
        "image_std": half,
    })  # fmt: skip
    (directory / "chat_template.jinja").write_text(CHATML)


def _write_eye(path: Path, width: int, random: np.random.Generator) -> None:
    """Rows of that width, one for each patch."""
    pixels = parameter([1, 3, -1, -1], ov.Type.f32, "pixel_values")
    kernel = random.normal(0, (3 * PATCH * PATCH) ** -0.5, (width, 3, PATCH, PATCH)).astype(np.float32)
    mixing = random.normal(0, width**-0.5, (width, width)).astype(np.float32)
    steps, none, one = [PATCH, PATCH], [0, 0], [1, 1]
    patches = ops.convolution(pixels, ops.constant(kernel), steps, none, none, one)
    rows = ops.transpose(ops.reshape(patches, ops.constant([1, width, -1]), False), ops.constant([0, 2, 1]))
    features = ops.tanh(ops.matmul(rows, ops.constant(mixing), False, False))
    scaled = ops.multiply(features, ops.constant(np.float32(0.3)))  # about as long as a token's vector
    save({"last_hidden_state": scaled}, [pixels], path)


def _copy_with_image_token(source: Path, target: Path) -> None:
    """The same model; a control token that no text needs is LLaVA's now."""
    reader = GGUFReader(str(source))
    writer = GGUFWriter(str(target), reader.fields["general.architecture"].contents())
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        value = field.contents()
        if field.name == "tokenizer.ggml.tokens":
            types = reader.fields["tokenizer.ggml.token_type"].contents()
            value[max(i for i, t in enumerate(types) if t == TokenType.CONTROL)] = IMAGE
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, value, field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    finish(writer)


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
