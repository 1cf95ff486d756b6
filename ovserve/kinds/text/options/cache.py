"""The options of LLMCalculatorOptions that shape the KV cache beyond its size, checked and made plain data.

The library finds most impossible sizes only inside a step, where they take every request with them; so they
are found here. The rules are the library's, each seen to raise (tests/engine/test_engine_options.py).
"""

from __future__ import annotations

from ovserve.engine.protocol.specs import CacheEviction, SparseAttention, block_tokens
from ovserve.graph import Node
from ovserve.protos.llm_pb2 import LLMCalculatorOptions

INTERVALS = (8, 256)  # OVMS's range of cache_interval_multiplier

_EVICTION, _SPARSE = "cache_eviction_config", "sparse_attention_config"


def cache_eviction(node: Node, options: LLMCalculatorOptions) -> CacheEviction | None:
    """Return None if the graph asks for none. Raises LoadError naming the field, like the others here."""
    if not options.HasField("cache_eviction_config"):
        return None
    wanted, block = options.cache_eviction_config, _block(options)
    for name in ("start_size", "recent_size", "max_cache_size"):
        value = getattr(wanted, name)
        if value == 0 or value % block:
            raise node.error(
                f"{name}: expected a multiple of {block}, the tokens of a cache block, got {value}", _EVICTION
            )
    evictable = wanted.max_cache_size - wanted.start_size - wanted.recent_size
    if evictable <= 0:
        raise node.error(
            f"max_cache_size: {wanted.max_cache_size} must be more than start_size {wanted.start_size} and "
            f"recent_size {wanted.recent_size} together",
            _EVICTION,
        )
    if wanted.snapkv_window_size > block:
        raise node.error(
            f"snapkv_window_size: expected at most {block}, got {wanted.snapkv_window_size}; with more the "
            "engine fails at short prompts",
            _EVICTION,
        )
    if wanted.apply_rotation and _device(options).startswith("CPU"):
        raise node.error("apply_rotation: true is not possible on CPU; the engine dies of it", _EVICTION)
    crush = wanted.kv_crush_config
    if crush.budget > evictable // block:
        raise node.error(
            f"kv_crush_config.budget: expected at most {evictable // block}, the blocks between start_size "
            f"and recent_size, got {crush.budget}",
            _EVICTION,
        )
    modes = LLMCalculatorOptions.CacheEvictionConfig.AggregationMode
    window = 0 if loses_window(options) else wanted.snapkv_window_size
    anchors = LLMCalculatorOptions.KVCrushConfig.AnchorPointMode
    return CacheEviction(
        start_size=wanted.start_size,
        recent_size=wanted.recent_size,
        max_cache_size=wanted.max_cache_size,
        aggregation_mode=modes.Name(wanted.aggregation_mode),
        apply_rotation=wanted.apply_rotation,
        snapkv_window_size=window,
        crush_budget=crush.budget,
        crush_anchor=anchors.Name(crush.anchor_point_mode),
        crush_seed=crush.rng_seed,
    )


def loses_window(options: LLMCalculatorOptions) -> bool:
    """True where `snapkv_window_size` cannot be used: with NORM_SUM the library (2026.4.1) fails in the step
    that reads a prompt which is longer than start_size by less than the window. No option avoids that."""
    if not options.HasField("cache_eviction_config"):
        return False
    wanted = options.cache_eviction_config
    norm_sum = LLMCalculatorOptions.CacheEvictionConfig.AggregationMode.NORM_SUM
    return wanted.aggregation_mode == norm_sum and wanted.snapkv_window_size > 1


def sparse_attention(node: Node, options: LLMCalculatorOptions) -> SparseAttention | None:
    if not options.HasField("sparse_attention_config"):
        return None
    wanted, block = options.sparse_attention_config, _block(options)
    modes = LLMCalculatorOptions.SparseAttentionConfig.SparseAttentionMode
    given = {field.name: value for field, value in wanted.ListFields() if field.name != "mode"}
    for name in ("num_retained_start_tokens_in_cache", "num_retained_recent_tokens_in_cache"):
        if given.get(name, 0) % block:
            raise node.error(
                f"{name}: expected a multiple of {block}, the tokens of a cache block, got {given[name]}",
                _SPARSE,
            )
    size, stride = given.get("xattention_block_size", 64), given.get("xattention_stride", 8)
    if size == 0 or size % block:
        raise node.error(f"xattention_block_size: expected a multiple of {block}, got {size}", _SPARSE)
    if stride == 0 or size % stride:
        raise node.error(
            f"xattention_stride: expected a divisor of xattention_block_size {size}, got {stride}", _SPARSE
        )
    if not 0 <= given.get("xattention_threshold", 0) <= 1:
        raise node.error(
            f"xattention_threshold: expected 0 to 1, got {given['xattention_threshold']:g}", _SPARSE
        )
    return SparseAttention(mode=modes.Name(wanted.mode), settings=given)


def cache_interval_multiplier(node: Node, options: LLMCalculatorOptions) -> int | None:
    if not options.HasField("cache_interval_multiplier"):
        return None
    value, (low, high) = options.cache_interval_multiplier, INTERVALS
    if not low <= value <= high:
        raise node.error(f"expected {low} to {high}, got {value}", "cache_interval_multiplier")
    return value


def _device(options: LLMCalculatorOptions) -> str:
    return options.device or "CPU"


def _block(options: LLMCalculatorOptions) -> int:
    return block_tokens(_device(options))
