"""Checks that a .gguf file can become a model here: architecture, shapes, tensors, tokenizer.

`read_model` checks all of it from the head of the file, before anything is loaded, so that what passes can be
converted. Each error names a field and its value. Sources: the file format's keys,
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, read 2026-11-26.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from ovserve.engine.model.gguf import GGUF, ArrayLength, GGUFError, read_gguf
from ovserve.engine.model.gguf_tokens import BYTE_LEVEL, Tokens, read_tokens

Number = TypeVar("Number", int, float)
MAX_LAYERS = 1000
MAX_SIZE = 1 << 24  # of a dimension
PLAIN_KINDS = ("F32", "F16", "BF16")  # vectors and, with quantised ones, matrices
MATRIX_KINDS = (
    *PLAIN_KINDS, "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "MXFP4",
)  # fmt: skip
MAX_EXPERTS = 4096  # of a layer
SOFTMAX_GATING = 1  # expert_gating_func
EXPERT_ROWS = 32  # a group of weights, and two blocks of our kernels
GEMMA_27B_LAYERS = 62  # it alone scales attention by the width per head, which no file says
SCALINGS = ("none", "linear", "yarn", "longrope")


class Architecture(NamedTuple):
    """An architecture, by what distinguishes its graph."""

    interleaved: bool = False  # rotates pairs (0, 1), (2, 3); else halves (0, n/2), (1, n/2 + 1)
    qk_norm: bool = False
    fused: bool = False  # query, key and value in one tensor, and gate and up
    post_norms: bool = False  # norms after attention and feed-forward too
    gelu: bool = False
    scaled_embedding: bool = False  # by the root of the width
    rope_step: int = 0  # every such layer has no rotary embedding
    scales: bool = False  # of embedding, residual, attention and logits, in the metadata
    windows: int = 0  # of so many layers all but the last see a sliding window, if the file does not say
    mixes: bool = False  # always has experts; others may


ARCHITECTURES = {
    "llama": Architecture(interleaved=True),
    "qwen2": Architecture(),
    "qwen3": Architecture(qk_norm=True),
    "qwen3moe": Architecture(qk_norm=True, mixes=True),
    "phi3": Architecture(fused=True),
    "gemma3": Architecture(qk_norm=True, post_norms=True, gelu=True, scaled_embedding=True, windows=6),
    "granite": Architecture(interleaved=True, scales=True),
    "granitemoe": Architecture(interleaved=True, scales=True, mixes=True),
    "smollm3": Architecture(interleaved=True, rope_step=4),
}
# By general.type.
NO_MODELS = {"adapter": "a LoRA adapter", "mmproj": "an image projector", "imatrix": "an importance matrix"}
# Keys that change what a model computes, which no architecture here does.
UNSUPPORTED_KEYS = (
    "attn_logit_softcapping", "attention.alibi_bias_max", "attention.clamp_kqv",
    "rope.scaling.yarn_log_multiplier", "rope.scaling.alpha", "expert_shared_count", "expert_group_count",
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
    factors: str = ""  # tensor that divides the frequencies
    window_base: float = 0.0  # base of layers with a sliding window


@dataclass(frozen=True)
class Parameters:
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
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
    experts: int = 0  # of a layer; 0: the feed-forward part is one
    experts_used: int = 0  # by a token


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
    model = GGUFModel(gguf, name, ARCHITECTURES[name], parameters, read_tokens(gguf, parameters.vocabulary))
    _check_tensors(model)
    return model


class _Fields:
    """Reads values of an architecture, and says which is missing or wrong."""

    def __init__(self, gguf: GGUF, name: str) -> None:
        self._gguf, self._metadata, self._name = gguf, gguf.metadata, name

    def number(self, key: str, default: Number | None, low: float, high: float, kind: type[Number]) -> Number:
        full = f"{self._name}.{key}"
        value = self._metadata.get(full, default)
        if value is None:
            raise GGUFError(f"{full} is missing")
        if isinstance(value, ArrayLength):  # of all layers
            value, *others = set(self._gguf.array(full)) or {""}
            if others:
                raise GGUFError(f"{full} differs between layers, which is not supported")
        if not isinstance(value, (int, kind)) or isinstance(value, bool) or not low <= value <= high:
            raise GGUFError(f"{full}: expected a number from {low:g} to {high:g}, got {value!r}")
        return kind(value)

    def size(self, key: str, default: int | None = None, *, low: int = 1, high: int = MAX_SIZE) -> int:
        return self.number(key, default, low, high, int)

    def real(self, key: str, default: float | None = None, *, low: float = 0.0, high: float = 1e12) -> float:
        return self.number(key, default, low, high, float)

    def text(self, key: str, default: str) -> str:
        value = self._metadata.get(f"{self._name}.{key}", default)
        return value if isinstance(value, str) else repr(value)


def read_parameters(gguf: GGUF, name: str) -> Parameters:
    """Raises GGUFError. `name`: a key of ARCHITECTURES."""
    fields, architecture = _Fields(gguf, name), ARCHITECTURES[name]
    for key in UNSUPPORTED_KEYS:
        if fields.real(key, 0.0):
            raise GGUFError(f"{name}.{key} is not supported")
    for key in ("rope.scaling.finetuned", "attention.causal"):
        if fields.text(key, "") == "False":
            raise GGUFError(f"{key}: false is not supported")
    width, heads = fields.size("embedding_length"), fields.size("attention.head_count", high=4096)
    kv_heads = fields.size("attention.head_count_kv", heads, high=heads)
    head_size = fields.size("attention.key_length", width // heads or 1, high=1024)
    if heads % kv_heads:
        raise GGUFError(f"attention.head_count: {heads} is not a multiple of head_count_kv, {kv_heads}")
    if fields.size("attention.value_length", head_size) != head_size:
        raise GGUFError(f"attention.value_length: other than attention.key_length, {head_size}")
    experts = fields.size("expert_count", None if architecture.mixes else 0, low=0, high=MAX_EXPERTS)
    inner = fields.size("feed_forward_length")
    if name == "qwen3moe":
        inner = fields.size("expert_feed_forward_length")
    if experts:
        _check_experts(fields, width, inner)
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise GGUFError("the tensor token_embd.weight is missing")
    length = fields.size("context_length", high=1 << 30)
    window = fields.size("attention.sliding_window", 0, low=0, high=1 << 30)
    if window and not architecture.windows:
        length, window = min(length, window), 0  # within the window, attention is what it is without one
    scale = width**0.5 if architecture.scaled_embedding else 1.0
    layers = fields.size("block_count", high=MAX_LAYERS)
    is_gemma_27b = architecture.windows and layers == GEMMA_27B_LAYERS
    return Parameters(
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        inner=inner,
        epsilon=fields.real("attention.layer_norm_rms_epsilon", high=1),
        vocabulary=embedding.dims[-1],
        length=length,
        rope=_rope(fields, gguf, head_size, length),
        window=window,
        windows=fields.size("attention.sliding_window_pattern", architecture.windows or 1),
        embedding_scale=fields.real("embedding_scale", scale) or 1.0 if architecture.scales else scale,
        residual_scale=(fields.real("residual_scale", 1.0) or 1.0) if architecture.scales else 1.0,
        attention_scale=fields.real("attention.scale", (width / heads) ** -0.5 if is_gemma_27b else 0.0),
        logit_scale=(fields.real("logit_scale") or 1.0) if architecture.scales else 1.0,
        final_softcap=fields.real("final_logit_softcapping", 0.0),
        experts=experts,
        experts_used=fields.size("expert_used_count", high=experts) if experts else 0,
    )


def _check_experts(fields: _Fields, *sizes: int) -> None:
    """Raises GGUFError for what a mixture may be and is not computed."""
    if (gating := fields.size("expert_gating_func", SOFTMAX_GATING, low=0)) not in (0, SOFTMAX_GATING):
        raise GGUFError(f"expert_gating_func: {gating} is not supported, only {SOFTMAX_GATING}, softmax")
    if (scale := fields.real("expert_weights_scale", 1.0)) not in (0, 1):
        raise GGUFError(f"expert_weights_scale: {scale:g} is not supported, only 1")
    if wrong := [size for size in sizes if size % EXPERT_ROWS]:
        raise GGUFError(f"the width of an expert, {wrong[0]}, is not a multiple of {EXPERT_ROWS}")


def _rope(fields: _Fields, gguf: GGUF, head_size: int, length: int) -> Rope:
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
        factors=next((name for name in factors if name in gguf.tensors), ""),
        window_base=fields.real("rope.freq_base_swa", 10000.0, low=1.0),
    )


# ---- what the library reads by itself

LIBRARY_ARCHITECTURES = ("llama", "qwen2", "qwen3")
LIBRARY_KINDS = ("F16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")  # of matrices


def library_fault(model: GGUFModel) -> str:
    """Return why OpenVINO GenAI's own reader would fail or answer wrongly; "" if it would not.

    By trial with openvino-genai 2026.4.1: it ends the process for what it does not know, and ignores factors
    of rotary embeddings and tokens that begin a text.
    """
    matrices = (tensor for tensor in model.gguf.tensors.values() if len(tensor.dims) > 1)
    strange = next((tensor for tensor in matrices if tensor.type not in LIBRARY_KINDS), None)
    rope = model.parameters.rope
    if model.parameters.experts:
        return "does not read experts"
    if model.name not in LIBRARY_ARCHITECTURES:
        return f"does not know general.architecture {model.name!r}"
    if strange is not None:
        return f"does not read the type {strange.type} of the tensor {strange.name}"
    if model.tokens.model != BYTE_LEVEL:
        return f"does not know tokenizer.ggml.model {model.tokens.model!r}"
    if rope.factors or rope.factor != 1:
        return f"ignores {rope.factors or 'rope.scaling.factor'}, so that long contexts are wrong"
    if model.tokens.begin is not None:
        return "ignores tokenizer.ggml.add_bos_token"
    if model.tokens.rule.whole:
        return f"splits texts otherwise than tokenizer.ggml.pre {model.gguf.metadata['tokenizer.ggml.pre']!r}"
    return ""


# ---- tensors


class Expected(NamedTuple):
    name: str
    dims: tuple[int, ...]
    required: bool = True


def expected_tensors(model: GGUFModel) -> Iterator[Expected]:
    p, a = model.parameters, model.architecture
    yield Expected("token_embd.weight", (p.width, p.vocabulary))
    yield Expected("output.weight", (p.width, p.vocabulary), required=False)
    yield Expected("output_norm.weight", (p.width,))
    for name in ("rope_freqs", "rope_factors_long", "rope_factors_short"):
        yield Expected(f"{name}.weight", (p.rope.dims // 2,), required=False)
    for i in range(p.layers):
        yield Expected(f"blk.{i}.attn_norm.weight", (p.width,))
        yield Expected(f"blk.{i}.ffn_norm.weight", (p.width,))
        yield from _attention(f"blk.{i}", p, a)
        yield from _feed_forward(f"blk.{i}", p, a)


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
    if a.qk_norm:
        yield Expected(f"{at}.attn_q_norm.weight", (p.head_size,))
        yield Expected(f"{at}.attn_k_norm.weight", (p.head_size,))
    if a.post_norms:
        yield Expected(f"{at}.post_attention_norm.weight", (p.width,))
        yield Expected(f"{at}.post_ffw_norm.weight", (p.width,))


def _feed_forward(at: str, p: Parameters, a: Architecture) -> Iterator[Expected]:
    if p.experts:
        yield Expected(f"{at}.ffn_gate_inp.weight", (p.width, p.experts))
        for name in ("ffn_gate_exps", "ffn_up_exps"):
            yield Expected(f"{at}.{name}.weight", (p.width, p.inner, p.experts))
        yield Expected(f"{at}.ffn_down_exps.weight", (p.inner, p.width, p.experts))
        return
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
        elif tensor.dims != expected.dims:
            raise GGUFError(
                f"the tensor {tensor.name} has the shape {list(tensor.dims)}, expected {list(expected.dims)}"
            )
        elif tensor.type not in (
            kinds := PLAIN_KINDS if len(tensor.dims) == 1 or "ffn_gate_inp" in tensor.name else MATRIX_KINDS
        ):
            raise GGUFError(
                f"the tensor {tensor.name} is of the type {tensor.type}; supported are {', '.join(kinds)}"
            )
    if unexpected:
        raise GGUFError(
            f"the tensor {next(iter(unexpected))} is not supported for general.architecture {model.name!r}"
            + (f", nor are {len(unexpected) - 1} more" if len(unexpected) > 1 else "")
        )
