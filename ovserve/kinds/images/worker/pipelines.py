"""The engine of image generation: the pipelines of one model, which share their weights.

The library cannot clone a pipeline from Python, so one image is drawn at a time.

LoRA adapters are read once and set by each call. The library (2026.4.1) sets adapters wrongly in two cases,
and then draws with those of an earlier call. A list of fewer adapters than the pipeline was made with may
leave the others on, so every call names all, those that are off with alpha 0. And of two lists of the same
adapters only the last alpha is compared, so the order alternates: a list in another order is set as a whole.
Pipelines that share weights share this state.

The library cuts prompts that are too long for a text encoder, so these are found first. Each text encoder has
a tokenizer of its own and reads one of the prompts. CLIP's and T5's are known here.

A call draws its images one after the other. The library draws on a thread of its own here, and reports steps
on another. The callback must not raise: the library then ends the process. Reports that wait when the run
ends are dropped. A run that is stopped returns a tensor without content.
"""

from __future__ import annotations

import binascii
import io
import re
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import msgspec
import numpy as np
import openvino
import openvino_genai as ov_genai
from numpy.typing import NDArray
from PIL import Image as Pillow

from ovserve.engine.host.cpu import device_properties
from ovserve.engine.model.files import json_object, safetensors_header
from ovserve.engine.protocol.call_backend import Invocation, Result
from ovserve.errors import Internal, InvalidArgument, LoadError, sentences_of
from ovserve.kinds.images.spec import (
    GENERATE,
    Format,
    GenerateArguments,
    ImageFacts,
    ImageItem,
    ImageSpec,
    Raster,
    Task,
    pipeline_class,
    text_encoders,
)

# How the library begins the text of a failed check, and where its checks of a request's options are.
_CHECK = re.compile(r"Check '.*?' failed at (\S+?):\d+:\s*(.*)", re.DOTALL)
_OF_REQUESTS = "/image_generation/"


def of_request(error: RuntimeError) -> InvalidArgument | None:
    """Return the client's error if the library rejected an option, such as prompt_2 of a model without it."""
    match = _CHECK.search(str(error))
    if match is None or _OF_REQUESTS not in match[1]:
        return None
    return InvalidArgument(f"the model rejects the request: {sentence(error)}")


def sentence(error: RuntimeError) -> str:
    """Return the last line of the library's text, without the places in its source."""
    match = _CHECK.search(str(error))
    text = match[2] if match is not None and match[2].strip() else str(error)
    return next((line for line in reversed(text.strip().splitlines()) if line.strip()), "no reason").strip()


Image = NDArray[np.uint8]  # [height, width, 3]


def tensor_of(blob: Any, raster: Raster) -> Any:
    """Return a tensor [1, height, width, 3] of the pixels in a blob."""
    pixels = np.frombuffer(blob, np.uint8).reshape(1, raster.height, raster.width, 3)
    return openvino.Tensor(np.array(pixels))


def pixels_of(tensor: Any) -> Image:
    """Return a copy of the first image. Raises Internal for what a stopped run returns."""
    shape = tuple(tensor.shape)
    if len(shape) != 4 or shape[-1] != 3:
        raise Internal(f"the library returned an image of shape {list(shape)}")
    pixels: Image = np.array(tensor.data[0], np.uint8)
    return pixels


def encoded(image: Image, format_: Format, quality: int) -> bytes:
    """Return base64 of a file, which goes into the answer as it is. `quality` has no effect on png."""
    file = io.BytesIO()
    options = {} if format_ == "png" else {"quality": quality}
    Pillow.fromarray(image).save(file, format_, **options)
    return binascii.b2a_base64(file.getbuffer(), newline=False)


class Drawing:
    def __init__(
        self,
        pipeline: Any,
        arguments: GenerateArguments,
        adapters: dict[str, Any],
        invocation: Invocation,
        truncated: tuple[str, ...] = (),
    ) -> None:
        """`truncated` is repeated in every item."""
        self._pipeline, self._request, self._invocation = pipeline, arguments, invocation
        self._options, self._truncated = arguments.options | adapters, truncated
        rasters = [raster for raster in (arguments.image, arguments.mask) if raster is not None]
        self._inputs = [tensor_of(b, r) for b, r in zip(invocation.blobs, rasters, strict=True)]
        self._items: SimpleQueue[Result | BaseException | None] = SimpleQueue()
        self._left = threading.Event()

    def items(self) -> Iterator[Result]:
        """Yield the items. Raises InvalidArgument for an option that the model rejects."""
        thread = threading.Thread(target=self._run, name="drawing", daemon=True)
        thread.start()
        try:
            while (item := self._items.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            self._left.set()
            thread.join()

    @property
    def _stopped(self) -> bool:
        return self._left.is_set() or self._invocation.cancelled

    def _run(self) -> None:
        try:
            for index, seed in enumerate(self._request.seeds):
                if self._stopped:
                    break
                self._draw(index, seed)
            self._items.put(None)
        except RuntimeError as error:
            self._items.put(of_request(error) or error)
        except BaseException as error:  # noqa: BLE001  it is raised where the items are read
            self._items.put(error)

    def _draw(self, index: int, seed: int) -> None:
        began, request = time.monotonic(), self._request
        count = int(request.options.get("num_inference_steps", 0))  # an edit does fewer
        partials = 0  # that have been sent

        def report(step: int, steps: int, latent: Any) -> bool:
            """Return True to stop the run."""
            nonlocal count, partials
            count = steps
            try:
                # The k-th of n is due at k/(n+1) of the way, so that the last one is not the image itself.
                is_due = (step + 1) * (request.partial_images + 1) >= (partials + 1) * steps
                if is_due and partials < request.partial_images and step + 1 < steps and not self._stopped:
                    part = pixels_of(self._pipeline.decode(latent))
                    self._emit(
                        part, ImageItem("partial", index, steps, partials, part.shape[1], part.shape[0])
                    )
                    partials += 1
            except Exception:  # noqa: BLE001  an exception that leaves here ends the process
                traceback.print_exc()
            return self._stopped

        # One run per image: with num_images_per_prompt the first image differs from that of a single one.
        tensor = self._pipeline.generate(
            request.prompt, *self._inputs, rng_seed=seed, callback=report, **self._options
        )
        if self._stopped:
            return
        image = pixels_of(tensor)
        height, width = image.shape[:2]
        seconds = round(time.monotonic() - began, 4)
        item = ImageItem("image", index, steps=count, width=width, height=height, seconds=seconds)
        self._emit(image, item)

    def _emit(self, image: Image, item: ImageItem) -> None:
        if self._truncated:
            item = msgspec.structs.replace(item, truncated=self._truncated)
        self._items.put(Result(item, (encoded(image, self._request.format, self._request.quality),)))


CLIP, T5 = "CLIP", "T5"  # how the names of classes begin
CLIP_TOKENS = 77  # the library's default of max_position_embeddings
SPECIAL_TOKENS = 2  # tokens around a text, at most
LENGTH = "max_sequence_length"


class _Encoder(NamedTuple):
    tokenizer: Any
    suffix: str  # of the fields with its prompts
    tokens: int  # that it reads; 0: as the request says
    whole: bool  # whether its tokenizer counts further than that

    def cuts(self, text: str, tokens: int) -> bool:
        if text.isascii() and len(text) + SPECIAL_TOKENS <= tokens:  # a token has at least one character
            return False
        return _count(self.tokenizer, text) + (not self.whole) > tokens


class Prompts:
    def __init__(self, directory: Path, sequence_length: int) -> None:
        """`sequence_length` is that of requests without `max_sequence_length`."""
        self._sequence_length = sequence_length
        self._encoders = list(_encoders(directory))

    def cut(self, arguments: GenerateArguments) -> tuple[str, ...]:
        """Return the fields whose texts are cut, in the order of the alphabet."""
        options = arguments.options
        length = int(options.get(LENGTH, self._sequence_length))
        fields = set()
        for encoder in self._encoders:
            for base in ("prompt", "negative_prompt"):
                field = base + encoder.suffix if base + encoder.suffix in options else base
                text = arguments.prompt if field == "prompt" else str(options.get(field, ""))
                if field not in fields and encoder.cuts(text, encoder.tokens or length):
                    fields.add(field)
        return tuple(sorted(fields))


def _encoders(directory: Path) -> Iterator[_Encoder]:
    swapped = pipeline_class(directory).startswith("StableDiffusionXL")  # its second one reads `prompt`
    suffixes = {"text_encoder": "_2", "text_encoder_2": ""} if swapped else {}
    for name, kind in text_encoders(directory).items():
        if kind.startswith((CLIP, T5)):
            tokenizer = ov_genai.Tokenizer(str(directory / name.replace("text_encoder", "tokenizer")))
            tokens = _positions(directory / name) if kind.startswith(CLIP) else 0
            # Tokenizers that were converted long ago cut by themselves, at the length of the model.
            whole = not tokens or _count(tokenizer, "a b " * tokens) > tokens
            yield _Encoder(tokenizer, suffixes.get(name, name.removeprefix("text_encoder")), tokens, whole)


def _positions(encoder: Path) -> int:
    return int(json_object(encoder / "config.json").get("max_position_embeddings", CLIP_TOKENS))


def _count(tokenizer: Any, text: str) -> int:
    """Count the tokens, without those that fill up."""
    return int(tokenizer.encode(text).attention_mask.data.sum())


MODES = {
    "DYNAMIC": ov_genai.AdapterConfig.Mode.MODE_DYNAMIC,
    "STATIC": ov_genai.AdapterConfig.Mode.MODE_STATIC,
    "FUSE": ov_genai.AdapterConfig.Mode.MODE_FUSE,
}


class Adapters:
    def __init__(self, spec: ImageSpec) -> None:
        """Raises LoadError for a file that the library cannot read."""
        self._read: dict[str, Any] = {}
        self._reversed = False
        self._dynamic = spec.adapter_mode == "DYNAMIC"
        for adapter in spec.adapters:
            safetensors_header(Path(adapter.path))
            try:
                self._read[adapter.alias] = ov_genai.Adapter(adapter.path)
            except RuntimeError as error:
                text = sentences_of(error)[-1]
                raise LoadError(f"{adapter.path} cannot be read: {text}", field="lora_adapters") from error
        self.properties: dict[str, Any] = {}
        if spec.adapters:
            pairs = [(self._read[a.alias], a.alpha) for a in spec.adapters]
            self.properties["adapters"] = ov_genai.AdapterConfig(pairs, MODES[spec.adapter_mode])

    def options_for(self, alphas: Mapping[str, float]) -> dict[str, Any]:
        """Return the options of a call with these adapters, and no others."""
        if not self._read or not self._dynamic:
            return {}
        pairs = [(adapter, alphas.get(alias, 0.0)) for alias, adapter in self._read.items()]
        self._reversed = not self._reversed
        return {"adapters": ov_genai.AdapterConfig(pairs[::-1] if self._reversed else pairs)}


KINDS: dict[Task, Any] = {
    "inpaint": ov_genai.InpaintingPipeline,
    "edit": ov_genai.Image2ImagePipeline,
    "generate": ov_genai.Text2ImagePipeline,
}
LATENT_PIXELS = 8  # pixels of a latent's side, in every architecture of the library


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
            multiple=LATENT_PIXELS,
            steps=config.num_inference_steps,
            guidance_scale=config.guidance_scale if spec.guidance is None else spec.guidance,
            adapters=tuple(adapter.alias for adapter in spec.adapters),
            max_sequence_length=max(0, config.max_sequence_length) if _has_length(directory) else 0,
        )

    def call(self, invocation: Invocation) -> Iterator[Any]:
        if invocation.method != GENERATE:
            raise InvalidArgument(f"an image engine has no method {invocation.method!r}")
        arguments = invocation.arguments(GenerateArguments)
        task: Task = (
            "generate" if arguments.image is None else "edit" if arguments.mask is None else "inpaint"
        )
        pipeline = self._pipelines.get(task)
        if pipeline is None:
            raise InvalidArgument(f"this model has no pipeline to {task} images")
        adapters, cut = self._adapters.options_for(arguments.adapters), self._prompts.cut(arguments)
        drawing = Drawing(pipeline, arguments, adapters, invocation, cut)
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
    pipelines: dict[Task, Any] = {}
    source, failure = None, None
    for task in tasks:
        try:
            if source is None:
                source = pipelines[task] = _pipeline(KINDS[task], spec, adapters)
                continue
        except RuntimeError as error:
            failure = error
            continue
        with suppress(RuntimeError):  # an architecture that has no such pipeline
            pipelines[task] = KINDS[task](source)
            source = pipelines[task]
    if not pipelines:
        assert failure is not None, "a pipeline that is not there has failed"
        raise LoadError(f"cannot be loaded: {sentence(failure)}", file=str(directory), field="models_path")
    return pipelines


def _pipeline(kind: Any, spec: ImageSpec, adapters: Adapters) -> Any:
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
