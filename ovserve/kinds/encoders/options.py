"""The options that nodes of embeddings and rerankers share: a directory, a device, its properties."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple, Protocol

from ovserve.errors import LoadError
from ovserve.graph import Node
from ovserve.kinds.encoders.files import EncoderFiles, missing_files, read_encoder_files
from ovserve.kinds.plugin_config import plugin_config


class EncoderMessage(Protocol):
    """Options that EmbeddingsCalculatorOVOptions and RerankCalculatorOVOptions have in common."""

    models_path: str
    target_device: str
    plugin_config: str


class EncoderPlace(NamedTuple):
    path: str  # absolute
    device: str
    properties: str  # JSON
    files: EncoderFiles


def encoder_place(node: Node, options: EncoderMessage) -> EncoderPlace:
    """Raises LoadError naming the field."""
    if not options.models_path:
        raise node.error("required, but missing", "models_path")
    properties = plugin_config(node, options.plugin_config)
    if "prompt_lookup" in properties:
        raise node.error("prompt_lookup: only text generation has it", "plugin_config")
    path = (node.config.base / options.models_path).resolve()
    if not path.exists():
        name = path.name if path.parent.name == "models" else "SOURCE"
        hint = f"`ovserve pull {name} --task embeddings` may fetch it"
        raise node.error(f"{path} does not exist; {hint}", "models_path", options.models_path)
    try:
        files = read_encoder_files(path)
    except LoadError as error:
        raise node.error(f"{error.file}: {error.reason}", "models_path", options.models_path) from error
    device = options.target_device or "CPU"
    return EncoderPlace(str(path), device, json.dumps(properties, sort_keys=True), files)


def check_files(node: Node, path: str) -> None:
    """Raises LoadError for a directory that lacks a file."""
    if missing := missing_files(Path(path)):
        raise node.error("; ".join(missing), "models_path")
