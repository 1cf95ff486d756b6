"""The files of a speech recognition model on disk: read by the server at load, and by the engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ovserve.errors import LoadError

CONFIG = "config.json"
ENCODER, DECODER = "openvino_encoder_model.xml", "openvino_decoder_model.xml"
TOKENIZER, DETOKENIZER = "openvino_tokenizer.xml", "openvino_detokenizer.xml"
NETWORKS = (ENCODER, DECODER, TOKENIZER, DETOKENIZER)
WHISPER = "WhisperForConditionalGeneration"


@dataclass(frozen=True)
class SpeechFiles:
    """The facts of config.json and generation_config.json. Languages are codes such as "en"; none: not
    listed."""

    architecture: str
    multilingual: bool
    languages: tuple[str, ...]
    alignment_heads: bool  # without them the model has no word timestamps

    @property
    def is_whisper(self) -> bool:
        return self.architecture == WHISPER


def read_speech_files(directory: Path) -> SpeechFiles:
    """Raises LoadError naming the file."""
    config, generation = _object(directory / CONFIG), _object(directory / "generation_config.json")
    architectures = config.get("architectures")
    languages = generation.get("lang_to_id")
    return SpeechFiles(
        str(architectures[0]) if isinstance(architectures, Sequence) and architectures else "",
        bool(generation.get("is_multilingual", True)),
        tuple(sorted(code.strip("<|>") for code in languages)) if isinstance(languages, dict) else (),
        bool(generation.get("alignment_heads")),
    )


def missing_speech_files(directory: Path) -> list[str]:
    """Return what is wrong with a directory's files, a sentence each."""
    required = [CONFIG, *(file for name in NETWORKS for file in (name, name.replace(".xml", ".bin")))]
    names = [name for name in required if not (directory / name).is_file()]
    return [f"{directory} has no {', '.join(names)}"] if names else []


def _object(file: Path) -> dict[str, Any]:
    """Return a JSON object; an empty one for a file that does not exist."""
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"cannot be read: {error}", file=str(file)) from error
    if not isinstance(content, dict):
        raise LoadError("is not a JSON object", file=str(file))
    return content
