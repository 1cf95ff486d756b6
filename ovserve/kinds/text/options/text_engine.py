"""Chooses the engine that generates the text of a graph, and says why: the one place of this rule.

Without the field `engine` it is the paged engine, if that has all that the graph asks for, else OpenVINO
GenAI. What only shows when the model is loaded is the loader's: `Engines.acquire` takes GenAI in place of a
paged engine that cannot transform the model.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator
from typing import Literal, NamedTuple

from ovserve.graph import Node
from ovserve.installation import masks_grammars
from ovserve.kinds.text.options.pipeline_type import Pipeline
from ovserve.protos.llm_pb2 import LLMCalculatorOptions

log = logging.getLogger(__name__)

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


def choose_engine(
    node: Node, options: LLMCalculatorOptions, pipeline: Pipeline, *, warns: bool = True
) -> TextEngine:
    """Raises LoadError for an engine that there is not, or that cannot do what the graph asks for."""
    _check_name(node, options.engine)
    obstacle = next(_obstacles(options, pipeline), None)
    if options.engine == "paged" and obstacle is not None:
        value = f"{obstacle.value}: " if obstacle.value else ""
        raise node.error(f'{value}not possible with engine: "paged", which {obstacle.lack}', obstacle.field)
    if pipeline.stateful:
        by_device = options.pipeline_type == LLMCalculatorOptions.AUTO
        field = f"device {options.device}" if by_device else f"pipeline_type {_pipeline_name(options)}"
        return TextEngine("stateful", f"because of {field}")
    if options.engine:
        return TextEngine("paged" if options.engine == "paged" else "genai", "as the graph says")
    if obstacle is not None:
        return TextEngine("genai", f"because the paged engine {obstacle.lack} ({obstacle.field})")
    if not masks_grammars():
        if warns:
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
