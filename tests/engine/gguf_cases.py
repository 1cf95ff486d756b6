"""Models and texts whose logits and tokens by llama.cpp are in tests/vectors/gguf, by scripts/gguf_vectors.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from tests.engine.random_gguf import HEAD, LATENT, ROPE, write

VECTORS = Path(__file__).parents[1] / "vectors/gguf"
LOGITS, TOKENS = VECTORS / "logits.npz", VECTORS / "tokens.json"
LENGTH = 512  # context of the models
IDS = [int(id_) for id_ in np.random.default_rng(1).integers(0, 300, 200)]
SHOWN = [0, 1, 60, 199]  # positions whose logits are kept
FACTORS = np.linspace(1, 8, 32).astype(np.float32)


def factors(*names: str) -> Any:
    def add(tensors: dict[str, np.ndarray]) -> None:
        for i, name in enumerate(names):
            tensors[f"{name}.weight"] = FACTORS / (i + 1)

    return add


def norms(tensors: dict[str, np.ndarray]) -> None:
    """Add norms of queries and keys to the first layer."""
    tensors |= {f"blk.0.attn_{name}_norm.weight": FACTORS.repeat(2) for name in "qk"}


SPLIT = {
    "attention.key_length": LATENT + ROPE, "attention.value_length": LATENT, "attention.head_count_kv": 1,
    "attention.key_length_mla": HEAD + ROPE, "attention.value_length_mla": HEAD,
}  # fmt: skip
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128}
ORIGINAL = "rope.scaling.original_context_length"
CASES: dict[str, dict[str, Any]] = {
    "llama": {"architecture": "llama"},
    "llama, biases": {"architecture": "llama", "biases": True},
    "llama, rope_freqs": {"architecture": "llama", "tensors": factors("rope_freqs")},
    "llama, linear": {
        "architecture": "llama", "keys": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    },
    "llama, yarn": {
        "architecture": "llama", "keys": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, ORIGINAL: 128},
    },
    "qwen2": {"architecture": "qwen2"},
    "qwen3": {"architecture": "qwen3"},
    "phi3": {"architecture": "phi3"},
    "phi3, partial": {"architecture": "phi3", "keys": {"rope.dimension_count": 48}},
    "phi3, long": {
        "architecture": "phi3",
        "keys": {"rope.scaling.type": "longrope", "rope.scaling.attn_factor": 1.19, ORIGINAL: 128},
        "tensors": factors("rope_factors_long", "rope_factors_short"),
    },
    "gemma3": {"architecture": "gemma3"},
    "gemma3, window": {
        "architecture": "gemma3", "layers": 7,
        "keys": {"attention.sliding_window": 64, "rope.freq_base": 1e6},
    },
    "gemma3, softcap": {"architecture": "gemma3", "keys": {"final_logit_softcapping": 2.0}},
    "granite": {"architecture": "granite"},
    "smollm3": {"architecture": "smollm3", "layers": 4},
    "qwen3moe": {"architecture": "qwen3moe"},
    "granitemoe": {"architecture": "granitemoe"},
    "llama, experts": {"architecture": "llama", "experts": True},
    "gpt-oss": {"architecture": "gpt-oss"},
    "gpt-oss, yarn": {
        "architecture": "gpt-oss", "keys": {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, ORIGINAL: 128},
    },
    "qwen2moe": {"architecture": "qwen2moe"},
    "glm4moe": {"architecture": "glm4moe", "layers": 3, "keys": {"nextn_predict_layers": 1}},
    "glm4moe, norms": {
        "architecture": "glm4moe", "layers": 3, "keys": {"nextn_predict_layers": 1}, "tensors": norms,
    },
    "ernie4_5": {"architecture": "ernie4_5"},
    "ernie4_5-moe": {"architecture": "ernie4_5-moe"},
    "bailingmoe": {"architecture": "bailingmoe"},
    "bailingmoe, not normed": {"architecture": "bailingmoe", "keys": {"expert_weights_norm": False}},
    "dots1": {"architecture": "dots1"},
    "olmoe": {"architecture": "olmoe"},
    "deepseek2": {"architecture": "deepseek2"},
    "deepseek2, yarn": {"architecture": "deepseek2", "keys": YARN},
    "deepseek2, Lite": {
        "architecture": "deepseek2", "keys": YARN | {"rope.scaling.yarn_log_multiplier": 0.0707},
    },
    "deepseek2, split": {
        "architecture": "deepseek2",
        "keys": SPLIT | {"attention.q_lora_rank": 96, "expert_gating_func": 2, "expert_weights_norm": True},
    },
    "deepseek2, groups": {
        "architecture": "deepseek2",
        "keys": SPLIT | {"expert_gating_func": 2, "expert_group_count": 3, "expert_group_used_count": 2},
    },
    "phimoe": {"architecture": "phimoe"},
    "hunyuan-moe": {"architecture": "hunyuan-moe"},
}  # fmt: skip
TEXTS = [
    "Hello world", "Hello  world   !", "I'm don't WE'LL they'Ve 'S", "12345 1234567 3.14159", "a1b22c333",
    "日本語のテキスト", "你好，世界！", "naïve café résumé", "e\u0301 vs é", "\n\n\tdef f(x):\n        return x+1\n\n\n",
    "   leading", "trailing   ", "🙂🙃👩‍🚀 emoji", "Ünïcödé ß ẞ", "http://a.b/c?d=e&f=g#h", "x" * 50, "    \n   \n",
    "\u00a0nbsp\u3000ideo\u2028ls", "Привет мир", "مرحبا بالعالم", "हिन्दी पाठ", "CamelCaseWord HTTPServer",
    "ı İ ſ K", "#include <stdio.h>\r\nint main(){}\r\n", "$100,000.00 €5 ½ ²", "'''quotes''' \"d\" `b`",
    "<|user|>\nHi<|end|>", "\x01\x7f", "ﬁ ligature ﷺ", "a\u0300\u0301b", "Ⅷ ٣ ४", "!!!???...", "can't've", "\u200bzero\u200d",
]  # fmt: skip
SPECIAL = ["<|end|>", "<|user|>"]
RULES = (
    "default", "gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "tekken", "gpt-4o", "deepseek-v3", "seed-coder",
    "deepseek-coder", "deepseek-llm", "kimi-k2",
)  # fmt: skip
VOCABULARIES = (*RULES, "sentencepiece", "sentencepiece, no prefix")


def write_vocabulary(
    path: Path, name: str, more: Mapping[str, int] | None = None, title: str = "", **changed: Any
) -> Path:
    """Write a model whose tokens cross the bounds that a rule of splitting sets, so that the rule shows.

    `more`: further tokens with their types. `title`: general.name. `changed`: metadata of the tokenizer.
    """
    sentencepiece = name.startswith("sentencepiece")
    trained = Tokenizer(models.BPE(byte_fallback=sentencepiece))
    if sentencepiece:
        trained.normalizer = normalizers.Replace(" ", "▁")
        alphabet = []
    else:
        trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=SPECIAL,
        initial_alphabet=alphabet,
        show_progress=False,
        max_token_length=5,
    )
    trained.train_from_iterator([text for text in TEXTS for _ in range(2)], trainer)
    made = json.loads(trained.to_str())["model"]
    tokens = sorted(made["vocab"], key=made["vocab"].get)
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in made["merges"]]
    types = [3, 3] + [1] * (len(tokens) - 2)
    values: dict[str, Any] = {"merges": merges, "pre": name}
    if sentencepiece:
        scores = dict.fromkeys(tokens, -1e6)
        scores |= {
            merge.replace(" ", "", 1): -float(rank) for rank, merge in reversed(list(enumerate(merges)))
        }
        tokens += ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
        types += [2] + [6] * 256
        values = {
            "merges": None, "pre": None, "model": "llama", "unknown_token_id": len(tokens) - 257,
            "scores": [scores.get(token, 0.0) for token in tokens], "add_space_prefix": name == "sentencepiece",
        }  # fmt: skip
    more = more or {}
    tokens, types = [*tokens, *more], [*types, *more.values()]
    if sentencepiece:
        values["scores"] += [0.0] * len(more)
    size = -(-len(tokens) // 32) * 32
    values |= {
        "tokens": tokens, "token_type": types, "bos_token_id": 1, "eos_token_id": 0, "add_bos_token": name != "smollm",
    }  # fmt: skip
    values |= changed
    strings = {"general.name": title} if title else None
    return write(path, "llama", tokens=values, layers=1, vocabulary=size, strings=strings)
