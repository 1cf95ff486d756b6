"""`python -m ovserve.kinds.encoders.worker.convert SOURCE DIRECTORY`: safetensors to OpenVINO IR.

SOURCE has config.json and model.safetensors. It is a process of its own, because the command never imports
OpenVINO.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import openvino as ov

from ovserve.engine.model.safetensors import Tensors
from ovserve.errors import LoadError
from ovserve.kinds.encoders.files import MODEL
from ovserve.kinds.encoders.worker.encoder import build


def convert(source: Path, directory: Path) -> None:
    """Weights stay float32: the device chooses its own precision at load. Raises LoadError."""
    config = json.loads((source / "config.json").read_text("utf-8"))
    model = build(Tensors(source / "model.safetensors"), config)
    ov.save_model(model, directory / MODEL, compress_to_fp16=False)


def main(arguments: list[str]) -> int:
    try:
        convert(Path(arguments[0]), Path(arguments[1]))
    except (LoadError, OSError, KeyError, ValueError) as error:
        print(f"{type(error).__name__}: {error}" if isinstance(error, KeyError) else error, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
