"""Chooses the library's pipeline for a graph's model; used by `llm.py`. The rules are OVMS's.

A vision model is known by two of its files; with a third it also speaks (Omni). What a graph says counts,
unless the files contradict it; AUTO takes what the files and the device need. Of an Omni model the part that
reads and writes text is served, by the pipeline of a vision model: as the library answers without sound.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

from ovserve.engine.model.files import VISION_FILES, is_vision
from ovserve.graph import Node
from ovserve.protos.llm_pb2 import LLMCalculatorOptions

log = logging.getLogger(__name__)

TALKER_FILE = "openvino_talker_model.xml"
ONE_AT_A_TIME = "NPU"  # the device that has no continuous batching

FIELD = "pipeline_type"
# Proven by tests/engine/test_omni.py, which fails when the library has been mended.
WRONG_POSITIONS = "the engine's stateful pipeline loses its place in time behind an image"
# What shapes batches and the cache, of which the stateful pipeline has neither; OVMS's own files have them.
WITHOUT_EFFECT = (
    "cache_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "dynamic_split_fuse",
    "enable_prefix_caching",
    "cache_eviction_config",
    "sparse_attention_config",
    "cache_interval_multiplier",
)


class Pipeline(NamedTuple):
    vision: bool
    stateful: bool


def pipeline(node: Node, options: LLMCalculatorOptions, model: Path) -> Pipeline:
    """Raises LoadError naming the field."""
    kinds = LLMCalculatorOptions.PipelineType
    name, vision = kinds.Name(options.pipeline_type), is_vision(str(model))
    omni = vision and (model / TALKER_FILE).is_file()
    if name == "OMNI" and not omni:
        files = ", ".join((*VISION_FILES, TALKER_FILE))
        raise node.error(f"OMNI: {options.models_path} is not an Omni model, which has {files}", FIELD)
    if omni and (name == "VLM" or options.device == ONE_AT_A_TIME):
        what = "VLM" if name == "VLM" else ONE_AT_A_TIME
        raise node.error(f"{what}: not possible with an Omni model; {WRONG_POSITIONS}", FIELD)
    if name == "OMNI":
        return Pipeline(vision=True, stateful=False)
    if name == "AUTO":
        return Pipeline(vision, options.device == ONE_AT_A_TIME)
    if name.startswith("VLM") != vision:
        found = "a vision model" if vision else "not a vision model"
        raise node.error(
            f"{name}: {options.models_path} is {found}, which has {' and '.join(VISION_FILES)}", FIELD
        )
    if name.endswith("_CB") and options.device == ONE_AT_A_TIME:
        raise node.error(f"{name}: an NPU has only {name.removesuffix('_CB')}, or AUTO", FIELD)
    return Pipeline(vision, not name.endswith("_CB"))


def check_stateful(node: Node, options: LLMCalculatorOptions, prompt_lookup: bool) -> None:
    """Check a graph whose pipeline is a stateful one. Raises LoadError naming the field."""
    why = "not possible with the stateful pipeline (pipeline_type LM, or an NPU), which drafts no tokens"
    if options.draft_models_path:
        raise node.error(why, "draft_models_path")
    if prompt_lookup:
        raise node.error(f"prompt_lookup: {why}", "plugin_config")


def check_vision(node: Node, options: LLMCalculatorOptions) -> None:
    """Check a graph whose model takes images. Raises LoadError naming the field."""
    if options.draft_models_path:
        raise node.error(
            "not possible with a vision model: the engine drafts for prompts of tokens only",
            "draft_models_path",
        )


def warn_stateful(node: Node, options: LLMCalculatorOptions) -> None:
    if given := [name for name in WITHOUT_EFFECT if options.HasField(name)]:  # type: ignore[arg-type]
        log.warning(
            "node %r: without effect on the stateful pipeline, which answers one request at a time: %s",
            node.name,
            ", ".join(given),
        )
