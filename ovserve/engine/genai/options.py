"""An EngineSpec as the library's own configuration objects; used by `continuous.py` while loading.

Whatever the library says no to becomes a LoadError that names the option of the graph.
"""

from __future__ import annotations

import msgspec
import openvino_genai as ov_genai

from ovserve.engine.messages import DraftSpec, EngineSpec
from ovserve.errors import LoadError


def scheduler_config(spec: EngineSpec) -> ov_genai.SchedulerConfig:
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
    return config


def properties(spec: EngineSpec) -> dict[str, object]:
    """Of the device, and the library's own that choose how to decode."""
    try:
        found = msgspec.json.decode(spec.properties or "{}", type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise LoadError(f"not a JSON object: {error}", field="plugin_config") from error
    if spec.prompt_lookup:
        found["prompt_lookup"] = True
    if spec.draft is not None:
        found["draft_model"] = _draft_model(spec, spec.draft)
    return found


def _draft_model(spec: EngineSpec, draft: DraftSpec) -> object:
    more: dict[str, object] = {}
    if draft.eagle3:
        more["eagle3_mode"] = True
    if draft.cache_size is not None or draft.max_num_seqs is not None:
        more["scheduler_config"] = draft_scheduler_config(spec, draft)
    try:
        return ov_genai.draft_model(draft.model_path, draft.device, **more)
    except (RuntimeError, TypeError) as error:
        raise LoadError(sentence(error), field="draft_models_path") from error


def draft_scheduler_config(spec: EngineSpec, draft: DraftSpec) -> ov_genai.SchedulerConfig:
    """The main model's, but for what the draft has of its own."""
    config = scheduler_config(spec)
    if draft.cache_size is not None:
        config.cache_size = draft.cache_size
    if draft.max_num_seqs is not None:
        config.max_num_seqs = draft.max_num_seqs
    return config


def sentence(error: Exception) -> str:
    """The library's last sentence, without the source lines and check expressions before it."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [
        line for line in lines if line and not line.startswith(("Exception from ", "Check '", "Invoked with"))
    ]
    return said[-1].removeprefix("NotFound: ") if said else type(error).__name__
