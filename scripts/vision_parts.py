"""Parts of the vision models that the tests make for themselves: a language model whose token embeddings are a
model of their own, and tiny language models. Used by `vision_model.py` and `qwen2vl_model.py`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from gguf import GGUFWriter, TokenType
from openvino import opset13 as ops

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTEXT = 2048
END, IM_START, IM_END = 256, 257, 258  # tokens of a tiny model, behind those of the bytes


def cut_embeddings(language: ov.Model, directory: Path) -> int:
    """Saves the table of token embeddings as a model by itself; `language` takes embeddings from now on. The
    width of an embedding."""
    ids = language.input("input_ids").get_node()
    (to_index,) = (t.get_node() for t in ids.output(0).get_target_inputs() if is_a(t, "Convert"))
    (lookup,) = (t.get_node() for t in to_index.output(0).get_target_inputs() if is_a(t, "Gather"))
    table, width = lookup.input_value(0), lookup.output(0).get_partial_shape()[2].get_length()

    given = parameter([-1, -1], ov.Type.i64, "input")
    embeds = ops.gather(table, ops.convert(given, "i32"), ops.constant(0))
    save({"inputs_embeds": embeds}, [given], directory / "openvino_text_embeddings_model.xml")

    vectors = parameter([-1, -1, width], ov.Type.f32, "inputs_embeds")
    for target in list(lookup.output(0).get_target_inputs()):
        target.replace_source_output(vectors.output(0))
    for target in list(ids.output(0).get_target_inputs()):
        if is_a(target, "ShapeOf"):  # of which the library takes the first number, the batch
            target.replace_source_output(vectors.output(0))
    language.remove_parameter(ids)
    language.add_parameters([vectors])
    return int(width)


def is_a(target: Any, kind: str) -> bool:
    return bool(target.get_node().get_type_name() == kind)


def parameter(shape: list[int], type_: Any, name: str) -> Any:
    made = ops.parameter(shape, type_, name=name)
    made.output(0).set_names({name})
    return made


def save(outputs: dict[str, Any], parameters: list[Any], path: Path) -> None:
    results = [ops.result(output) for output in outputs.values()]
    for result, name in zip(results, outputs, strict=True):
        result.output(0).set_names({name})
    ov.save_model(ov.Model(results, parameters, path.stem), path)


def save_language(language: ov.Model, directory: Path) -> None:
    language.validate_nodes_and_infer_types()
    ov.save_model(language, directory / "openvino_language_model.xml", compress_to_fp16=False)


def copy_tokenizer(source: Path, directory: Path) -> None:
    for name in ("openvino_tokenizer", "openvino_detokenizer"):
        for suffix in (".xml", ".bin"):
            shutil.copy(source / f"{name}{suffix}", directory)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1))


def write_tiny(
    path: Path, random: np.random.Generator, marks: Iterable[str], width: int = 64, layers: int = 2
) -> None:
    """A random Llama as a .gguf file, with a token for every byte, those of ChatML and `marks`."""
    controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *marks]
    tokens = [*_bytes_as_text(), *controls, "th"]
    types = [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * len(controls) + [TokenType.NORMAL]
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
    writer.add_bos_token_id(END)
    writer.add_eos_token_id(IM_END)
    writer.add_pad_token_id(END)
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
    finish(writer)


def _bytes_as_text() -> list[str]:
    """GPT-2's printable stand-ins for bytes, in the order of the bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (256 + n for n in range(256))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
