"""The memory that a model needs, from its files alone: weights, and KV cache per token.

It is an estimate without the graphs of activations, the compiled model's own copies and the tokenizer.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ovserve.engine.host.memory import memory
from ovserve.engine.model.files import LANGUAGE_MODELS, PACKED_WEIGHTS
from ovserve.engine.model.gguf import GGUFError, read_metadata
from ovserve.engine.protocol.specs import PagedTextSpec, Spec, TextSpec
from ovserve.serving.engines import AnyEngine

WEIGHTS = (".bin", ".gguf", ".safetensors", ".onnx")
# Bytes per number in the cache by KV_CACHE_PRECISION; u8 is the default on the CPU, f16 elsewhere.
PRECISIONS = {"u8": 1, "i8": 1, "u4": 0.5, "i4": 0.5, "f16": 2, "bf16": 2, "f32": 4}
GIGABYTE = 1 << 30
OVERHEAD = 1.2  # memory of a loaded model per byte of its weights
PROCESS_BYTES = 128 << 20  # of an engine process besides its model

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelSize:
    """Sizes in bytes. `cache_per_token` is 0 if the files do not define it."""

    weights: int
    cache_per_token: float = 0.0


def model_size(spec: Spec) -> ModelSize:
    values = _values_per_token(spec.model_path)
    wanted = json.loads(spec.properties).get("KV_CACHE_PRECISION", "u8" if spec.device == "CPU" else "f16")
    both = isinstance(spec, PagedTextSpec)
    size = sum(weights(path, packed=both) for path in spec.model_paths)
    return ModelSize(size, values * PRECISIONS.get(str(wanted).lower(), 2))


def cache_bytes(spec: Spec, size: ModelSize, context: int | None) -> int:
    """Return the size of the KV cache: as configured, else for one request with the whole context; 0:
    unknown."""
    configured = spec.cache_size * GIGABYTE if isinstance(spec, TextSpec) else 0
    return configured or int(size.cache_per_token * (context or 0))


def weights(path: str, *, packed: bool = False) -> int:
    """Return the bytes of weight files: of one file, or of a directory.

    A .gguf file counts only where it is the model, and PACKED with `packed` only.
    """
    if not os.path.isdir(path):
        return os.path.getsize(path)
    with os.scandir(path) as entries:
        sizes = {e.name: e.stat().st_size for e in entries if e.is_file()}
    if not packed:
        sizes.pop(PACKED_WEIGHTS, None)
    kinds = [kind for kind in WEIGHTS if kind != ".gguf" or not sizes.keys() & set(LANGUAGE_MODELS)]
    return sum(size for name, size in sizes.items() if name.endswith(tuple(kinds)))


def _values_per_token(path: str) -> int:
    """Return the keys and values of all layers per token; 0: unknown."""
    if os.path.isdir(path):
        return _of_config(_json_object(os.path.join(path, "config.json")))
    if not path.endswith(".gguf"):
        return 0
    try:
        found = read_metadata(path)
    except (GGUFError, OSError):
        return 0
    name = found.get("general.architecture")
    heads = found.get(f"{name}.attention.head_count")
    return _values(
        found.get(f"{name}.block_count"),
        found.get(f"{name}.attention.head_count_kv", heads),
        found.get(f"{name}.attention.key_length"),
        found.get(f"{name}.embedding_length"),
        heads,
    )


def _of_config(config: Mapping[str, Any]) -> int:
    """Return them from Hugging Face's config.json; for a vision model, from the part about text."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else config
    heads = text.get("num_attention_heads")
    return _values(
        text.get("num_hidden_layers"),
        text.get("num_key_value_heads", heads),
        text.get("head_dim"),
        text.get("hidden_size"),
        heads,
    )


def _values(layers: object, kv_heads: object, head: object, width: object, heads: object) -> int:
    if isinstance(width, int) and isinstance(heads, int) and heads and not isinstance(head, int):
        head = width // heads
    if isinstance(layers, int) and isinstance(kv_heads, int) and isinstance(head, int):
        return 2 * layers * kv_heads * head
    return 0


def _json_object(path: str) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError):
        return {}


def loaded_bytes(spec: Spec) -> int:
    """Return the memory that an engine will take, estimated from its files; 0 if they cannot be read."""
    try:
        size = model_size(spec).weights
    except OSError:
        return 0
    return int(size * OVERHEAD) + (0 if spec.hosted else PROCESS_BYTES)


def log_memory(name: str, engine: AnyEngine) -> None:
    """Log the memory of the model and what is left; warn if its cache cannot grow to its limit."""
    size, left = model_size(engine.spec), memory()
    cache = cache_bytes(engine.spec, size, engine.facts.max_length)
    log.info(
        "%s: weights %d MB, cache %s; the engine holds %d MB, and the %s has %d MB left",
        name, size.weights >> 20, f"{cache >> 20} MB" if cache else "unknown", engine.memory_held >> 20,
        left.limit, left.available >> 20,
    )  # fmt: skip
    if left.available and cache > left.available:
        log.warning(
            "%s: a full cache takes up to %d MB, more than the %s has left", name, cache >> 20, left.limit
        )
