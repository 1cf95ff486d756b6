"""plugin_config of a graph's options or of a plain model: JSON to the properties OpenVINO gets.
`ovserve tune` puts other values into the text of a graph.

Old names are rewritten as OVMS does, so its files keep working; all else goes through as it is, and OpenVINO
says at load what it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ovserve.errors import LoadError
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
    try:
        properties = properties_of(config)
    except LoadError as error:
        raise node.error(str(error), FIELD, text) from None
    lookup = properties.get("prompt_lookup", False)
    if not isinstance(lookup, bool):
        raise node.error(f"prompt_lookup: expected true or false, got {lookup!r}", FIELD, text)
    return properties


def properties_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what OpenVINO gets. Raises LoadError that begins with the key."""
    properties: dict[str, Any] = {}
    for key, value in config.items():
        by_device = key == "DEVICE_PROPERTIES"
        if not (_is_device_properties(value) if by_device else isinstance(value, _SCALARS)):
            kind = "devices with properties" if by_device else "a string, number or boolean"
            raise LoadError(f"expected {kind}, got {value!r}", field=key)
        new, value = _rewritten(key, value)
        if new in properties or (new != key and new in config):
            raise LoadError(f"means {new}, which is given already", field=key)
        properties[new] = value
    return properties


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
