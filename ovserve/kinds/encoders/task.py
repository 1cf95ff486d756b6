"""The task of an encoder, by the files of its directory.

The rules are those of OVMS's task detection, as far as they concern embeddings and rerank. A model that
generates text may be a reranker or an embedder too; then only `--task` says so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ovserve.kinds.encoders.files import MODEL, ONNX

EMBEDDINGS, RERANK = "embeddings", "rerank"
SCORES = ("LogitScore", "CrossEncoder")
EMBEDDERS = ("BertModel", "JinaBertModel", "MPNetModel", "RobertaModel", "XLMRobertaModel")


def encoder_task(directory: Path) -> str:
    """Return the task of an encoder, "" for a directory that does not look like one."""
    if not any((directory / name).is_file() for name in (MODEL, *ONNX)):
        return ""
    modules = [str(m.get("type", "")) for m in _read(directory / "modules.json", []) if isinstance(m, dict)]
    config = _read(directory / "config.json", {})
    kinds = [kind for kind in config.get("architectures") or () if isinstance(kind, str)]
    scores = any(word in module for module in modules for word in SCORES)
    if scores or any(kind.endswith("ForSequenceClassification") for kind in kinds):
        return RERANK
    pools = any("Pooling" in module for module in modules)
    return EMBEDDINGS if pools or set(kinds) & set(EMBEDDERS) else ""


def _read(file: Path, empty: Any) -> Any:
    """Return a JSON value of the type of `empty`, which stands for any other; loading reports a bad file."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return empty
    return found if isinstance(found, type(empty)) else empty
