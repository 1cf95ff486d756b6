"""The options of S2tCalculator: a directory, a device, its properties, word timestamps."""

from __future__ import annotations

import json
from pathlib import Path

from ovserve.errors import LoadError
from ovserve.graph import Node
from ovserve.kinds.plugin_config import plugin_config
from ovserve.kinds.speech.files import missing_speech_files, read_speech_files
from ovserve.kinds.speech.spec import SpeechToTextSpec
from ovserve.protos.options_pb2 import S2tCalculatorOptions

STREAMS, MOST_STREAMS = "NUM_STREAMS", 64


def speech_spec(node: Node) -> SpeechToTextSpec:
    """Raises LoadError naming the field."""
    options = node.options(S2tCalculatorOptions)
    if options is None:
        raise node.error("required: node_options with mediapipe.S2tCalculatorOptions", "node_options")
    if not options.models_path:
        raise node.error("required, but missing", "models_path")
    properties = plugin_config(node, options.plugin_config)
    if "prompt_lookup" in properties:
        raise node.error("prompt_lookup: only text generation has it", "plugin_config")
    streams = str(properties.get(STREAMS, 1))
    if not (streams.isascii() and streams.isdigit() and 1 <= int(streams) <= MOST_STREAMS):
        raise node.error(f"{STREAMS}: expected 1 to {MOST_STREAMS}, got {streams}", "plugin_config")
    path = (node.config.base / options.models_path).resolve()
    if not path.exists():
        name = path.name if path.parent.name == "models" else "SOURCE"
        hint = f"`ovserve pull {name} --task speech2text` may fetch it"
        raise node.error(f"{path} does not exist; {hint}", "models_path", options.models_path)
    try:
        read_speech_files(path)
    except LoadError as error:
        raise node.error(f"{error.file}: {error.reason}", "models_path", options.models_path) from error
    return SpeechToTextSpec(
        str(path),
        options.target_device or "CPU",
        json.dumps(properties, sort_keys=True),
        word_timestamps=options.enable_word_timestamps,
    )


def check_speech_files(node: Node, spec: SpeechToTextSpec) -> None:
    """Raises LoadError for a directory that lacks a file, or what an option needs."""
    path = Path(spec.model_path)
    if missing := missing_speech_files(path):
        raise node.error("; ".join(missing), "models_path")
    files = read_speech_files(path)
    if spec.word_timestamps and not (files.is_whisper and files.alignment_heads):
        raise node.error(
            "the model has no word timestamps: its generation_config.json has no alignment_heads",
            "enable_word_timestamps",
        )
