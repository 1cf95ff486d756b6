"""A vision model in LLaVA's layout, made on the spot: `python -m tests.vision_model DIRECTORY [MODEL.gguf]`.

No registry has a small vision model, so one is made of a language model: the library itself turns a .gguf file
into OpenVINO's form, the table of token embeddings is cut off that graph and becomes the text embeddings model,
and what is left takes embeddings. The vision part is random: one convolution over patches and one matrix. So it
sees colours and where they are, and has never learnt a word for them.

Without MODEL.gguf the language model is random too, and tiny: half a megabyte, made in a second, and its answer
depends on every token and pixel, which is all that tests of the path need. With the default model it speaks
fluently, and still cannot see.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as ov_genai
from gguf import GGUFReader, GGUFValueType, GGUFWriter, TokenType
from openvino import opset13 as ops

IMAGE = "<image>"  # LLaVA's token, which the library looks for
SIDE, PATCH = 56, 14  # pixels
IMAGE_TOKENS = (SIDE // PATCH) ** 2 + 1  # and the newline that the library puts after an image
CONTEXT = 2048
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make(directory: Path, gguf: Path | None = None, *, seed: int = 0) -> None:
    with tempfile.TemporaryDirectory() as work:
        source = Path(work) / "model.gguf"
        if gguf is None:
            _write_tiny(source, np.random.default_rng(seed))
        else:
            _copy_with_image_token(gguf, source)
        ov_genai.LLMPipeline(str(source), "CPU", enable_save_ov_model=True)
        directory.mkdir(parents=True, exist_ok=True)
        _split(source.with_name("openvino_model.xml"), directory, np.random.default_rng(seed + 1))
        for name in ("openvino_tokenizer", "openvino_detokenizer"):
            for suffix in (".xml", ".bin"):
                shutil.copy(source.with_name(name + suffix), directory)
    _write_json(directory / "config.json", {
        "model_type": "llava",
        "architectures": ["LlavaForConditionalGeneration"],
        "max_position_embeddings": CONTEXT,
        "vision_config": {"patch_size": PATCH, "image_size": SIDE},
    })  # fmt: skip
    half = [0.5, 0.5, 0.5]
    _write_json(directory / "preprocessor_config.json", {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": SIDE},
        "crop_size": {"height": SIDE, "width": SIDE},
        "image_mean": half,
        "image_std": half,
    })  # fmt: skip
    (directory / "chat_template.jinja").write_text(CHATML)


def _split(model: Path, directory: Path, random: np.random.Generator) -> None:
    """The language model without its embeddings, these by themselves, and a vision part of the same width."""
    language = ov.Core().read_model(model)
    ids = language.input("input_ids").get_node()
    (to_index,) = (t.get_node() for t in ids.output(0).get_target_inputs() if _is(t, "Convert"))
    (lookup,) = (t.get_node() for t in to_index.output(0).get_target_inputs() if _is(t, "Gather"))
    table, width = lookup.input_value(0), lookup.output(0).get_partial_shape()[2].get_length()

    given = _parameter([-1, -1], ov.Type.i64, "input")
    embeds = ops.gather(table, ops.convert(given, "i32"), ops.constant(0))
    _save([embeds], "inputs_embeds", given, directory / "openvino_text_embeddings_model.xml")

    vectors = _parameter([-1, -1, width], ov.Type.f32, "inputs_embeds")
    for target in list(lookup.output(0).get_target_inputs()):
        target.replace_source_output(vectors.output(0))
    for target in list(ids.output(0).get_target_inputs()):
        if _is(target, "ShapeOf"):  # of which the library takes the first number, the batch
            target.replace_source_output(vectors.output(0))
    language.remove_parameter(ids)
    language.add_parameters([vectors])
    language.validate_nodes_and_infer_types()
    ov.save_model(language, directory / "openvino_language_model.xml", compress_to_fp16=False)

    pixels = _parameter([1, 3, -1, -1], ov.Type.f32, "pixel_values")
    kernel = random.normal(0, (3 * PATCH * PATCH) ** -0.5, (width, 3, PATCH, PATCH)).astype(np.float32)
    mixing = random.normal(0, width**-0.5, (width, width)).astype(np.float32)
    steps, none, one = [PATCH, PATCH], [0, 0], [1, 1]
    patches = ops.convolution(pixels, ops.constant(kernel), steps, none, none, one)
    rows = ops.transpose(ops.reshape(patches, ops.constant([1, width, -1]), False), ops.constant([0, 2, 1]))
    features = ops.tanh(ops.matmul(rows, ops.constant(mixing), False, False))
    scaled = ops.multiply(features, ops.constant(np.float32(0.3)))  # about as long as a token's vector
    _save([scaled], "last_hidden_state", pixels, directory / "openvino_vision_embeddings_model.xml")


def _is(target: Any, kind: str) -> bool:
    return bool(target.get_node().get_type_name() == kind)


def _parameter(shape: list[int], type_: Any, name: str) -> Any:
    parameter = ops.parameter(shape, type_, name=name)
    parameter.output(0).set_names({name})
    return parameter


def _save(outputs: list[Any], name: str, parameter: Any, path: Path) -> None:
    result = ops.result(outputs[0])
    result.output(0).set_names({name})
    ov.save_model(ov.Model([result], [parameter], path.stem), path)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1))


# ---- language models as .gguf files


def _write_tiny(path: Path, random: np.random.Generator, width: int = 64, layers: int = 2) -> None:
    """Llama with a token for every byte."""
    tokens = [*_bytes_as_text(), "<|endoftext|>", "<|im_start|>", "<|im_end|>", IMAGE, "th"]
    types = [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * 4 + [TokenType.NORMAL]
    writer = GGUFWriter(str(path), "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(width)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_file_type(0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([int(t) for t in types])
    writer.add_token_merges(["t h"])  # the library's reader wants one
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(258)
    writer.add_pad_token_id(256)
    writer.add_add_bos_token(False)

    def matrix(rows: int, columns: int) -> Any:
        return random.normal(0, 0.3, (rows, columns)).astype(np.float16)

    ones = np.ones(width, np.float32)
    writer.add_tensor("token_embd.weight", matrix(len(tokens), width))
    writer.add_tensor("output.weight", matrix(len(tokens), width))
    writer.add_tensor("output_norm.weight", ones)
    for i in range(layers):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", ones)
        writer.add_tensor(f"blk.{i}.ffn_norm.weight", ones)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"blk.{i}.{name}.weight", matrix(width, width))
        writer.add_tensor(f"blk.{i}.ffn_gate.weight", matrix(2 * width, width))
        writer.add_tensor(f"blk.{i}.ffn_up.weight", matrix(2 * width, width))
        writer.add_tensor(f"blk.{i}.ffn_down.weight", matrix(width, 2 * width))
    _finish(writer)


def _bytes_as_text() -> list[str]:
    """GPT-2's printable stand-ins for bytes, in the order of the bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (256 + n for n in range(256))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


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
    _finish(writer)


def _finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    make(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
