"""Facts about a LoRA adapter from its files: where the weights are, their scaling, the layers they change.

Source: https://huggingface.co/docs/peft/developer_guides/checkpoint, read 2026-11-22
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ovserve.engine.model.files import LANGUAGE_MODELS, json_object, safetensors_header
from ovserve.errors import LoadError

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_LOW_BITS = re.compile(r'element_type="(?:[ui][2348]|nf4|f4e2m1|f8e\w+)"')
_PREFIX, _SUFFIX = "base_model.model.", re.compile(r"\.lora_[AB](\.default)?\.weight$")


def adapter_file(path: Path) -> Path:
    """Return the file of weights: the path itself, or PEFT's file in a directory. Raises LoadError."""
    file = path / WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise LoadError(f"{file} does not exist")
    return file


class _Config(msgspec.Struct):
    """The scale in PEFT's configuration, with PEFT's defaults."""

    r: Annotated[int, msgspec.Meta(ge=1)] = 8
    lora_alpha: float = 8
    use_rslora: bool = False
    rank_pattern: dict[str, Any] | None = None
    alpha_pattern: dict[str, Any] | None = None


def scaling(file: Path) -> float:
    """Return the factor of the product of its matrices, from the configuration next to it; 1.0 without one.

    Raises LoadError, also for layers with scales of their own: the library takes one for all.
    """
    path = file.parent / CONFIG
    if not path.exists():
        return 1.0
    try:
        config = msgspec.convert(json_object(path), _Config)
        scale = config.lora_alpha / (config.r**0.5 if config.use_rslora else config.r)
        if not math.isfinite(scale):
            raise ValueError(f"lora_alpha: expected a number, got {config.lora_alpha}")
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise LoadError(f"not a configuration of LoRA: {error}", file=str(path)) from error
    if config.rank_pattern or config.alpha_pattern:
        field = "rank_pattern" if config.rank_pattern else "alpha_pattern"
        raise LoadError(f"{field}: layers with scales of their own are not supported", file=str(path))
    return scale


def unusable(file: str, model: str) -> str:
    """Return why a model cannot have all that the adapter changes; "" if it can. Raises LoadError.

    The library applies the rest without a word, and answers with another model than was trained.
    """
    tensors, _ = safetensors_header(Path(file))
    if not Path(model).is_dir():
        return "adapters need a model in OpenVINO's form that optimum-cli exported, not a .gguf file"
    layers = _networks(model)
    targets = sorted({_SUFFIX.sub("", name.removeprefix(_PREFIX)) for name in tensors})
    missing = [name for name in targets if f".{name}/" not in layers]
    merged = [name for name in missing if _merged(name).search(layers)]
    if merged:
        return (
            f"query, key and value of the model are merged, and the adapter changes {merged[0]}; repeat its "
            "`ovserve pull` with --merge_qkv false"
        )
    if len(missing) == len(targets):
        return (
            f"no layer of the model has a name of the adapter, such as {(targets or ['none'])[0]!r}; "
            "optimum-cli exports models with names, and models converted from .gguf have none"
        )
    if odd := [name for name, it in tensors.items() if not _SUFFIX.search(name) or len(it.shape) != 2]:
        return f"the adapter has {odd[0]!r}, and the library applies only the matrices A and B of layers"
    if missing:
        return (
            f"the model lacks {len(missing)} of {len(targets)} layers of the adapter, such as {missing[0]!r}"
        )
    return ""


def compressed(model: str) -> bool:
    """Return whether a model has weights of 8 bits or less, into which the library fuses no adapter."""
    return _LOW_BITS.search(_networks(model)) is not None


def _merged(name: str) -> re.Pattern[str]:
    """Return what the name of a merged layer looks like, see `kinds/text/worker/genai/convert.py`."""
    return re.compile(rf"\.{re.escape(name.rpartition('.')[0])}\.[qkv]{{2,3}}_proj/")


def _networks(model: str) -> str:
    files = [Path(model) / name for name in LANGUAGE_MODELS if (Path(model) / name).is_file()]
    return "".join(file.read_text("utf-8", "replace") for file in files)
