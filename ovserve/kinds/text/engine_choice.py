"""Chooses the engine and the library's pipeline for a graph's model, and says why: the one place of these
rules.

The rules of the pipeline are OVMS's. A vision model is known by two of its files; with a third it also
speaks (Omni). What a graph says counts, unless the files contradict it; AUTO takes what the files and the
device need. Of an Omni model the part that reads and writes text is served, by the pipeline of a vision
model: as the library answers without sound.

Without the field `engine` it is the paged engine, if that has all that the graph asks for, else OpenVINO
GenAI. What only shows when the model is loaded is the loader's: `Engines.acquire` takes GenAI in place of a
paged engine that cannot transform the model.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from ovserve.engine.model.files import VISION_FILES, is_vision, json_or_empty
from ovserve.graph import Node
from ovserve.installation import masks_grammars
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


# Types of models for which paged attention, as OpenVINO 2026.4.1 makes it, answers otherwise than the model:
# masks of their own are lost (local and chunked attention, MPT's ALiBi). 42 other types answer as
# transformers does (random weights, exported by optimum-intel 2.2).
WRONG_WHEN_PAGED = frozenset(["gpt_neo", "llama4", "llama4_text", "mpt"])
# Types that the paged engine computes rightly, and OpenVINO GenAI 2026.4.1 in batches wrongly: it takes one
# position for all tokens of Qwen3.5 without its vision part, and writes no state of Mamba 2 while it caches
# no prefixes, see genai/quirks.py. Of the latter granitemoehybrid was tried.
WRONG_IN_LIBRARY = frozenset(
    ["qwen3_5_text", "qwen3_5_moe_text", "granitemoehybrid", "bamba", "falcon_h1", "nemotron_h", "zamba2"]
)


class Pipeline(NamedTuple):
    vision: bool
    stateful: bool
    wrong_when_paged: str = ""  # the type of such a model
    wrong_in_library: str = ""


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
    model_type = "" if vision else str(json_or_empty(model / "config.json", dict).get("model_type"))
    wrong = model_type if model_type in WRONG_WHEN_PAGED else ""
    wrong_in_library = model_type if model_type in WRONG_IN_LIBRARY else ""
    if name == "AUTO":
        stateful = options.device == ONE_AT_A_TIME or bool(wrong)
        return Pipeline(vision, stateful, wrong, wrong_in_library)
    if name.startswith("VLM") != vision:
        kind = "a vision model" if vision else "not a vision model"
        raise node.error(
            f"{name}: {options.models_path} is {kind}, which has {' and '.join(VISION_FILES)}", FIELD
        )
    if name.endswith("_CB") and options.device == ONE_AT_A_TIME:
        raise node.error(f"{name}: an NPU has only {name.removesuffix('_CB')}, or AUTO", FIELD)
    if name.endswith("_CB") and wrong:
        raise node.error(
            f"{name}: OpenVINO computes {wrong} wrongly with it, so it has only LM, or AUTO", FIELD
        )
    return Pipeline(vision, not name.endswith("_CB"), wrong_in_library=wrong_in_library)


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
    if ignored := [name for name in WITHOUT_EFFECT if options.HasField(name)]:  # type: ignore[arg-type]
        log.warning(
            "node %r: without effect on the stateful pipeline, which answers one request at a time: %s",
            node.name,
            ", ".join(ignored),
        )


ENGINES = ("genai", "paged")

# A message that is set, but empty, asks for something too.
_UNKNOWN_TO_PAGED = {
    "cache_eviction_config": "evicts no tokens",
    "sparse_attention_config": "attends to all tokens",
    "cache_interval_multiplier": "runs no models with linear attention",
}


class TextEngine(NamedTuple):
    name: Literal["paged", "genai", "stateful"]
    reason: str  # continues a sentence: "paged, as the graph says"

    def __str__(self) -> str:
        return f"{self.name}, {self.reason}"


class Obstacle(NamedTuple):
    """A field of a graph that asks for something the paged engine lacks."""

    field: str
    value: str
    lack: str  # continues a sentence: "the paged engine runs on CPU only"


def choose_engine(node: Node, options: LLMCalculatorOptions, pipeline: Pipeline) -> TextEngine:
    """Raises LoadError for an engine that there is not, or that cannot do what the graph asks for."""
    _check_name(node, options.engine)
    obstacle = next(_obstacles(options, pipeline), None)
    if options.engine == "paged" and obstacle is not None:
        value = f"{obstacle.value}: " if obstacle.value else ""
        raise node.error(f'{value}not possible with engine: "paged", which {obstacle.lack}', obstacle.field)
    if pipeline.wrong_when_paged:
        return TextEngine(
            "stateful", f"because paged attention would compute {pipeline.wrong_when_paged} wrongly"
        )
    if pipeline.stateful:
        by_device = options.pipeline_type == LLMCalculatorOptions.AUTO
        field = f"device {options.device}" if by_device else f"pipeline_type {_pipeline_name(options)}"
        return TextEngine("stateful", f"because of {field}")
    is_paged = options.engine == "paged" or (not options.engine and obstacle is None and masks_grammars())
    if (wrong := pipeline.wrong_in_library) and not is_paged:
        if options.pipeline_type != LLMCalculatorOptions.AUTO:
            why = f"OpenVINO GenAI computes {wrong} wrongly with it, so it has only LM, or AUTO"
            raise node.error(f"{_pipeline_name(options)}: {why}", FIELD)
        return TextEngine("stateful", f"because OpenVINO GenAI would compute {wrong} wrongly in batches")
    if options.engine:
        return TextEngine("paged" if options.engine == "paged" else "genai", "as the graph says")
    if obstacle is not None:
        return TextEngine("genai", f"because the paged engine {obstacle.lack} ({obstacle.field})")
    if not masks_grammars():
        log.warning(
            "node %r: OpenVINO GenAI's engine is used, because the packages of the paged engine are "
            "missing; docs/structured-output.md has the commands that install them",
            node.name,
        )
        return TextEngine("genai", "because the packages of the paged engine are missing (xgrammar)")
    return TextEngine("paged", "which has all that the graph asks for")


def _check_name(node: Node, name: str) -> None:
    if name in ("", *ENGINES):
        return
    near = difflib.get_close_matches(name.lower(), ENGINES, 1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise node.error(f"expected {' or '.join(ENGINES)}, got {name!r}{hint}", "engine", name)


def _obstacles(options: LLMCalculatorOptions, pipeline: Pipeline) -> Iterator[Obstacle]:
    device = options.device or "CPU"
    if device != "CPU":
        yield Obstacle("device", device, "runs on CPU only")
    if pipeline.vision:
        yield Obstacle("models_path", options.models_path, "takes no images")
    if pipeline.wrong_when_paged:
        yield Obstacle("models_path", options.models_path, f"computes {pipeline.wrong_when_paged} wrongly")
    if pipeline.stateful:
        yield Obstacle("pipeline_type", _pipeline_name(options), "has AUTO and LM_CB")
    for name, lack in _UNKNOWN_TO_PAGED.items():
        if options.HasField(name):  # type: ignore[arg-type]
            yield Obstacle(name, "", lack)
    if options.draft_eagle3_mode:
        yield Obstacle("draft_eagle3_mode", "", "drafts with whole models only")
    if options.draft_device not in ("", "CPU"):
        yield Obstacle("draft_device", options.draft_device, "runs on CPU only")
    if options.lora_adapters:
        yield Obstacle("lora_adapters", "", "has no adapters")


def _pipeline_name(options: LLMCalculatorOptions) -> str:
    return LLMCalculatorOptions.PipelineType.Name(options.pipeline_type)
