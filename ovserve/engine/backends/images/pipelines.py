"""The engine of image generation: the pipelines of one model, which share their weights.

The library cannot clone a pipeline from Python, so one image is drawn at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import openvino
import openvino_genai as ov_genai

from ovserve.engine.backends.calls import Invocation
from ovserve.engine.backends.images.adapters import Adapters
from ovserve.engine.backends.images.drawing import Drawing
from ovserve.engine.backends.images.errors import load_error, refused
from ovserve.engine.backends.images.prompts import Prompts
from ovserve.engine.host.device_properties import device_properties
from ovserve.engine.model.image_files import pipeline_class, text_encoders
from ovserve.engine.protocol.images import GENERATE, GenerateArguments, ImageFacts, ImageSpec, Task
from ovserve.errors import InvalidArgument

KINDS: dict[Task, Any] = {
    "inpaint": ov_genai.InpaintingPipeline,
    "edit": ov_genai.Image2ImagePipeline,
    "generate": ov_genai.Text2ImagePipeline,
}
MULTIPLE = 8  # pixels of a latent's side, in every architecture of the library


class ImageBackend:
    def __init__(self, spec: ImageSpec) -> None:
        began = time.monotonic()
        directory = Path(spec.model_path)
        self._adapters = Adapters(spec)
        self._pipelines = _open(spec, self._adapters)
        first = self._pipelines.get("generate") or next(iter(self._pipelines.values()))
        config = first.get_generation_config()
        self._prompts = Prompts(directory, config.max_sequence_length)
        width, height = spec.shape or (max(0, config.width), max(0, config.height))
        self.facts = ImageFacts(
            engine=f"openvino_genai {openvino.get_version().split('-')[0]}",
            load_seconds=round(time.monotonic() - began, 3),
            pipeline=pipeline_class(directory),
            tasks=tuple(task for task in ("generate", "edit", "inpaint") if task in self._pipelines),
            width=width,
            height=height,
            multiple=MULTIPLE,
            steps=config.num_inference_steps,
            guidance_scale=config.guidance_scale if spec.guidance is None else spec.guidance,
            adapters=tuple(adapter.alias for adapter in spec.adapters),
            max_sequence_length=max(0, config.max_sequence_length) if _has_length(directory) else 0,
        )

    def call(self, invocation: Invocation) -> Iterator[Any]:
        if invocation.method != GENERATE:
            raise InvalidArgument(f"an image engine has no method {invocation.method!r}")
        asked = invocation.arguments(GenerateArguments)
        task: Task = "generate" if asked.image is None else "edit" if asked.mask is None else "inpaint"
        pipeline = self._pipelines.get(task)
        if pipeline is None:
            raise refused(f"this model has no pipeline to {task} images")
        adapters, cut = self._adapters.chosen(asked.adapters), self._prompts.cut(asked)
        drawing = Drawing(pipeline, asked, adapters, invocation, cut)
        yield from drawing.items()


def _has_length(directory: Path) -> bool:
    """Return whether requests set how many tokens a text encoder reads. CLIP's always read as many."""
    return any(not kind.startswith("CLIP") for kind in text_encoders(directory).values())


def _open(spec: ImageSpec, adapters: Adapters) -> dict[Task, Any]:
    """Return the pipelines that the model has. The first one reads the files, the others derive from it."""
    directory = Path(spec.model_path)
    tasks: tuple[Task, ...] = ("inpaint", "edit", "generate")
    if not (directory / "vae_encoder").is_dir():
        tasks = ("generate",)
    found: dict[Task, Any] = {}
    source, failure = None, None
    for task in tasks:
        try:
            if source is None:
                source = found[task] = _read(KINDS[task], spec, adapters)
                continue
        except RuntimeError as error:
            failure = error
            continue
        with suppress(RuntimeError):  # an architecture that has no such pipeline
            found[task] = KINDS[task](source)
            source = found[task]
    if not found:
        assert failure is not None, "a pipeline that is not there has failed"
        raise load_error(failure, str(directory))
    return found


def _read(kind: Any, spec: ImageSpec, adapters: Adapters) -> Any:
    devices = set(spec.devices or (spec.device,))
    properties = device_properties(spec.properties, *devices) | adapters.properties
    if spec.shape is None and not spec.devices:
        return kind(spec.model_path, spec.device, **properties)
    pipeline = kind(spec.model_path)
    if spec.shape is not None:
        width, height = spec.shape
        guidance = spec.guidance
        if guidance is None:
            guidance = pipeline.get_generation_config().guidance_scale
        pipeline.reshape(1, height, width, guidance)
    pipeline.compile(*(spec.devices or (spec.device,)), **properties)
    return pipeline
