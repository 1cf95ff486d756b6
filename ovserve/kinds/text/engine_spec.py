"""The engine that an LLM node asks for: its options without what only the server's process uses.

Called by `options.py`, and by `server.first_spec` before the calculators are imported. So this file imports
no parser of tool calls.

`ovserve pull --weight-format auto` chooses the form of the weights by the processor; a disk or an image may
then get to another one. So each load checks whether the form is the faster one here.

The options of the KV cache beyond its size are checked here, because the library finds most impossible
sizes only inside a step, where they take every request with them. The rules are the library's, each seen to
raise (tests/engine/test_engine_options.py).
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import NamedTuple

import msgspec

from ovserve.engine.host.cpu import Processor, processor
from ovserve.engine.model.files import model_in, pulled
from ovserve.engine.protocol.specs import (
    SCRIPT_SUFFIX,
    CacheEviction,
    DraftSpec,
    GenerationSpec,
    PagedTextSpec,
    ScriptSpec,
    SparseAttention,
    StatefulTextSpec,
    TextSpec,
    block_tokens,
)
from ovserve.graph import Node
from ovserve.kinds.plugin_config import plugin_config
from ovserve.kinds.text.engine_choice import (
    TextEngine,
    check_stateful,
    check_vision,
    choose_engine,
    pipeline,
    warn_stateful,
)
from ovserve.protos.llm_pb2 import LLMCalculatorOptions

log = logging.getLogger(__name__)

INTERVALS = (8, 256)  # OVMS's range of cache_interval_multiplier

_EVICTION, _SPARSE = "cache_eviction_config", "sparse_attention_config"


def cache_eviction(node: Node, options: LLMCalculatorOptions) -> CacheEviction | None:
    """Return None if the graph asks for none. Raises LoadError naming the field, like the others here."""
    if not options.HasField("cache_eviction_config"):
        return None
    config, block = options.cache_eviction_config, _block(options)
    for name in ("start_size", "recent_size", "max_cache_size"):
        value = getattr(config, name)
        if value == 0 or value % block:
            raise node.error(
                f"{name}: expected a multiple of {block}, the tokens of a cache block, got {value}", _EVICTION
            )
    evictable = config.max_cache_size - config.start_size - config.recent_size
    if evictable <= 0:
        raise node.error(
            f"max_cache_size: {config.max_cache_size} must be more than start_size {config.start_size} and "
            f"recent_size {config.recent_size} together",
            _EVICTION,
        )
    if config.snapkv_window_size > block:
        raise node.error(
            f"snapkv_window_size: expected at most {block}, got {config.snapkv_window_size}; with more the "
            "engine fails at short prompts",
            _EVICTION,
        )
    if config.apply_rotation and _device(options).startswith("CPU"):
        raise node.error("apply_rotation: true is not possible on CPU; the engine dies of it", _EVICTION)
    crush = config.kv_crush_config
    if crush.budget > evictable // block:
        raise node.error(
            f"kv_crush_config.budget: expected at most {evictable // block}, the blocks between start_size "
            f"and recent_size, got {crush.budget}",
            _EVICTION,
        )
    modes = LLMCalculatorOptions.CacheEvictionConfig.AggregationMode
    window = 0 if loses_window(options) else config.snapkv_window_size
    anchors = LLMCalculatorOptions.KVCrushConfig.AnchorPointMode
    return CacheEviction(
        start_size=config.start_size,
        recent_size=config.recent_size,
        max_cache_size=config.max_cache_size,
        aggregation_mode=modes.Name(config.aggregation_mode),
        apply_rotation=config.apply_rotation,
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
    config = options.cache_eviction_config
    norm_sum = LLMCalculatorOptions.CacheEvictionConfig.AggregationMode.NORM_SUM
    return config.aggregation_mode == norm_sum and config.snapkv_window_size > 1


def sparse_attention(node: Node, options: LLMCalculatorOptions) -> SparseAttention | None:
    if not options.HasField("sparse_attention_config"):
        return None
    config, block = options.sparse_attention_config, _block(options)
    modes = LLMCalculatorOptions.SparseAttentionConfig.SparseAttentionMode
    settings = {field.name: value for field, value in config.ListFields() if field.name != "mode"}
    for name in ("num_retained_start_tokens_in_cache", "num_retained_recent_tokens_in_cache"):
        if settings.get(name, 0) % block:
            raise node.error(
                f"{name}: expected a multiple of {block}, the tokens of a cache block, got {settings[name]}",
                _SPARSE,
            )
    size, stride = settings.get("xattention_block_size", 64), settings.get("xattention_stride", 8)
    if size == 0 or size % block:
        raise node.error(f"xattention_block_size: expected a multiple of {block}, got {size}", _SPARSE)
    if stride == 0 or size % stride:
        raise node.error(
            f"xattention_stride: expected a divisor of xattention_block_size {size}, got {stride}", _SPARSE
        )
    if not 0 <= settings.get("xattention_threshold", 0) <= 1:
        raise node.error(
            f"xattention_threshold: expected 0 to 1, got {settings['xattention_threshold']:g}", _SPARSE
        )
    return SparseAttention(mode=modes.Name(config.mode), settings=settings)


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


FIELDS = (
    "draft_device",
    "draft_max_num_batched_tokens",
    "draft_cache_size",
    "draft_block_size",
    "draft_max_num_seqs",
    "draft_dynamic_split_fuse",
)


def draft_spec(node: Node, options: LLMCalculatorOptions) -> DraftSpec | None:
    """None without draft_models_path. Raises LoadError naming the field."""
    fields = [name for name in FIELDS if options.HasField(name)]  # type: ignore[arg-type]
    fields += ["draft_eagle3_mode"] if options.draft_eagle3_mode else []
    if not options.draft_models_path:
        if fields:
            raise node.error("has no meaning without draft_models_path", fields[0])
        return None
    _same_as_the_main_model(node, options)
    if options.HasField("draft_block_size"):
        raise node.error("the engine chooses the size of a block itself; remove it", "draft_block_size")
    if options.HasField("draft_max_num_seqs") and not options.draft_max_num_seqs:
        raise node.error("expected at least 1, got 0", "draft_max_num_seqs")
    return DraftSpec(
        model_path=str(_directory(node, options.draft_models_path)),
        device=options.draft_device,
        cache_size=options.draft_cache_size if options.HasField("draft_cache_size") else None,
        max_num_seqs=options.draft_max_num_seqs if options.HasField("draft_max_num_seqs") else None,
        eagle3=options.draft_eagle3_mode,
    )


def _same_as_the_main_model(node: Node, options: LLMCalculatorOptions) -> None:
    """The library schedules both models alike whatever a draft's own scheduler says."""
    for name in ("max_num_batched_tokens", "dynamic_split_fuse"):
        draft, main = getattr(options, f"draft_{name}"), getattr(options, name)
        if options.HasField(f"draft_{name}") and draft != main:  # type: ignore[arg-type]
            raise node.error(
                f"{draft}: the engine uses the main model's {name}, {main}, for the draft too; set that, or "
                "remove this",
                f"draft_{name}",
            )


def _directory(node: Node, text: str) -> Path:
    path = (node.config.base / text).resolve()
    if not path.exists():
        raise node.error(f"{path} does not exist", "draft_models_path", text)
    if not path.is_dir():
        raise node.error(
            f"{text!r}: a draft model must be a directory in OpenVINO IR form; docs/decoding.md says how to "
            "make one of a .gguf file",
            "draft_models_path",
            text,
        )
    return path


_AGAIN = "pull it again with --weight-format auto"


def slower_form(directory: Path, processor: Processor) -> str:
    """Return what is slow about a model's weights and what to do, or "".

    Packed weights are reported only if they were this server's choice, not the operator's.
    """
    record = pulled(directory)
    unpacked = record.get("weight_format") == "fp16"
    if unpacked and not processor.unpacked_is_faster:
        return f"its weights are unpacked to 16 bits, which is slow on a processor without AMX; {_AGAIN}"
    if record.get("auto") is True and not unpacked and processor.unpacked_is_faster:
        return f"its weights are packed, which is slow for many streams on a processor with AMX; {_AGAIN}"
    if record.get("auto") is True and not unpacked and not record.get("form"):
        return f"query, key and value of its layers are not merged, which is slow for few streams; {_AGAIN}"
    return ""


class EngineOptions(NamedTuple):
    """The engine that a node asks for."""

    spec: GenerationSpec
    engine: TextEngine
    fallback: GenerationSpec | None = None  # where the model cannot be paged, if the graph names no engine


def engine_options(node: Node, options: LLMCalculatorOptions) -> EngineOptions:
    """Raises LoadError naming the field."""
    properties = plugin_config(node, options.plugin_config)
    prompt_lookup = properties.pop("prompt_lookup", False)  # how to decode, no property of a device
    draft = draft_spec(node, options)
    eviction = cache_eviction(node, options)
    if eviction and (draft or prompt_lookup):
        raise node.error(
            "not with a draft model or prompt lookup, which change what is evicted, and so the answer",
            "cache_eviction_config",
        )
    sparse, interval = sparse_attention(node, options), cache_interval_multiplier(node, options)
    model = _model_path(node, options.models_path)
    chosen_pipeline = pipeline(node, options, model)
    if chosen_pipeline.vision:
        check_vision(node, options)
    engine = choose_engine(node, options, chosen_pipeline)
    if options.deterministic:
        _check_deterministic(node, options, engine, prompt_lookup=prompt_lookup)
    if fields := [field.name for field, _ in options.ListFields() if field.name.startswith("prefix_cache_")]:
        _check_prefix_cache(node, options, engine, fields[0])
    if engine.name == "stateful":
        check_stateful(node, options, prompt_lookup)
        warn_stateful(node, options)
    if draft is not None and prompt_lookup:
        log.warning("node %r: prompt_lookup is on, so the draft model is not loaded", node.name)
    _warn_of_slow_weights(node, options)
    if loses_window(options) and options.cache_eviction_config.HasField("snapkv_window_size"):
        log.warning(
            "node %r: snapkv_window_size %d is taken as 0, because OpenVINO GenAI fails at some short "
            "prompts with a window and aggregation_mode NORM_SUM; SUM allows a window",
            node.name,
            options.cache_eviction_config.snapkv_window_size,
        )
    place = (str(model), options.device or "CPU", json.dumps(properties, sort_keys=True))
    scripted = str(model).endswith(SCRIPT_SUFFIX)
    length = options.max_model_len if options.HasField("max_model_len") else None
    stateful: GenerationSpec = StatefulTextSpec(*place, max_model_len=length)
    if engine.name == "stateful":
        of_script = ScriptSpec(*place, max_model_len=length, max_num_seqs=1, one_at_a_time=True)
        return EngineOptions(of_script if scripted else stateful, engine)

    def spec_for(*, paged: bool) -> TextSpec:
        spec: TextSpec = (
            ScriptSpec(*place, paged=paged) if scripted else (PagedTextSpec if paged else TextSpec)(*place)
        )
        return msgspec.structs.replace(
            spec,
            max_model_len=length,
            cache_size=options.cache_size,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            dynamic_split_fuse=options.dynamic_split_fuse,
            enable_prefix_caching=options.enable_prefix_caching and (paged or not _wrong_prefixes(options)),
            prefix_cache_path=(
                str((node.config.base / options.prefix_cache_path).resolve())
                if options.prefix_cache_path
                else ""
            ),
            prefix_cache_size=options.prefix_cache_size,
            cache_eviction=eviction,
            sparse_attention=sparse,
            cache_interval_multiplier=interval,
            prompt_lookup=prompt_lookup and not paged,  # the paged engine always drafts from the text
            draft=None if prompt_lookup else draft,
            deterministic=options.deterministic,
        )

    if engine.name == "paged":
        other = stateful if chosen_pipeline.wrong_in_library else spec_for(paged=False)
        fallback = None if options.engine or options.deterministic else other
        return EngineOptions(spec_for(paged=True), engine, fallback)
    if options.enable_prefix_caching and (wrong := _wrong_prefixes(options)):
        log.warning(
            "node %r: prefixes are not cached, because OpenVINO GenAI gives wrong answers with "
            "enable_prefix_caching and %s",
            node.name,
            wrong,
        )
    return EngineOptions(spec_for(paged=False), engine)


def _check_deterministic(
    node: Node, options: LLMCalculatorOptions, engine: TextEngine, *, prompt_lookup: bool
) -> None:
    """Raises LoadError for what would let earlier requests change the rounding of an answer."""
    reasons = {
        f"not possible with OpenVINO GenAI's engine, which the node gets {engine.reason}": engine.name
        != "paged",
        "not possible with draft_models_path, because drafts change the rounding": options.draft_models_path,
        "not possible with prompt_lookup, because drafts change the rounding": prompt_lookup,
        "not possible with dynamic_split_fuse: false, because prompts are read in parts of one size": (
            not options.dynamic_split_fuse
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            raise node.error(reason, "deterministic")


def _check_prefix_cache(node: Node, options: LLMCalculatorOptions, engine: TextEngine, field: str) -> None:
    """Raises LoadError for a store of prefixes that nothing would be written to."""
    if not options.prefix_cache_path:
        raise node.error("has no meaning without prefix_cache_path", field)
    if not options.prefix_cache_size:
        raise node.error("expected at least 1 GB, got 0", "prefix_cache_size")
    if not options.enable_prefix_caching:
        raise node.error("has no meaning without enable_prefix_caching: true", "prefix_cache_path")
    if engine.name != "paged":
        raise node.error(
            f"not possible with OpenVINO GenAI's engine, which the node gets {engine.reason}",
            "prefix_cache_path",
        )


def _wrong_prefixes(options: LLMCalculatorOptions) -> str:
    """Return the option with which OpenVINO GenAI 2026.4 caches prefixes wrongly; "" if there is none.

    Without split-fuse it does not copy a half filled block that two equal prompts share, and answers the
    second with nonsense. With cache eviction it finds wrong blocks for a prompt that begins like an earlier
    one. With a draft model the caches of the two may have different parts of a prompt, and the answer begins
    with a token twice: 5 of 400 conversations of six turns. EAGLE3 aligns the two.
    """
    if not options.dynamic_split_fuse:
        return "dynamic_split_fuse: false"
    if options.draft_models_path and not options.draft_eagle3_mode:
        return "draft_models_path"
    return "cache_eviction_config" if options.HasField("cache_eviction_config") else ""


def _model_path(node: Node, text: str) -> Path:
    """Relative to the graph's base directory; a directory, a .gguf file, or a scripted model. Of a directory
    in which a .gguf file is the only model, that file."""
    path = (node.config.base / text).resolve()
    if not path.exists():
        hint = ""
        if path.suffix == ".gguf" and path.parent.parent.name == "models":
            hint = f"; `ovserve pull {path.parent.name}` may fetch it"
        elif path.parent.name == "models":
            hint = "; `make setup` makes the default model, `ovserve pull` others"
        raise node.error(f"{path} does not exist{hint}", "models_path", text)
    if path.is_file() and path.suffix != ".gguf" and not path.name.endswith(SCRIPT_SUFFIX):
        raise node.error(f"{text!r} is neither a directory nor a .gguf file", "models_path", text)
    return model_in(path)


def _warn_of_slow_weights(node: Node, options: LLMCalculatorOptions) -> None:
    directory = (node.config.base / options.models_path).resolve()
    on_cpu = options.device in ("", "CPU")
    if on_cpu and directory.is_dir() and (warning := slower_form(directory, processor())):
        log.warning("node %r: %s: %s", node.name, directory, warning)
