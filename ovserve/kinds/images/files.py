"""Facts about an image generation pipeline from its files, without loading it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ovserve.engine.model.files import lfs_pointer
from ovserve.errors import LoadError

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
    try:
        value = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise LoadError(
            f"{INDEX} is missing: not a pipeline in diffusers' layout", file=str(directory)
        ) from None
    except (OSError, ValueError) as error:
        raise LoadError(f"not JSON: {error}", file=str(file)) from error
    if not isinstance(value, dict):
        raise LoadError("expected a JSON object", file=str(file))
    return value


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
