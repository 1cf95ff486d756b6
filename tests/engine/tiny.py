"""Models of 2 MB that say what a table tells them: after each character the next. `write(file, successors)` makes a
GGUF file that the real engine loads in half a second; two with slightly different tables are a model and a draft
that errs at known places.

There is no attention to speak of: the embedding of a character is a unit vector, all layers add nothing, and the
output weights are the table. Characters are the bytes 33 to 126, which a byte-level tokenizer leaves as they are.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

ENDLESS = string.ascii_lowercase + string.digits  # goes round for ever
ENDING = string.ascii_uppercase  # ends after Z
END, START = "<|im_end|>", "<|im_start|>"
WIDTH, HEAD = 128, 64


def table(text: str = ENDLESS) -> dict[str, str]:
    """Characters of `text` go round, those of ENDING go to their end; whatever else ends the answer."""
    successors = dict(zip(text, text[1:] + text[:1], strict=True))
    return successors | dict(zip(ENDING, [*ENDING[1:], END], strict=True))


def write_openvino(place: Path, successors: Mapping[str, str]) -> str:
    """Make a directory with OpenVINO's form of a model, and return it."""
    import openvino_genai

    place.mkdir()
    file = place / "model.gguf"
    write(file, successors)
    openvino_genai.LLMPipeline(str(file), "CPU", enable_save_ov_model=True)
    file.unlink()
    return str(place)


def write(file: Path, successors: Mapping[str, str], layers: int = 1) -> None:
    characters = [chr(code) for code in range(33, 127)]
    tokens = [*characters, "th", START, END]  # the reader wants a merge, and its result
    tokens += [f"<|unused_{i}|>" for i in range(len(tokens), WIDTH)]
    special = [token.startswith("<|") for token in tokens]
    output = np.zeros((WIDTH, WIDTH), np.float16)
    for at, token in enumerate(tokens):
        output[tokens.index(successors.get(token, END)), at] = 1.0
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(HEAD)
    writer.add_head_count(WIDTH // HEAD)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(HEAD)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(0)
    writer.add_vocab_size(WIDTH)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    kinds = (gguf.TokenType.NORMAL, gguf.TokenType.CONTROL)
    writer.add_token_types([int(kinds[is_special]) for is_special in special])
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(tokens.index(START))
    writer.add_eos_token_id(tokens.index(END))
    writer.add_pad_token_id(tokens.index(START))
    writer.add_add_bos_token(False)
    writer.add_tensor("token_embd.weight", np.eye(WIDTH, dtype=np.float16))
    writer.add_tensor("output.weight", output)
    ones = np.ones(WIDTH, np.float32)
    writer.add_tensor("output_norm.weight", ones)
    for layer in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{layer}.{name}.weight", ones)
        for name, rows, columns in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", HEAD, WIDTH),
            ("attn_v", HEAD, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", HEAD, WIDTH),
            ("ffn_up", HEAD, WIDTH),
            ("ffn_down", WIDTH, HEAD),
        ):
            writer.add_tensor(f"blk.{layer}.{name}.weight", np.zeros((rows, columns), np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
