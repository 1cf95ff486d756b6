"""Facts about a LoRA adapter from its files: where the weights are, their scaling, the layers they change.

Source: https://huggingface.co/docs/peft/developer_guides/checkpoint, read 2026-11-22
"""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

from ovserve.engine.model.files import LANGUAGE_MODELS, json_object
from ovserve.errors import LoadError

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
MOST_HEAD = 100 << 20  # bytes, the format's own limit
_LOW_BITS = re.compile(r'element_type="(?:[ui][2348]|nf4|f4e2m1|f8e\w+)"')
_PREFIX, _SUFFIX = "base_model.model.", re.compile(r"\.lora_[AB](\.default)?\.weight$")


def adapter_file(path: Path) -> Path:
    """Return the file of weights: the path itself, or PEFT's file in a directory. Raises LoadError."""
    file = path / WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise LoadError(f"{file} does not exist")
    return file


def scaling(file: Path) -> float:
    """Return the factor of the product of its matrices, from the configuration next to it; 1.0 without one.

    Raises LoadError.
    """
    config = json_object(file.parent / CONFIG)
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1 or not isinstance(alpha, int | float):
        return 1.0
    return float(alpha / (rank**0.5 if config.get("use_rslora") else rank))


def unusable(file: str, model: str) -> str:
    """Return why the adapter changes nothing in a model; "" if it does."""
    targets = sorted({_SUFFIX.sub("", name.removeprefix(_PREFIX)) for name in _head(Path(file))})
    if not Path(model).is_dir():
        return "adapters need a model in OpenVINO's form that optimum-cli exported, not a .gguf file"
    layers = _networks(model)
    merged = [name for name in targets if f".{name}/" not in layers and _merged(name).search(layers)]
    if merged:
        return (
            f"query, key and value of the model are merged, and the adapter changes {merged[0]}; repeat its "
            "`ovserve pull` with --merge_qkv false"
        )
    if any(f".{name}/" in layers for name in targets):
        return ""
    return (
        f"no layer of the model has a name of the adapter, such as {targets[0] if targets else 'none'!r}; "
        "optimum-cli exports models with names, and models converted from .gguf have none"
    )


def compressed(model: str) -> bool:
    """Return whether a model has weights of 8 bits or less, into which the library fuses no adapter."""
    return _LOW_BITS.search(_networks(model)) is not None


def _merged(name: str) -> re.Pattern[str]:
    """Return what the name of a merged layer looks like, see `kinds/text/worker/genai/convert.py`."""
    return re.compile(rf"\.{re.escape(name.rpartition('.')[0])}\.[qkv]{{2,3}}_proj/")


def _networks(model: str) -> str:
    files = [Path(model) / name for name in LANGUAGE_MODELS if (Path(model) / name).is_file()]
    return "".join(file.read_text("utf-8", "replace") for file in files)


def _head(file: Path) -> dict[str, Any]:
    """Return the tensors that a .safetensors file lists. Raises LoadError."""
    try:
        with file.open("rb") as opened:
            (size,) = struct.unpack("<Q", opened.read(8))
            if size > MOST_HEAD:
                raise ValueError("its head is too long")
            head = json.loads(opened.read(size))
    except (OSError, ValueError, struct.error) as error:
        raise LoadError(f"{file} is not a .safetensors file: {error}", field="lora_adapters") from error
    return {name: value for name, value in head.items() if name != "__metadata__"}
