"""plugin_config of LLMCalculatorOptions: JSON text to the properties OpenVINO gets.
`ovserve tune` puts other values into such text.

Old names are rewritten as OVMS does, so its files keep working; all else goes through as it is, and OpenVINO
says at load what it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ovserve.graph import Node

FIELD = "plugin_config"
_SCALARS = (str, bool, int, float)
_STREAMS = ("CPU_THROUGHPUT_STREAMS", "GPU_THROUGHPUT_STREAMS")


def plugin_config(node: Node, text: str) -> dict[str, Any]:
    """`prompt_lookup`, if there, is a boolean. Raises LoadError."""
    if not text.strip():
        return {}
    try:
        config = json.loads(text)
    except ValueError as exc:
        raise node.error(f"not JSON: {exc}; got {text!r}", FIELD, text) from None
    if not isinstance(config, dict):
        raise node.error(f"expected a JSON object, got {text!r}", FIELD, text)
    for key, value in config.items():
        if key == "DEVICE_PROPERTIES":
            if not _is_device_properties(value):
                raise node.error(f"{key}: expected devices with properties, got {value!r}", FIELD, text)
        elif not isinstance(value, _SCALARS):
            raise node.error(f"{key}: expected a string, number or boolean, got {value!r}", FIELD, text)
    lookup = config.get("prompt_lookup", False)
    if not isinstance(lookup, bool):
        raise node.error(f"prompt_lookup: expected true or false, got {lookup!r}", FIELD, text)
    renamed: dict[str, Any] = {}
    for key, value in config.items():
        new, value = _rewritten(key, value)
        if new in renamed or (new != key and new in config):
            raise node.error(f"{key}: means {new}, which is given already", FIELD, text)
        renamed[new] = value
    return renamed


def without_lookup(node: Node, text: str) -> dict[str, Any]:
    """Return the properties of a model that does not generate text. Raises LoadError."""
    properties = plugin_config(node, text)
    if "prompt_lookup" in properties:
        raise node.error("prompt_lookup: only text generation has it", FIELD)
    return properties


def with_properties(text: str, properties: Mapping[str, Any]) -> str:
    """A plugin_config that is right, with these values; None takes a property out. The rest stays as written,
    but for old names of what is set here."""
    config: dict[str, Any] = json.loads(text) if text.strip() else {}
    for old in [key for key, value in config.items() if _rewritten(key, value)[0] in properties]:
        if old not in properties:
            del config[old]
    config |= properties
    return json.dumps({key: value for key, value in config.items() if value is not None})


def _is_device_properties(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(inner, dict) and all(isinstance(one, _SCALARS) for one in inner.values())
        for inner in value.values()
    )


def _rewritten(key: str, value: Any) -> tuple[str, Any]:
    if key in _STREAMS and str(value).endswith("_AUTO"):
        return "PERFORMANCE_HINT", "THROUGHPUT"
    if key in _STREAMS or key == "NUM_STREAMS":
        return "NUM_STREAMS", str(value)
    if key == "CPU_THREADS_NUM":
        return "INFERENCE_NUM_THREADS", value
    if key == "CACHE_DIR":
        return key, str(value).replace("\\", "/")
    return key, value
