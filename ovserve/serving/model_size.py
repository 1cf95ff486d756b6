"""The memory that a model needs, from its files alone: weights, KV cache per token, and what a load takes.

Weights are copied in another order while the file is mapped, whose pages go when they were copied. Kernels of
ours keep scales and zero points as they are, OpenVINO's make f32 of them: then 3 B parameters in Q4_K_M, a
network of 2.32 GB, take 2.63 GB.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ovserve.engine.client.client import EngineClient
from ovserve.engine.host.cpu import processor
from ovserve.engine.host.kernels import have_kernels
from ovserve.engine.host.memory import BYTES_PER_GIB, Memory, memory
from ovserve.engine.model.files import LANGUAGE_MODELS, PACKED_WEIGHTS, json_or_empty
from ovserve.engine.model.gguf import GGUFError, read_gguf, read_metadata
from ovserve.engine.model.gguf_forms import converted_size
from ovserve.engine.protocol.specs import PagedTextSpec, Spec, StatefulTextSpec, TextSpec

WEIGHTS = (".bin", ".gguf", ".safetensors", ".onnx")
# Bytes per number in the cache by KV_CACHE_PRECISION. OpenVINO's default is u8 on the CPU and f16 elsewhere.
# The paged engine takes bf16 where that is faster and memory is not short. In 8 bits each head of a token has
# a scale and a zero point too, 8 bytes for 128 numbers.
PRECISIONS = {"u8": 1.0625, "i8": 1.0625, "u4": 0.5, "i4": 0.5, "f16": 2, "bf16": 2, "f32": 4}
MEMORY_RATIO = 1.2  # memory of a loaded model per byte of its weights, where its form is unknown
LIBRARY_OVERHEAD = 2.5  # of a .gguf file that the library reads itself: 2.9 at 3 B parameters, 2.5 at 8 B
PROCESS_BYTES = 128 << 20  # of an engine process besides its model
RESERVE_BYTES = 256 << 20  # that a load leaves: with less, an engine rejects requests
TOKENIZER_BYTES = 40_000_000  # of disk, for both parts and 260,000 tokens

log = logging.getLogger(__name__)


class ModelSize(msgspec.Struct, frozen=True):
    """Sizes in bytes. `cache_per_token` is 0 if the files do not define it."""

    weights: int
    cache_per_token: float = 0.0


class LoadEstimate(msgspec.Struct, frozen=True):
    """Sizes in bytes, without the KV cache. `resident` cannot be dropped. `mapping` is read while the model
    loads, and the kernel drops it where memory is short. `disk` is what a conversion writes before."""

    resident: int
    mapping: int
    disk: int = 0


def estimate(spec: Spec) -> LoadEstimate:
    """Return what loading takes. Raises OSError, GGUFError."""
    mapping = sum(weights(path) for path in spec.model_paths)
    process = 0 if spec.hosted else PROCESS_BYTES
    if not isinstance(spec, TextSpec | StatefulTextSpec):
        return LoadEstimate(int(mapping * MEMORY_RATIO) + process, mapping)
    resident, disk = process, 0
    # OpenVINO's kernels make f32 of scales.
    widens = not have_kernels() or not isinstance(spec, PagedTextSpec)
    for path in spec.model_paths:
        if not path.endswith(".gguf"):
            resident += _loaded_network(path, widens=widens)
        elif spec.converts:
            tensors = read_gguf(path).tensors.values()
            exact = have_kernels()
            size = converted_size(tensors, exact=exact)
            mapping += size - weights(path)
            disk += size + TOKENIZER_BYTES
            resident += converted_size(tensors, in_memory=widens, exact=exact)
        else:
            resident += int(weights(path) * LIBRARY_OVERHEAD)
    return LoadEstimate(resident, mapping, disk)


def _loaded_network(path: str, *, widens: bool) -> int:
    """Return the memory of a directory's weights. `widens`: scales and zero points become f32."""
    size = weights(path)
    for name in LANGUAGE_MODELS if widens else ():
        with suppress(OSError), open(os.path.join(path, name), "rb") as file:
            for tag in re.findall(rb'<data ([^>]*\boffset="[^>]*)', file.read()):
                values = dict(re.findall(rb'(\w+)="([^"]*)"', tag))
                is_scale = values.get(b"element_type") == b"f16" and values.get(b"shape", b"").endswith(b" 1")
                size += int(values.get(b"size", 0)) if is_scale else 0
    return size


def memory_fault(spec: Spec, memory: Memory, limit: int = 0) -> str:
    """Return why loading a model would fill the memory; "" if it would not, or if that is unknown.

    `limit`: bytes that an engine may take; 0: none.
    """
    try:
        size = estimate(spec)
    except (OSError, GGUFError):
        return ""  # the load says what is wrong with the files
    takes = (
        f"it would take about {size.resident >> 20} MB of memory with {size.mapping >> 20} MB of weights, "
        "without its KV cache"
    )
    if limit and not spec.hosted and size.resident > limit:
        return f"{takes}, over the limit of {limit >> 20} MB (--engine_memory_limit)"
    if memory.available and size.resident + RESERVE_BYTES > memory.available:
        return (
            f"{takes}, and the {memory.limit} has {memory.available >> 20} MB left, of which "
            f"{RESERVE_BYTES >> 20} MB stay free; end other programs, raise the limit, or take a smaller "
            "model or fewer bits per weight"
        )
    return ""


def model_size(spec: Spec) -> ModelSize:
    values = _values_per_token(spec.model_path)
    both = isinstance(spec, PagedTextSpec)
    wide = both and (have_kernels() or processor().wide_cache_is_faster)
    small = spec.device == "CPU" and not wide
    precision = json.loads(spec.properties).get("KV_CACHE_PRECISION", "u8" if small else "f16")
    size = sum(weights(path, packed=both) for path in spec.model_paths)
    return ModelSize(size, values * PRECISIONS.get(str(precision).lower(), 2))


def cache_bytes(spec: Spec, size: ModelSize, context: int | None) -> int:
    """Return the size of the KV cache: as configured, else for one request with the whole context; 0:
    unknown."""
    configured = spec.cache_size * BYTES_PER_GIB if isinstance(spec, TextSpec) else 0
    return configured or int(size.cache_per_token * (context or 0))


def weights(path: str, *, packed: bool = False) -> int:
    """Return the bytes of weight files: of one file, or of a directory.

    A .gguf file counts only where it is the model, and PACKED with `packed` only.
    """
    if path.endswith(".gguf"):
        with suppress(GGUFError):
            return read_gguf(path).size
    if not os.path.isdir(path):
        return os.path.getsize(path)
    with os.scandir(path) as entries:
        sizes = {e.name: e.stat().st_size for e in entries if e.is_file()}
    if not packed:
        sizes.pop(PACKED_WEIGHTS, None)
    converted = sizes.keys() & set(LANGUAGE_MODELS)  # and what it was converted from
    kinds = [kind for kind in WEIGHTS if kind not in (".gguf", ".safetensors") or not converted]
    return sum(size for name, size in sizes.items() if name.endswith(tuple(kinds)))


def _values_per_token(path: str) -> int:
    """Return the keys and values of all layers per token; 0: unknown."""
    if os.path.isdir(path):
        return _of_config(json_or_empty(Path(path, "config.json"), dict))
    if not path.endswith(".gguf"):
        return 0
    try:
        metadata = read_metadata(path)
    except (GGUFError, OSError):
        return 0
    name = metadata.get("general.architecture")
    heads = metadata.get(f"{name}.attention.head_count")
    return _values(
        metadata.get(f"{name}.block_count"),
        metadata.get(f"{name}.attention.head_count_kv", heads),
        metadata.get(f"{name}.attention.key_length"),
        metadata.get(f"{name}.embedding_length"),
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


def loaded_bytes(spec: Spec) -> int:
    """Return the memory that an engine will take, estimated from its files; 0 if they cannot be read."""
    try:
        return estimate(spec).resident
    except (OSError, GGUFError):
        return 0


def log_memory(name: str, engine: EngineClient[Any, Any]) -> None:
    """Log the memory of the model and what is left; warn if its cache cannot grow to its limit."""
    size, machine = model_size(engine.spec), memory()
    cache = cache_bytes(engine.spec, size, engine.facts.max_length)
    log.info(
        "%s: weights %d MB, cache %s; the engine holds %d MB, and the %s has %d MB left",
        name, size.weights >> 20, f"{cache >> 20} MB" if cache else "unknown", engine.memory_held >> 20,
        machine.limit, machine.available >> 20,
    )  # fmt: skip
    if machine.available and cache > machine.available:
        log.warning(
            "%s: a full cache takes up to %d MB, more than the %s has left", name, cache >> 20, machine.limit
        )
