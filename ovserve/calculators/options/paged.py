"""The field `engine` of LLMCalculatorOptions, and what the paged engine lacks; used by `llm.py`."""

from __future__ import annotations

import difflib
from pathlib import Path

from ovserve.calculators.options.pipeline_type import Pipeline
from ovserve.engine.protocol.specs import SCRIPT_SUFFIX
from ovserve.graph import Node
from ovserve.protos.llm_pb2 import LLMCalculatorOptions

ENGINES = ("genai", "paged")

_WHY = 'not possible with engine: "paged"'
# A message that is set, but empty, asks for something too.
_LACKS = {
    "cache_eviction_config": "which evicts no tokens",
    "sparse_attention_config": "which attends to all tokens",
    "cache_interval_multiplier": "which runs no models with linear attention",
    "draft_models_path": "which drafts from the text itself",
}


def is_paged(node: Node, options: LLMCalculatorOptions) -> bool:
    """Raises LoadError for an engine that there is not."""
    if options.engine in ("", *ENGINES):
        return options.engine == "paged"
    near = difflib.get_close_matches(options.engine.lower(), ENGINES, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise node.error(
        f"expected {' or '.join(ENGINES)}, got {options.engine!r}{hint}", "engine", options.engine
    )


def check_paged(
    node: Node, options: LLMCalculatorOptions, chosen: Pipeline, model: Path, prompt_lookup: bool
) -> None:
    """Raises LoadError naming the field that asks for what the paged engine lacks."""
    device = options.device or "CPU"
    if device != "CPU":
        raise node.error(f"{device}: {_WHY}, which runs on CPU only", "device", options.device)
    if chosen.vision:
        raise node.error(f"{options.models_path}: {_WHY}, which takes no images", "models_path")
    if chosen.stateful:
        name = LLMCalculatorOptions.PipelineType.Name(options.pipeline_type)
        raise node.error(f"{name}: {_WHY}, which has AUTO and LM_CB", "pipeline_type")
    for name, lack in _LACKS.items():
        if options.HasField(name):  # type: ignore[arg-type]
            raise node.error(f"{_WHY}, {lack}", name)
    if prompt_lookup:
        raise node.error(
            f"prompt_lookup: {_WHY}, which drafts from the text itself; remove it", "plugin_config"
        )
    if not options.dynamic_split_fuse:
        raise node.error(f"false: {_WHY}, which splits long prompts", "dynamic_split_fuse")
    if options.lora_adapters:
        raise node.error(_WHY, "lora_adapters")
    if model.suffix == ".gguf":
        raise node.error(
            f"{model.name}: {_WHY}, which reads OpenVINO's format; `ovserve pull {model} --convert` makes it",
            "models_path",
            options.models_path,
        )
    if model.is_file() and not model.name.endswith(SCRIPT_SUFFIX):
        raise node.error(f"{model.name}: {_WHY}, which needs a directory", "models_path", options.models_path)
