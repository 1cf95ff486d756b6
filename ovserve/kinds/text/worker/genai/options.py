"""A TextSpec as the library's own configuration objects.

Whatever the library says no to becomes a LoadError that names the option of the graph.
"""

from __future__ import annotations

import openvino_genai as ov_genai

from ovserve.engine.host.cpu import device_properties
from ovserve.engine.model.lora import compressed, unusable
from ovserve.engine.protocol.specs import (
    CacheEviction,
    DraftSpec,
    GenerationSpec,
    LoraAdapter,
    PagedTextSpec,
    SparseAttention,
    TextSpec,
)
from ovserve.errors import LoadError
from ovserve.kinds.text.worker.genai.quirks.read_only_gguf import writable


def scheduler_config(spec: TextSpec) -> ov_genai.SchedulerConfig:
    config = ov_genai.SchedulerConfig()
    for name in (
        "cache_size",
        "num_kv_blocks",
        "max_num_seqs",
        "max_num_batched_tokens",
        "dynamic_split_fuse",
        "enable_prefix_caching",
    ):
        try:
            setattr(config, name, getattr(spec, name))
        except (TypeError, OverflowError) as error:
            raise LoadError(f"{getattr(spec, name)!r} is not a possible value", field=name) from error
    if spec.cache_interval_multiplier is not None:
        config.cache_interval_multiplier = spec.cache_interval_multiplier
    if spec.cache_eviction is not None:
        config.use_cache_eviction = True
        config.cache_eviction_config = _cache_eviction(spec.cache_eviction)
    if spec.sparse_attention is not None:
        config.use_sparse_attention = True
        config.sparse_attention_config = _sparse_attention(spec.sparse_attention)
    return config


def _cache_eviction(eviction: CacheEviction) -> ov_genai.CacheEvictionConfig:
    anchor = getattr(ov_genai.KVCrushAnchorPointMode, eviction.crush_anchor)
    try:
        return ov_genai.CacheEvictionConfig(
            eviction.start_size,
            eviction.recent_size,
            eviction.max_cache_size,
            getattr(ov_genai.AggregationMode, eviction.aggregation_mode),
            eviction.apply_rotation,
            eviction.snapkv_window_size,
            ov_genai.KVCrushConfig(eviction.crush_budget, anchor, eviction.crush_seed),
        )
    except (RuntimeError, TypeError) as error:
        raise LoadError(sentence(error), field="cache_eviction_config") from error


def _sparse_attention(sparse: SparseAttention) -> ov_genai.SparseAttentionConfig:
    mode = getattr(ov_genai.SparseAttentionMode, sparse.mode)
    try:
        return ov_genai.SparseAttentionConfig(mode, **sparse.settings)
    except (RuntimeError, TypeError) as error:
        raise LoadError(sentence(error), field="sparse_attention_config") from error


def properties(spec: GenerationSpec) -> dict[str, object]:
    """Options of the device, and the library's own that choose how to decode."""
    try:
        options: dict[str, object] = device_properties(spec.properties, spec.device)
    except ValueError as error:
        raise LoadError(f"not a JSON object: {error}", field="plugin_config") from error
    if not isinstance(spec, TextSpec) or isinstance(spec, PagedTextSpec):
        return options
    if spec.prompt_lookup:
        options["prompt_lookup"] = True
    if spec.draft is not None:
        options["draft_model"] = _draft_model(spec, spec.draft)
    if spec.adapter is not None:
        options["adapters"] = _adapters(spec, spec.adapter)
    return options


def _adapters(spec: TextSpec, adapter: LoraAdapter) -> object:
    """Return the adapter, fused into float weights, and otherwise computed next to them in every step.

    The library ignores adapters of other modes in requests of a batch. It also ignores an adapter whose
    layers it does not find, so that is a LoadError here.
    """
    if fault := unusable(adapter.path, spec.model_path):
        raise LoadError(fault, field="lora_adapters")
    try:
        weights = ov_genai.Adapter(adapter.path)
    except RuntimeError as error:
        raise LoadError(f"{adapter.path}: {sentence(error)}", field="lora_adapters") from error
    modes = ov_genai.AdapterConfig.Mode
    mode = modes.MODE_STATIC if compressed(spec.model_path) else modes.MODE_FUSE
    return ov_genai.AdapterConfig(weights, adapter.alpha, mode)


def _draft_model(spec: TextSpec, draft: DraftSpec) -> object:
    more: dict[str, object] = device_properties("", draft.device)
    if draft.eagle3:
        more["eagle3_mode"] = True
    if draft.cache_size is not None or draft.max_num_seqs is not None:
        more["scheduler_config"] = draft_scheduler_config(spec, draft)
    try:
        with writable(draft.model_path) as path:
            return ov_genai.draft_model(path, draft.device, **more)
    except (RuntimeError, TypeError) as error:
        raise LoadError(sentence(error), field="draft_models_path") from error


def draft_scheduler_config(spec: TextSpec, draft: DraftSpec) -> ov_genai.SchedulerConfig:
    """The main model's, but for what the draft has of its own."""
    config = scheduler_config(spec)
    if draft.cache_size is not None:
        config.cache_size = draft.cache_size
    if draft.max_num_seqs is not None:
        config.max_num_seqs = draft.max_num_seqs
    return config


def to_blame(spec: GenerationSpec, message: str) -> str:
    """The option of the graph that an error while building the pipeline is about; "" if that is not known."""
    if isinstance(spec, TextSpec) and spec.draft is not None and "draft" in message.lower():
        return "draft_models_path"
    if "Device with" in message or "Cannot load library" in message:
        return "device"
    if "Unsupported property" in message or "property key" in message:
        return "plugin_config"
    return ""


def sentence(error: Exception) -> str:
    """The library's last sentence, without the source lines and check expressions before it."""
    lines = [line.strip() for line in str(error).splitlines()]
    causes = [
        line for line in lines if line and not line.startswith(("Exception from ", "Check '", "Invoked with"))
    ]
    return causes[-1].removeprefix("NotFound: ") if causes else type(error).__name__
