"""Small random models as .gguf files, of each architecture that is served, written with ggml's own package."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from ovserve.engine.model.gguf import KINDS
from tests.pull.tiny_gguf import printable

WIDTH, HEAD, HEADS, KV_HEADS, INNER, LAYERS, VOCABULARY = 256, 64, 4, 2, 512, 2, 320
LENGTH = 512
EXPERTS, EXPERT_INNER, SHARED = 6, 256, 512
LATENT, ROPE = 128, 32
GPT_OSS = {"attention.sliding_window": 64, "expert_feed_forward_length": EXPERT_INNER}
MIXTURES: dict[str, dict[str, Any]] = {
    "qwen3moe": {},
    "granitemoe": {},
    "gpt-oss": GPT_OSS,
    "qwen2moe": {"expert_feed_forward_length": EXPERT_INNER, "expert_shared_feed_forward_length": SHARED},
    "glm4moe": {
        "expert_feed_forward_length": EXPERT_INNER, "expert_shared_count": 1, "leading_dense_block_count": 1,
        "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5, "rope.dimension_count": 32,
    },
    "ernie4_5-moe": {
        "expert_feed_forward_length": EXPERT_INNER, "expert_shared_feed_forward_length": SHARED,
        "leading_dense_block_count": 1, "interleave_moe_layer_step": 1,
    },
    "bailingmoe": {
        "expert_feed_forward_length": EXPERT_INNER, "expert_shared_count": 2, "expert_weights_norm": True,
        "leading_dense_block_count": 0, "expert_weights_scale": 1.0,
    },
    "dots1": {
        "expert_feed_forward_length": EXPERT_INNER, "expert_shared_count": 2, "leading_dense_block_count": 1,
        "expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 2.5,
        "attention.head_count_kv": HEADS,
    },
    "olmoe": {"attention.head_count_kv": HEADS},
    "deepseek2": {
        "attention.head_count_kv": HEADS, "attention.q_lora_rank": 0, "attention.kv_lora_rank": LATENT,
        "attention.key_length": HEAD + ROPE, "attention.value_length": HEAD, "rope.dimension_count": ROPE,
        "expert_feed_forward_length": EXPERT_INNER, "expert_shared_count": 2, "leading_dense_block_count": 1,
        "expert_weights_scale": 1.5,
    },
    "phimoe": {},
    "hunyuan-moe": {"expert_shared_feed_forward_length": SHARED},
}  # fmt: skip
DRAWN = 4096  # rows of a matrix
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
F32 = gguf.GGMLQuantizationType.F32
F16 = gguf.GGMLQuantizationType.F16
Q4_0 = gguf.GGMLQuantizationType.Q4_0


def byte_level_tokens() -> dict[str, Any]:
    tokens = [*printable(), "th", "<end>"]
    tokens += [f"<unused{i}>" for i in range(VOCABULARY - len(tokens))]
    types = [1] * 257 + [3] * (VOCABULARY - 257)
    return {
        "model": "gpt2", "pre": "gpt-2", "tokens": tokens, "token_type": types, "merges": ["t h"],
        "bos_token_id": 257, "eos_token_id": 257, "add_bos_token": False,
    }  # fmt: skip


def write(
    path: Path,
    architecture: str = "llama",
    kind: gguf.GGMLQuantizationType = F32,
    keys: Mapping[str, Any] | None = None,
    tokens: Mapping[str, Any] | None = None,
    tensors: Callable[[dict[str, np.ndarray]], None] = lambda tensors: None,
    biases: bool = False,
    strings: Mapping[str, str] | None = None,
    layers: int = LAYERS,
    vocabulary: int = VOCABULARY,
    dequantised: bool = False,
    experts: bool = False,
) -> Path:
    """Write a model. `keys` of the architecture and `tokens` are added, or with None removed; `tensors` may
    change those of the file. `dequantised`: as ggml's own package unpacks what `kind` would be."""
    writer = gguf.GGUFWriter(path, architecture)
    values: dict[str, Any] = {
        "context_length": LENGTH, "embedding_length": WIDTH, "block_count": layers,
        "feed_forward_length": INNER, "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD, "attention.value_length": HEAD, "rope.dimension_count": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0,
    }  # fmt: skip
    if architecture in ("granite", "granitemoe"):
        values |= {
            "embedding_scale": 12.0,
            "residual_scale": 0.22,
            "attention.scale": 0.0156,
            "logit_scale": 8.0,
        }
    experts = experts or architecture in MIXTURES
    if experts:
        values |= {"expert_count": EXPERTS, "expert_used_count": 3, "expert_feed_forward_length": INNER}
    values |= MIXTURES.get(architecture, {})
    for key, value in (values | dict(keys or {})).items():
        add(writer, f"{architecture}.{key}", value)
    for key, value in (byte_level_tokens() | dict(tokens or {})).items():
        add(writer, f"tokenizer.ggml.{key}", value)
    for key, text in {"tokenizer.chat_template": TEMPLATE, **(strings or {})}.items():
        writer.add_string(key, text)
    all_values = values | dict(keys or {}) if experts else {}
    made = random_tensors(architecture, biases, layers, vocabulary, all_values)
    tensors(made)
    for name, data in made.items():
        plain = data.ndim == 1 or name.endswith(("ffn_gate_inp.weight", ".bias"))
        quantised = F32 if plain else kind
        if not plain and kind.name.endswith("_K"):  # which the package cannot quantise to
            *rows, columns = data.shape
            seed = zlib.crc32(name.encode())
            raw = random_blocks(kind.name, prod(rows), columns, seed=seed, deviation=data.std()).reshape(
                *rows, -1
            )
        else:
            raw = gguf.quants.quantize(data.astype(np.float32), quantised)
        if dequantised:
            raw, quantised = gguf.quants.dequantize(raw, quantised), F32
        writer.add_tensor(name, raw, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(kind: str, rows: int, columns: int, *, seed: int = 3, deviation: float = 0) -> np.ndarray:
    """Return blocks as a quantiser writes them: any values, and scales that are finite numbers.

    `deviation`: of the weights, if not 0.
    """
    random = np.random.default_rng(seed)
    _, items, size = next(k for k in KINDS.values() if k.name == kind)
    blocks = random.integers(0, 256, (rows, columns // items, size), np.uint8)
    places = {"Q6_K": [208], "Q3_K": [108], "Q2_K": [80, 82], "MXFP4": []}.get(kind, [0])
    places += [2] if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else []

    def set_scales(factor: float) -> None:
        for at in places:
            half = (random.uniform(0.001, 0.02, (rows, columns // items, 1)) * factor).astype(np.float16)
            blocks[..., at : at + 2] = half.view(np.uint8)

    set_scales(1)
    if kind == "MXFP4":
        blocks[..., 0] = random.integers(118, 124, blocks.shape[:2])
    if deviation:
        weights = gguf.quants.dequantize(blocks.reshape(rows, -1), gguf.GGMLQuantizationType[kind])
        set_scales(deviation / weights.std())
    return blocks.reshape(rows, -1)


def split(whole: Path, directory: Path, count: int) -> list[Path]:
    """Write a model in several files, as llama-gguf-split does."""
    read = gguf.GGUFReader(whole)
    made = []
    for number, group in enumerate(np.array_split(np.arange(len(read.tensors)), count)):
        made.append(directory / f"m-{number + 1:05}-of-{count:05}.gguf")
        writer = gguf.GGUFWriter(made[-1], "llama")
        for key, field in read.fields.items() if not number else ():
            if not key.startswith("GGUF.") and key != "general.architecture":
                add(writer, key, field.contents())
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(read.tensors))
        for i in group:
            writer.add_tensor(read.tensors[i].name, np.array(read.tensors[i].data))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return made


def add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if value is None:
        return
    if isinstance(value, list):
        writer.add_array(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def latent(
    values: Mapping[str, Any], matrix: Callable[..., np.ndarray], norm: Callable[[int], np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the tensors of DeepSeek's attention that others have not; with sizes of heads apart from those of
    the vector, in the form of newer files."""
    made = {"attn_kv_a_norm.weight": norm(LATENT)}
    if rank := values["attention.q_lora_rank"]:
        made |= {"attn_q_a.weight": matrix(rank, WIDTH), "attn_q_a_norm.weight": norm(rank)}
    queries = "attn_q_b.weight" if rank else "attn_q.weight"
    made[queries] = 2 * matrix(HEADS * (HEAD + ROPE), rank or WIDTH)
    both = matrix(HEADS, 2 * HEAD, LATENT)
    if "attention.key_length_mla" not in values:
        return made | {"attn_kv_b.weight": both.reshape(-1, LATENT)}
    keys = np.ascontiguousarray(both[:, :HEAD].swapaxes(1, 2))
    return made | {"attn_k_b.weight": keys, "attn_v_b.weight": np.ascontiguousarray(both[:, HEAD:])}


def random_tensors(
    architecture: str,
    biases: bool = False,
    layers: int = LAYERS,
    vocabulary: int = VOCABULARY,
    values: Mapping[str, Any] | None = None,
) -> dict[str, np.ndarray]:
    """Return those of an architecture. `values`: its keys, if it has experts."""
    values = values or {}
    random = np.random.default_rng(7)
    queries, keys = HEADS * HEAD, values.get("attention.head_count_kv", KV_HEADS) * HEAD

    def matrix(*shape: int) -> np.ndarray:
        return standard(prod(shape[:-1]), shape[-1]).reshape(shape) * shape[-1] ** -0.5

    def standard(rows: int, columns: int) -> np.ndarray:
        """Rows above DRAWN repeat: to draw 200,000 takes 1.7 s more."""
        drawn = random.standard_normal((min(rows, DRAWN), columns)).astype(np.float32)
        return np.resize(drawn, (rows, columns))

    def norm(size: int) -> np.ndarray:
        return (1 + 0.2 * random.standard_normal(size)).astype(np.float32)

    made = {
        "token_embd.weight": standard(vocabulary, WIDTH),
        "output.weight": matrix(vocabulary, WIDTH),
        "output_norm.weight": norm(WIDTH),
    }
    if architecture == "phimoe":
        made |= {
            f"{name}.bias": norm(size) for name, size in (("output_norm", WIDTH), ("output", vocabulary))
        }
    for i in range(layers):
        at = f"blk.{i}"
        ffn_norm = "post_attention_norm" if architecture in ("gpt-oss", "glm4moe") else "ffn_norm"
        made |= {f"{at}.attn_norm.weight": norm(WIDTH), f"{at}.{ffn_norm}.weight": norm(WIDTH)}
        parts = {"attn_q": queries, "attn_k": keys, "attn_v": keys}
        if architecture == "phi3":
            parts = {"attn_qkv": queries + 2 * keys}
        if architecture == "deepseek2":
            parts = {"attn_kv_a_mqa": LATENT + ROPE}
            made |= {f"{at}.{name}": data for name, data in latent(values, matrix, norm).items()}
        for name, rows in parts.items():
            made[f"{at}.{name}.weight"] = 2 * matrix(rows, WIDTH)
            if architecture in ("qwen2", "qwen2moe", "gpt-oss", "glm4moe", "phimoe") or biases:
                made[f"{at}.{name}.bias"] = random.standard_normal(rows).astype(np.float32) * 0.3
        made[f"{at}.attn_output.weight"] = matrix(WIDTH, queries)
        if architecture in ("gpt-oss", "phimoe"):
            made[f"{at}.attn_output.bias"] = random.standard_normal(WIDTH).astype(np.float32) * 0.3
        if architecture == "phimoe":
            for name in ("attn_norm", "ffn_norm"):
                made[f"{at}.{name}.bias"] = random.standard_normal(WIDTH).astype(np.float32) * 0.3
        if architecture == "olmoe":
            made |= {f"{at}.attn_q_norm.weight": norm(queries), f"{at}.attn_k_norm.weight": norm(keys)}
        if architecture == "gpt-oss":
            made[f"{at}.attn_sinks.weight"] = random.standard_normal(HEADS).astype(np.float32) * 2
        if architecture in ("qwen3", "qwen3moe", "gemma3", "dots1", "hunyuan-moe"):
            made |= {f"{at}.attn_q_norm.weight": norm(HEAD), f"{at}.attn_k_norm.weight": norm(HEAD)}
        if architecture == "gemma3":
            made |= {
                f"{at}.post_attention_norm.weight": norm(WIDTH),
                f"{at}.post_ffw_norm.weight": norm(WIDTH),
            }
        if values and i >= values.get("leading_dense_block_count", 0):
            inner = values["expert_feed_forward_length"]
            made |= {
                f"{at}.ffn_gate_inp.weight": matrix(EXPERTS, WIDTH) * 2,
                f"{at}.ffn_gate_exps.weight": matrix(EXPERTS, inner, WIDTH),
                f"{at}.ffn_up_exps.weight": matrix(EXPERTS, inner, WIDTH),
                f"{at}.ffn_down_exps.weight": matrix(EXPERTS, WIDTH, inner),
            }
            is_biased = architecture == "deepseek2" and values.get("expert_gating_func") == 2
            if architecture in ("glm4moe", "ernie4_5-moe", "dots1") or is_biased:
                made[f"{at}.exp_probs_b.bias"] = random.standard_normal(EXPERTS).astype(np.float32) * 0.2
            if architecture == "gpt-oss":
                # Some activations are clamped.
                for name, rows, largest in (("gate", inner, 4), ("up", inner, 4), ("down", WIDTH, 0.5)):
                    biases_of = random.standard_normal((EXPERTS, rows)) * largest
                    made[f"{at}.ffn_{name}_exps.bias"] = biases_of.astype(np.float32)
                made[f"{at}.ffn_gate_inp.bias"] = random.standard_normal(EXPERTS).astype(np.float32)
            shared = values.get("expert_shared_feed_forward_length", 0)
            if shared := shared or inner * values.get("expert_shared_count", 0):
                made |= {
                    f"{at}.ffn_gate_shexp.weight": matrix(shared, WIDTH),
                    f"{at}.ffn_up_shexp.weight": matrix(shared, WIDTH),
                    f"{at}.ffn_down_shexp.weight": matrix(WIDTH, shared),
                }
            if architecture == "qwen2moe":
                made[f"{at}.ffn_gate_inp_shexp.weight"] = matrix(1, WIDTH)[0] * 2
            if i >= layers - values.get("nextn_predict_layers", 0):
                made |= {
                    f"{at}.nextn.eh_proj.weight": matrix(WIDTH, 2 * WIDTH),
                    f"{at}.nextn.enorm.weight": norm(WIDTH),
                    f"{at}.nextn.hnorm.weight": norm(WIDTH),
                }
            continue
        if architecture == "phi3":
            made[f"{at}.ffn_up.weight"] = matrix(2 * INNER, WIDTH)
        else:
            made |= {
                f"{at}.ffn_gate.weight": matrix(INNER, WIDTH),
                f"{at}.ffn_up.weight": matrix(INNER, WIDTH),
            }
        made[f"{at}.ffn_down.weight"] = matrix(WIDTH, INNER)
    return made
