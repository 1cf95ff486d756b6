"""The metrics of the KV cache and of the prefixes found in it."""

from __future__ import annotations

from ovserve.engine.protocol.specs import TextFacts, TextSpec, block_tokens
from ovserve.monitoring.family import Family, Model, Sample, value


def _config(model: Model) -> list[Sample]:
    """Return one sample for the first language model that has a cache.

    Endpoint pickers and autoscalers multiply both labels to get the tokens that fit into the cache.
    """
    for engine in model.servable.engines.values() if model.servable else ():
        spec, facts = engine.spec, engine.facts
        if isinstance(spec, TextSpec) and isinstance(facts, TextFacts):
            size = block_tokens(spec.device)
            blocks = spec.num_kv_blocks or facts.cache_tokens // size
            return [((str(size), str(blocks)), 1)]
    return []


FAMILIES: tuple[Family, ...] = (
    Family(
        "ovserve_prefix_cache_queries_total",
        "counter",
        "Tokens of prompts looked up in the prefix cache.",
        value(lambda m: m.metrics.meter.prefix_queries),
        vllm="vllm:prefix_cache_queries_total",
    ),
    Family(
        "ovserve_prefix_cache_hits_total",
        "counter",
        "Of the tokens looked up, those found, which are not computed again.",
        value(lambda m: m.metrics.meter.prefix_hits),
        vllm="vllm:prefix_cache_hits_total",
    ),
    Family(
        "ovserve_kv_cache_usage_ratio",
        "gauge",
        "Part of the KV cache in use, 0 to 1. Without `cache_size` the whole is what free memory allows.",
        value(lambda m: m.cache_usage),
        vllm="vllm:kv_cache_usage_perc",
    ),
    Family("ovserve_kv_cache_bytes", "gauge", "Size of the KV cache.", value(lambda m: m.cache_bytes)),
    Family(
        "ovserve_kv_cache_config_info",
        "gauge",
        "Tokens per block of the KV cache, and its blocks; 0 blocks for a cache that grows as needed.",
        _config,
        ("block_size", "num_gpu_blocks"),
        vllm="vllm:cache_config_info",
    ),
)
