"""Spec, facts and messages of the engines that draw and edit images."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from ovserve.engine.model.files import json_object, lfs_pointer
from ovserve.engine.protocol.specs import Facts, Spec
from ovserve.errors import LoadError

GENERATE = "generate"  # the one method of their calls

# What a pipeline can do: an image of a text, of an image and a text, and of the masked part of an image.
Task = Literal["generate", "edit", "inpaint"]
Format = Literal["png", "jpeg", "webp"]
PNG: Format = "png"
AdapterMode = Literal["DYNAMIC", "STATIC", "FUSE"]


class ImageFacts(Facts, frozen=True, omit_defaults=True):
    """Facts of a loaded pipeline. Sizes are in pixels, and 0 where the model has none of its own."""

    pipeline: str = ""  # the class in model_index.json
    tasks: tuple[Task, ...] = ()
    width: int = 0
    height: int = 0
    multiple: int = 8  # width and height are multiples of it
    steps: int = 0
    guidance_scale: float = 0.0
    adapters: tuple[str, ...] = ()  # names of LoRA adapters
    max_sequence_length: int = 0  # tokens without the option of this name; 0: no text encoder has it


class ImageAdapter(msgspec.Struct, frozen=True):
    """A LoRA adapter in a .safetensors file at an absolute path."""

    alias: str
    path: str
    alpha: float = 1.0


class ImageSpec(Spec, frozen=True):
    """An image generation pipeline in a directory with model_index.json, in OpenVINO IR form."""

    kind: ClassVar[str] = "image"
    backend: ClassVar[str] = "ovserve.kinds.images.worker.pipelines:ImageBackend"
    facts_type: ClassVar[type[Facts]] = ImageFacts

    devices: tuple[str, ...] = ()  # of text encoder, denoiser and VAE; (): all on `device`
    shape: tuple[int, int] | None = None  # the one width and height; None: any
    guidance: float | None = None  # the one guidance scale of a fixed shape
    adapters: tuple[ImageAdapter, ...] = ()
    adapter_mode: AdapterMode = "DYNAMIC"

    @property
    def model_paths(self) -> tuple[str, ...]:
        return (self.model_path, *(adapter.path for adapter in self.adapters))


class Raster(msgspec.Struct, frozen=True):
    """The size of an image that is a blob of the call: 8 bits per channel, RGB, row by row."""

    width: int
    height: int


class GenerateArguments(msgspec.Struct, frozen=True):
    """The arguments of GENERATE: one image per seed. The blobs are the image to edit, and its mask."""

    prompt: str
    seeds: list[int]
    # By the names of the library's generation config, checked as far as they do not depend on the model.
    options: dict[str, str | int | float] = {}
    image: Raster | None = None
    mask: Raster | None = None  # of the image's size; white is repainted
    adapters: dict[str, float] = {}  # alpha by alias; others are off
    partial_images: int = 0  # of each image
    format: Format = PNG
    quality: int = 100  # of jpeg and webp


class ImageItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An item of GENERATE. Its blob is the base64 form of a file."""

    kind: Literal["partial", "image"]
    index: int  # of the image
    steps: int = 0
    partial: int = 0  # number of the partial image, from 0
    width: int = 0
    height: int = 0
    seconds: float = 0.0  # that the image took
    truncated: tuple[str, ...] = ()  # prompts of the call that a text encoder has cut


# Facts about an image generation pipeline from its files, without loading it.


INDEX = "model_index.json"
MODEL = "openvino_model.xml"
# Parts of pipelines that are networks; which of them a model has is in its index.
NETWORKS = (
    "text_encoder", "text_encoder_2", "text_encoder_3", "transformer", "unet", "vae_decoder", "vae_encoder",
)  # fmt: skip
TEXT_ENCODERS = NETWORKS[:3]
REQUIRED = (("unet", "transformer"), ("vae_decoder",))  # one of each


def pipeline_class(directory: Path) -> str:
    """Return the class of the pipeline, such as StableDiffusionPipeline. Raises LoadError."""
    return str(read_index(directory).get("_class_name", ""))


def read_index(directory: Path) -> dict[str, Any]:
    """Raises LoadError for a directory without the index, or one that is not a JSON object."""
    file = directory / INDEX
    if not directory.is_dir():
        raise LoadError("expected a directory with an image generation pipeline", file=str(directory))
    if not file.exists():
        raise LoadError(f"{INDEX} is missing: not a pipeline in diffusers' layout", file=str(directory))
    return json_object(file)


def text_encoders(directory: Path) -> dict[str, str]:
    """Return the class of each text encoder by its directory, such as CLIPTextModel. Raises LoadError."""
    index = read_index(directory)
    encoders = {}
    for name in TEXT_ENCODERS:
        match index.get(name):
            case [_, str(kind)]:
                encoders[name] = kind
    return encoders


def missing_files(directory: Path) -> list[str]:
    """Return what a pipeline in OpenVINO IR form lacks, one sentence each."""
    index = read_index(directory)
    faults = []
    for names in REQUIRED:
        if not any((directory / name).is_dir() for name in names):
            faults.append(f"{directory} has no {' or '.join(names)}")
    for name in NETWORKS:
        part = directory / name
        if not part.is_dir():
            if index.get(name) not in (None, [None, None]) and not name.startswith("vae_"):
                faults.append(f"{directory} has no {name}, which {INDEX} names")
            continue
        for file in (part / MODEL, (part / MODEL).with_suffix(".bin")):
            if not file.is_file():
                faults.append(f"{part} has no {file.name}")
            elif pointer := lfs_pointer(str(file)):
                faults.append(f"{pointer} is a Git LFS pointer; `git lfs pull` fetches it")
    return faults
