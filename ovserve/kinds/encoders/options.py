"""The options that nodes of embeddings, rerankers and classifiers share, such as a directory and a device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from ovserve.errors import LoadError
from ovserve.graph import Node
from ovserve.kinds.encoders.files import EncoderFiles, missing_files, read_encoder_files
from ovserve.kinds.plugin_config import plugin_config

SPECIAL_TOKENS = 2  # around a text


class EncoderMessage(Protocol):
    """Options that the messages of all these nodes have in common."""

    models_path: str
    target_device: str
    plugin_config: str


class InputMessage(Protocol):
    """Options of a node whose inputs are single texts."""

    max_length: int

    def HasField(self, field_name: Literal["max_length"]) -> bool: ...


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


def input_length(node: Node, options: InputMessage, place: EncoderPlace) -> int | None:
    """Return the tokens of an input; None: what fits the model. Raises LoadError."""
    if not options.HasField("max_length"):
        return None
    most = place.files.max_length
    if not SPECIAL_TOKENS < options.max_length <= most:
        range_ = f"more than {SPECIAL_TOKENS} and at most the model's {most}"
        raise node.error(f"expected {range_}, got {options.max_length}", "max_length")
    return options.max_length


def check_files(node: Node, path: str) -> None:
    """Raises LoadError for a directory that lacks a file."""
    if missing := missing_files(Path(path)):
        raise node.error("; ".join(missing), "models_path")
