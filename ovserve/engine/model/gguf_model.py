"""Checks that a .gguf file can become a model here: architecture, shapes, tensors, tokenizer.

`read_model` checks all of it from the head of the file, before anything is loaded, so that what passes can be
converted. Each error names a field and its value. Sources: the file format's keys,
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, read 2026-11-26.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import NamedTuple

import msgspec

from ovserve.engine.model.gguf import GGUF, Fields, GGUFError, Tensor, read_gguf
from ovserve.engine.model.gguf_forms import MATRIX_KINDS, PLAIN_KINDS
from ovserve.engine.model.gguf_tokens import Tokens, read_tokens

MAX_LAYERS = 1000
MAX_EXPERTS = 4096  # of a layer
# Of expert_gating_func: what makes the scores of experts shares, the last of those alone that a token uses.
SOFTMAX, SIGMOID, SOFTMAX_OF_USED = GATINGS = 1, 2, 3
EXPERT_ROWS = 32  # a group of weights, and two blocks of our kernels
GEMMA_27B_LAYERS = 62  # it alone scales attention by the width per head, which no file says
GLM_FLASH = {(47, 154_880), (48, 154_880)}  # its layers and tokens; the first files name no gating
SCALINGS = ("none", "linear", "yarn", "longrope")
YARN_LOG_KEY, YARN_STRETCH = "rope.scaling.yarn_log_multiplier", 0.1
EXPERTS_OF_SCORE = 2  # the best of a group, whose sum is its score


class Architecture(NamedTuple):
    """An architecture, by what distinguishes its graph."""

    interleaved: bool = False  # rotates pairs (0, 1), (2, 3); else halves (0, n/2), (1, n/2 + 1)
    qk_norm: bool = False
    may_norm: bool = False  # queries and keys, if the file has the norms
    wide_norm: bool = False  # queries and keys over all heads
    late_norm: bool = False  # queries and keys behind the rotary embedding
    norm_biases: bool = False
    fused: bool = False  # query, key and value in one tensor, and gate and up
    post_norms: bool = False  # norms after attention and feed-forward too
    ffn_norm: str = "ffn_norm"  # tensor of the norm before feed-forward
    gelu: bool = False
    scaled_embedding: bool = False  # by the root of the width
    rope_step: int = 0  # every such layer has no rotary embedding
    scales: bool = False  # of embedding, residual, attention and logits, in the metadata
    windows: int = 0  # of so many layers all but the last see a sliding window, if the file does not say
    local_rope: bool = False  # these layers have rotary embeddings of another base, and never scaled
    sinks: bool = False  # of each head, a score that weighs nothing
    mixes: bool = False  # always has experts; others may
    gating: int = SOFTMAX  # if the file does not say
    is_normed: bool = True  # the shares of the experts that a token uses are 1 in sum, the same
    expert_biases: bool = False  # of experts and router; the activation is clamped too, as in gpt-oss
    gated_share: bool = False  # the shared expert has a gate
    latent: bool = False  # keys and values are made of one vector


ARCHITECTURES = {
    "llama": Architecture(interleaved=True),
    "qwen2": Architecture(),
    "qwen3": Architecture(qk_norm=True),
    "qwen3moe": Architecture(qk_norm=True, mixes=True),
    "phi3": Architecture(fused=True),
    "gemma3": Architecture(
        qk_norm=True, post_norms=True, gelu=True, scaled_embedding=True, windows=6, local_rope=True,
    ),
    "granite": Architecture(interleaved=True, scales=True),
    "granitemoe": Architecture(interleaved=True, scales=True, mixes=True),
    "smollm3": Architecture(interleaved=True, rope_step=4),
    "gpt-oss": Architecture(
        ffn_norm="post_attention_norm", windows=2, sinks=True, mixes=True, gating=SOFTMAX_OF_USED,
        is_normed=False, expert_biases=True,
    ),
    "qwen2moe": Architecture(mixes=True, is_normed=False, gated_share=True),
    "glm4moe": Architecture(
        may_norm=True, ffn_norm="post_attention_norm", mixes=True, gating=SIGMOID, is_normed=False,
    ),
    "ernie4_5": Architecture(interleaved=True),
    "ernie4_5-moe": Architecture(interleaved=True, mixes=True),
    "bailingmoe": Architecture(interleaved=True, mixes=True, is_normed=False),
    "dots1": Architecture(qk_norm=True, mixes=True, is_normed=False),
    "olmoe": Architecture(wide_norm=True, mixes=True, is_normed=False),
    "deepseek2": Architecture(interleaved=True, latent=True, is_normed=False),
    "phimoe": Architecture(norm_biases=True, mixes=True),
    "hunyuan-moe": Architecture(qk_norm=True, late_norm=True, mixes=True),
}  # fmt: skip
# By general.type.
NO_MODELS = {"adapter": "a LoRA adapter", "mmproj": "an image projector", "imatrix": "an importance matrix"}
# Keys that change what a model computes, which no architecture here does.
UNSUPPORTED_KEYS = (
    "attn_logit_softcapping", "attention.alibi_bias_max", "attention.clamp_kqv",
    "attention.temperature_scale", "rope.scaling.alpha",
)  # fmt: skip


@dataclass(frozen=True)
class Rope:
    """Rotary position embeddings of `dims` values of a head."""

    dims: int
    base: float
    scaling: str = "none"
    factor: float = 1.0
    original_length: int = 0
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    stretch: float = YARN_STRETCH  # of rotated vectors, per power of e in `factor`
    factors: str = ""  # tensor that divides the frequencies
    window_base: float = 0.0  # base of layers with a sliding window


@dataclass(frozen=True)
class Mixture:
    """Experts of layers, of which a router chooses some for each token."""

    experts: int
    per_token: int  # of these
    inner: int  # width of an expert
    shared: int  # width of the expert that all tokens use, or 0
    first: int  # the layers before this one have none
    step: int  # so has every such layer
    gating: int  # of GATINGS
    is_normed: bool  # the shares of a token are 1 in sum
    scale: float  # of the shares
    groups: int  # of experts, in their order
    groups_per_token: int  # of these, with the two best experts in sum


@dataclass(frozen=True)
class Latent:
    """Keys and values made of one vector of a token, and a rotated part of the key that is of all heads."""

    size: int
    of_query: int  # size of a vector that queries are made of, or 0
    is_split: bool  # the file has the matrices of keys and of values apart, those of keys turned


@dataclass(frozen=True)
class Parameters:
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    value_size: int  # of a head
    inner: int  # width of the feed-forward part
    epsilon: float
    vocabulary: int
    length: int  # context, in tokens
    rope: Rope
    window: int = 0  # tokens that a layer with a sliding window sees
    windows: int = 0  # of so many layers all but the last have one
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float = 0.0  # 0: by the size of a head
    logit_scale: float = 1.0  # divides the logits
    final_softcap: float = 0.0
    mixture: Mixture | None = None  # None: the feed-forward part is one
    latent: Latent | None = None

    def mixture_of(self, layer: int) -> Mixture | None:
        mixture = self.mixture
        has_one = mixture and layer >= mixture.first and (layer + 1) % mixture.step == 0
        return mixture if has_one else None


@dataclass(frozen=True)
class GGUFModel:
    gguf: GGUF
    name: str
    architecture: Architecture
    parameters: Parameters
    tokens: Tokens

    @property
    def tied(self) -> bool:
        """Return whether the embedding makes the logits too."""
        return "output.weight" not in self.gguf.tensors


def read_model(path: str | Path) -> GGUFModel:
    """Raises GGUFError for what cannot be served, OSError."""
    gguf = read_gguf(path)
    if what := NO_MODELS.get(str(gguf.metadata.get("general.type"))):
        raise GGUFError(f"it is {what}, and not a model; name the .gguf file of the model")
    name = gguf.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise GGUFError("general.architecture is missing")
    if name not in ARCHITECTURES:
        raise GGUFError(
            f"general.architecture: {name[:80]!r} is not supported; supported are {', '.join(ARCHITECTURES)}"
        )
    parameters = read_parameters(gguf, name)
    gguf = msgspec.structs.replace(gguf, tensors=_without_drafts(gguf, name, parameters.layers))
    model = GGUFModel(gguf, name, ARCHITECTURES[name], parameters, read_tokens(gguf, parameters.vocabulary))
    _check_tensors(model)
    return model


def read_parameters(gguf: GGUF, name: str) -> Parameters:
    """Raises GGUFError. `name`: a key of ARCHITECTURES."""
    fields, architecture = Fields(gguf, name), ARCHITECTURES[name]
    for key in (*UNSUPPORTED_KEYS, *([] if architecture.latent else [YARN_LOG_KEY])):
        if fields.real(key, 0.0):
            raise GGUFError(f"{name}.{key} is not supported")
    for key in ("rope.scaling.finetuned", "attention.causal"):
        if fields.text(key, "") == "False":
            raise GGUFError(f"{key}: false is not supported")
    width, heads = fields.size("embedding_length"), fields.size("attention.head_count", high=4096)
    kv_heads = heads if architecture.latent else fields.size("attention.head_count_kv", heads, high=heads)
    # Files with these keys have sizes without "_mla" too, of the vector that keys and values are made of.
    of_latent = "_mla" if architecture.latent and fields.size("attention.key_length_mla", 0, low=0) else ""
    head_size = fields.size(f"attention.key_length{of_latent}", width // heads or 1, high=1024)
    value_size = fields.size(f"attention.value_length{of_latent}", head_size, high=1024)
    if heads % kv_heads:
        raise GGUFError(f"attention.head_count: {heads} is not a multiple of head_count_kv, {kv_heads}")
    if value_size != head_size and not architecture.latent:
        raise GGUFError(f"attention.value_length: other than attention.key_length, {head_size}")
    inner = fields.size("feed_forward_length")
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise GGUFError("the tensor token_embd.weight is missing")
    length = fields.size("context_length", high=1 << 30)
    window = fields.size("attention.sliding_window", 0, low=0, high=1 << 30)
    if window and not architecture.windows:
        length, window = min(length, window), 0  # within the window, attention is what it is without one
    scale = width**0.5 if architecture.scaled_embedding else 1.0
    drafts = fields.size("nextn_predict_layers", 0, low=0)
    layers = fields.size("block_count", low=drafts + 1, high=MAX_LAYERS) - drafts
    is_glm = architecture.latent and (layers + drafts, embedding.dims[-1]) in GLM_FLASH
    is_gemma_27b = architecture.windows and layers == GEMMA_27B_LAYERS
    attention_scale = fields.real("attention.scale", (width / heads) ** -0.5 if is_gemma_27b else 0.0)
    rope = _rope(fields, gguf, head_size, length, is_local=architecture.local_rope)
    latent = None
    if architecture.latent:
        latent, attention_scale = _latent(fields, gguf, rope, head_size, is_split=bool(of_latent))
    return Parameters(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        value_size=value_size,
        inner=inner,
        epsilon=fields.real("attention.layer_norm_rms_epsilon", high=1),
        vocabulary=embedding.dims[-1],
        length=length,
        rope=rope,
        window=window,
        windows=fields.size("attention.sliding_window_pattern", architecture.windows or 1),
        embedding_scale=fields.real("embedding_scale", scale) or 1.0 if architecture.scales else scale,
        residual_scale=(fields.real("residual_scale", 1.0) or 1.0) if architecture.scales else 1.0,
        attention_scale=attention_scale,
        logit_scale=(fields.real("logit_scale") or 1.0) if architecture.scales else 1.0,
        final_softcap=fields.real("final_logit_softcapping", 0.0),
        mixture=_mixture(fields, architecture, width, inner, is_glm),
        latent=latent,
    )


def _latent(
    fields: Fields, gguf: GGUF, rope: Rope, head_size: int, *, is_split: bool
) -> tuple[Latent, float]:
    """Return it, and the scale of attention, which llama.cpp makes of what stretches rotated vectors."""
    size = fields.size("attention.kv_lora_rank")
    if size % EXPERT_ROWS:
        raise GGUFError(f"attention.kv_lora_rank: {size} is not a multiple of {EXPERT_ROWS}")
    if rope.dims >= head_size:
        raise GGUFError(f"rope.dimension_count: expected less than the size of a key, {head_size}")
    of_query = 0 if "blk.0.attn_q.weight" in gguf.tensors else fields.size("attention.q_lora_rank")
    power = log(rope.factor)
    length = rope.attention_factor * (1 + rope.stretch * power) * (1 + fields.real(YARN_LOG_KEY, 0.0) * power)
    return Latent(size, of_query, is_split), length**2 * head_size**-0.5


def _mixture(
    fields: Fields, architecture: Architecture, width: int, inner: int, is_glm: bool
) -> Mixture | None:
    experts = fields.size("expert_count", None if architecture.mixes else 0, low=0, high=MAX_EXPERTS)
    if not experts:
        return None
    gating = fields.size("expert_gating_func", 0, low=0) or (SIGMOID if is_glm else architecture.gating)
    if gating not in GATINGS:
        raise GGUFError(f"expert_gating_func: expected one of {GATINGS}, got {gating}")
    groups = fields.size("expert_group_count", 0, low=0, high=experts) or 1
    if groups > 1 and (experts % groups or experts // groups < EXPERTS_OF_SCORE):
        raise GGUFError(f"expert_group_count: {groups} do not share {experts} experts, two or more each")
    groups_per_token = fields.size("expert_group_used_count", high=groups) if groups > 1 else 1
    per_token, most = fields.size("expert_used_count", high=experts), experts // groups * groups_per_token
    if per_token > most:
        raise GGUFError(f"expert_used_count: {per_token}, and expert_group_used_count leaves {most}")
    of_expert = fields.size("expert_feed_forward_length", inner)
    if wrong := [size for size in (width, of_expert) if size % EXPERT_ROWS]:
        raise GGUFError(f"the width of an expert, {wrong[0]}, is not a multiple of {EXPERT_ROWS}")
    shares = of_expert * fields.size("expert_shared_count", 0, low=0)
    is_normed = fields.text("expert_weights_norm", str(architecture.is_normed))
    return Mixture(
        experts=experts,
        per_token=per_token,
        inner=of_expert,
        shared=fields.size("expert_shared_feed_forward_length", 0, low=0)
        or shares
        or inner * architecture.gated_share,
        first=fields.size("leading_dense_block_count", 0, low=0),
        step=fields.size("interleave_moe_layer_step", 1),
        gating=gating,
        is_normed=is_normed == "True",
        scale=fields.real("expert_weights_scale", 0.0) or 1.0,
        groups=groups,
        groups_per_token=groups_per_token,
    )


def _without_drafts(gguf: GGUF, name: str, layers: int) -> dict[str, Tensor]:
    """Return the tensors without those of layers that guess further tokens."""
    if not gguf.metadata.get(f"{name}.nextn_predict_layers"):
        return gguf.tensors
    last = gguf.metadata[f"{name}.block_count"]
    drafts = tuple(f"blk.{i}." for i in range(layers, int(str(last))))
    return {key: tensor for key, tensor in gguf.tensors.items() if not key.startswith(drafts)}


def _rope(fields: Fields, gguf: GGUF, head_size: int, length: int, *, is_local: bool) -> Rope:
    dims = fields.size("rope.dimension_count", head_size, low=2, high=head_size)
    scaling = fields.text("rope.scaling.type", "linear")
    if dims % 2:
        raise GGUFError(f"rope.dimension_count: expected an even number, got {dims}")
    if scaling not in SCALINGS:
        raise GGUFError(f"rope.scaling.type: expected one of {', '.join(SCALINGS)}, got {scaling[:80]!r}")
    factor = fields.real("rope.scaling.factor", fields.real("rope.scale_linear", 0.0)) or 1.0
    original = fields.size("rope.scaling.original_context_length", length, high=1 << 30)
    factors = ("rope_freqs.weight", f"rope_factors_{'long' if length > original else 'short'}.weight")
    base = fields.real("rope.freq_base", 10000.0, low=1.0)
    return Rope(
        dims=dims,
        base=base,
        scaling=scaling,
        factor=1.0 if scaling == "none" else factor,
        original_length=original,
        attention_factor=fields.real("rope.scaling.attn_factor", 1.0),
        beta_fast=fields.real("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.real("rope.scaling.yarn_beta_slow", 1.0),
        stretch=0.0 if scaling == "yarn" and fields.real(YARN_LOG_KEY, 0.0) else YARN_STRETCH,
        factors=next((name for name in factors if name in gguf.tensors), ""),
        window_base=fields.real("rope.freq_base_swa", 10000.0 if is_local else base, low=1.0),
    )


# ---- tensors


class Expected(NamedTuple):
    name: str
    dims: tuple[int, ...]
    required: bool = True


def expected_tensors(model: GGUFModel) -> Iterator[Expected]:
    p, a = model.parameters, model.architecture
    yield Expected("token_embd.weight", (p.width, p.vocabulary))
    yield Expected("output.weight", (p.width, p.vocabulary), required=False)
    yield from _norm("output_norm", p.width, a)
    if a.norm_biases:
        yield Expected("output.bias", (p.vocabulary,))
    for name in ("rope_freqs", "rope_factors_long", "rope_factors_short"):
        yield Expected(f"{name}.weight", (p.rope.dims // 2,), required=False)
    for i in range(p.layers):
        yield from _norm(f"blk.{i}.attn_norm", p.width, a)
        yield from _norm(f"blk.{i}.{a.ffn_norm}", p.width, a)
        yield from _attention(f"blk.{i}", p, a) if p.latent is None else _of_latent(f"blk.{i}", p, p.latent)
        if (mixture := p.mixture_of(i)) is not None:
            yield from _experts(f"blk.{i}", p, a, mixture)
        else:
            yield from _feed_forward(f"blk.{i}", p, a)


def _norm(name: str, size: int, a: Architecture) -> Iterator[Expected]:
    yield Expected(f"{name}.weight", (size,))
    if a.norm_biases:
        yield Expected(f"{name}.bias", (size,))


def _of_latent(at: str, p: Parameters, latent: Latent) -> Iterator[Expected]:
    queries, keys = p.heads * p.head_size, p.head_size - p.rope.dims
    if latent.of_query:
        yield Expected(f"{at}.attn_q_a.weight", (p.width, latent.of_query))
        yield Expected(f"{at}.attn_q_a_norm.weight", (latent.of_query,))
        yield Expected(f"{at}.attn_q_b.weight", (latent.of_query, queries))
    else:
        yield Expected(f"{at}.attn_q.weight", (p.width, queries))
    yield Expected(f"{at}.attn_kv_a_mqa.weight", (p.width, latent.size + p.rope.dims))
    yield Expected(f"{at}.attn_kv_a_norm.weight", (latent.size,))
    if latent.is_split:
        yield Expected(f"{at}.attn_k_b.weight", (keys, latent.size, p.heads))
        yield Expected(f"{at}.attn_v_b.weight", (latent.size, p.value_size, p.heads))
    else:
        yield Expected(f"{at}.attn_kv_b.weight", (latent.size, p.heads * (keys + p.value_size)))
    yield Expected(f"{at}.attn_output.weight", (p.heads * p.value_size, p.width))


def _attention(at: str, p: Parameters, a: Architecture) -> Iterator[Expected]:
    queries, keys = p.heads * p.head_size, p.kv_heads * p.head_size
    parts = {"attn_q": queries, "attn_k": keys, "attn_v": keys}
    if a.fused:
        parts = {"attn_qkv": queries + 2 * keys}
    for name, rows in parts.items():
        yield Expected(f"{at}.{name}.weight", (p.width, rows))
        yield Expected(f"{at}.{name}.bias", (rows,), required=False)
    yield Expected(f"{at}.attn_output.weight", (queries, p.width))
    yield Expected(f"{at}.attn_output.bias", (p.width,), required=False)
    if a.qk_norm or a.may_norm or a.wide_norm:
        for letter, size in (("q", queries), ("k", keys)):
            size = size if a.wide_norm else p.head_size
            yield Expected(f"{at}.attn_{letter}_norm.weight", (size,), required=not a.may_norm)
    if a.sinks:
        yield Expected(f"{at}.attn_sinks.weight", (p.heads,))
    if a.post_norms:
        yield Expected(f"{at}.post_attention_norm.weight", (p.width,))
        yield Expected(f"{at}.post_ffw_norm.weight", (p.width,))


def _experts(at: str, p: Parameters, a: Architecture, mixture: Mixture) -> Iterator[Expected]:
    count, inner, shared = mixture.experts, mixture.inner, mixture.shared
    yield Expected(f"{at}.ffn_gate_inp.weight", (p.width, count))
    yield Expected(f"{at}.exp_probs_b.bias", (count,), required=a.gating == SIGMOID)
    for name, columns, rows in (("gate", p.width, inner), ("up", p.width, inner), ("down", inner, p.width)):
        yield Expected(f"{at}.ffn_{name}_exps.weight", (columns, rows, count))
        if a.expert_biases:
            yield Expected(f"{at}.ffn_{name}_exps.bias", (rows, count))
    if a.expert_biases:
        yield Expected(f"{at}.ffn_gate_inp.bias", (count,))
    if shared:
        yield Expected(f"{at}.ffn_gate_shexp.weight", (p.width, shared))
        yield Expected(f"{at}.ffn_up_shexp.weight", (p.width, shared))
        yield Expected(f"{at}.ffn_down_shexp.weight", (shared, p.width))
    if a.gated_share:
        yield Expected(f"{at}.ffn_gate_inp_shexp.weight", (p.width,))


def _feed_forward(at: str, p: Parameters, a: Architecture) -> Iterator[Expected]:
    parts = {"ffn_up": 2 * p.inner} if a.fused else {"ffn_gate": p.inner, "ffn_up": p.inner}
    for name, rows in parts.items():
        yield Expected(f"{at}.{name}.weight", (p.width, rows))
        yield Expected(f"{at}.{name}.bias", (rows,), required=False)
    yield Expected(f"{at}.ffn_down.weight", (p.inner, p.width))
    yield Expected(f"{at}.ffn_down.bias", (p.width,), required=False)


def _check_tensors(model: GGUFModel) -> None:
    unexpected = dict(model.gguf.tensors)
    for expected in expected_tensors(model):
        tensor = unexpected.pop(expected.name, None)
        if tensor is None:
            if expected.required:
                raise GGUFError(f"the tensor {expected.name} is missing")
        elif tensor.sizes != expected.dims:
            raise GGUFError(
                f"the tensor {tensor.name} has the shape {list(tensor.dims)}, expected {list(expected.dims)}"
            )
        elif tensor.type not in (kinds := PLAIN_KINDS if tensor.is_plain else MATRIX_KINDS):
            raise GGUFError(
                f"the tensor {tensor.name} is of the type {tensor.type}; supported are {', '.join(kinds)}"
            )
    if unexpected:
        raise GGUFError(
            f"the tensor {next(iter(unexpected))} is not supported for general.architecture {model.name!r}"
            + (f", nor are {len(unexpected) - 1} more" if len(unexpected) > 1 else "")
        )
