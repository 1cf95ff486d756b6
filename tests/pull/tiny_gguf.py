"""A real language model of 0.5 MB that goes on with the alphabet: after "abc" it says "def". Written with gguf.

Attention and feed-forward are zero, a token's embedding is a unit vector, and the head of token b + 1 is the
embedding of b. Recipe: a network of OpenVINO's GGUF reader needs one block, and a tokenizer with one merge.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

WIDTH, HEAD, INNER = 320, 64, 64
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def printable() -> list[str]:
    """GPT-2's character for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 600))
    return [chr(b) if b in kept else chr(next(others)) for b in range(256)]


def write(path: Path, kind: gguf.GGMLQuantizationType | None = None) -> Path:
    """`kind`: of the matrices of the feed-forward part, F16 if not given."""
    tokens = [*printable(), "th", "<end>"]
    types = [gguf.TokenType.NORMAL] * (len(tokens) - 1) + [gguf.TokenType.CONTROL]
    tokens += [f"<unused{i}>" for i in range(WIDTH - len(tokens))]
    types += [gguf.TokenType.CONTROL] * (WIDTH - len(types))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(WIDTH // HEAD)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_file_type(1 if kind is None else 15)  # F16, or a mixture: the reader looks at it
    writer.add_vocab_size(WIDTH)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(257)
    writer.add_eos_token_id(257)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    head = np.zeros((WIDTH, WIDTH), np.float16)
    head[np.arange(1, 256), np.arange(255)] = 4
    zeros: dict[str, tuple[int, int]] = {
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (HEAD, WIDTH),
        "attn_v": (HEAD, WIDTH),
        "attn_output": (WIDTH, WIDTH),
    }
    writer.add_tensor("token_embd.weight", np.eye(WIDTH, dtype=np.float16))
    writer.add_tensor("output.weight", head)
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))
    for name, shape in zeros.items():
        writer.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, np.float16))
    for name, shape in {
        "ffn_gate": (INNER, WIDTH),
        "ffn_up": (INNER, WIDTH),
        "ffn_down": (WIDTH, INNER),
    }.items():
        data: Any = np.zeros(shape, np.float16)
        if kind is not None:
            data = gguf.quants.quantize(data.astype(np.float32), kind)
        writer.add_tensor(f"blk.0.{name}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
