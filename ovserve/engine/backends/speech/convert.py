"""`python -m ovserve.engine.backends.speech.convert SOURCE DIRECTORY [fp16]`: a Whisper model to OpenVINO IR.

SOURCE has config.json, tokenizer.json and weights, as safetensors or in CTranslate2's form. Matrices of
the decoder get 8 bits, or 16 with `fp16`. It is a process of its own, because the command never imports
OpenVINO.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import openvino as ov

from ovserve.engine.backends.speech.whisper_config import CONFIG, model_files
from ovserve.engine.backends.speech.whisper_graph import build
from ovserve.engine.backends.speech.whisper_tokenizer import build_tokenizer
from ovserve.engine.backends.speech.whisper_weights import open_weights
from ovserve.engine.model.speech_files import DECODER, DETOKENIZER, ENCODER, TOKENIZER
from ovserve.errors import LoadError


def convert(source: Path, directory: Path, *, int8: bool) -> None:
    """Write the four graphs, and the JSON files that SOURCE lacks. Raises LoadError."""
    weights = open_weights(source)
    files = model_files(source, weights)
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content, indent=1) + "\n")
    config = files[CONFIG]
    tokenizers = build_tokenizer(source, int(config["vocab_size"]))
    for name, made in zip((TOKENIZER, DETOKENIZER), tokenizers, strict=True):
        ov.save_model(made, directory / name, compress_to_fp16=False)
    for name, made in zip((ENCODER, DECODER), build(weights, config, int8=int8), strict=True):
        ov.save_model(made, directory / name, compress_to_fp16=True)


def main(arguments: list[str]) -> int:
    try:
        convert(Path(arguments[0]), Path(arguments[1]), int8=arguments[2:] != ["fp16"])
    except (LoadError, OSError, KeyError, ValueError) as error:
        print(f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
