"""A .gguf file as the directory that vLLM reads: bf16 weights, config and tokenizer. No part of the server.

    python peer_weights.py MODEL.gguf DIRECTORY [--no-weights]

Run by `peer_setup.py` in vLLM's own environment, which has torch and transformers; imports nothing of ours.
The weights are those of the file, dequantised. The tokenizer is made of the file's vocabulary and merges:
the one that transformers derives from such a file splits text otherwise (seen with SmolLM2).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gguf import GGUFReader
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import AutoConfig, AutoModelForCausalLM

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4  # of tokenizer.ggml.token_type
QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)


def main(source: Path, target: Path, *, weights: bool) -> None:
    target.mkdir(parents=True, exist_ok=True)
    fields = {name: field.contents() for name, field in GGUFReader(source).fields.items()}
    if weights:
        write_weights(source, target)
    else:  # vLLM's --load-format dummy draws some
        config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name).to_dict()
        write_config(target, config | {"architectures": ["LlamaForCausalLM"]})
    write_tokenizer(target, fields)


def write_weights(source: Path, target: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype="bfloat16")
    # transformers does not save what it read from such a file, though it has dequantised it.
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = {k: v.contiguous() for k, v in model.state_dict().items() if k not in tied}
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    write_config(target, model.config.to_dict() | {"architectures": [type(model).__name__]})


def write_config(target: Path, described: dict[str, Any]) -> None:
    described.pop("quantization_config", None)
    (target / "config.json").write_text(json.dumps(described, indent=1, default=str))


def write_tokenizer(target: Path, fields: dict[str, Any]) -> None:
    tokenizer(fields).save(str(target / "tokenizer.json"))
    words = fields["tokenizer.ggml.tokens"]
    names = {"bos": "bos_token", "eos": "eos_token", "padding": "pad_token"}
    special = {
        to: words[fields[key]]
        for short, to in names.items()
        if (key := f"tokenizer.ggml.{short}_token_id") in fields
    }
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **special}
    if template := fields.get("tokenizer.chat_template"):
        config["chat_template"] = template
    (target / "tokenizer_config.json").write_text(json.dumps(config, indent=1))


def tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """Convert byte-level BPE files; raises SystemExit for others."""
    if fields["tokenizer.ggml.model"] != "gpt2":
        raise SystemExit(f"tokenizer {fields['tokenizer.ggml.model']!r} is not byte-level BPE")
    words, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    made = Tokenizer(BPE({word: i for i, word in enumerate(words)}, merges))
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if fields.get("tokenizer.ggml.pre") == "qwen2":
        split = pre_tokenizers.Split(Regex(QWEN), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    elif fields.get("tokenizer.ggml.pre") == "smollm":
        made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_])
    else:
        made.pre_tokenizer = bytes_
    made.decoder = decoders.ByteLevel()
    special = [
        AddedToken(w, special=True, normalized=False)
        for w, k in zip(words, kinds, strict=True)
        if k == CONTROL
    ]
    made.add_special_tokens(special)
    return made


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), weights="--no-weights" not in sys.argv[3:])
