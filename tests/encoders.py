"""Tiny encoders of each family, and the answers of transformers to the same weights (scripts/encoder_goldens.py)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

VECTORS = ROOT / "tests/vectors/encoders"
MINILM = ROOT / "models/minilm"
FETCH = "`ovserve pull minilm` fetches it"


def tiny(name: str, directory: Path, **config: Any) -> Path:
    """A tiny model in OpenVINO IR form, converted here. `config`: other values of config.json."""
    from ovserve.kinds.encoders.worker.convert import convert

    shutil.copytree(VECTORS / name, directory, dirs_exist_ok=True)
    if config:
        file = directory / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | config))
    convert(directory, directory)
    return directory


def answers(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((VECTORS / "tiny.json").read_text())[name]["answers"]
    return found


def graph(models_path: str, *options: str, tags: str = "", kind: str = "Embeddings") -> str:
    """A graph of embeddings, or of the kind Rerank; `tags` is "HTTP_" for the other pair."""
    fields = "\n".join([f'models_path: "{models_path}"', *options])
    return f"""
input_stream: "{tags}REQUEST_PAYLOAD:input"
output_stream: "{tags}RESPONSE_PAYLOAD:output"
node {{
  name: "{kind}Executor"
  calculator: "{kind}CalculatorOV"
  input_side_packet: "{kind.upper()}_NODE_RESOURCES:{kind.lower()}_servable"
  input_stream: "{tags}REQUEST_PAYLOAD:input"
  output_stream: "{tags}RESPONSE_PAYLOAD:output"
  node_options: {{
    [type.googleapis.com / mediapipe.{kind}CalculatorOVOptions]: {{ {fields} }}
  }}
}}
"""
