"""The properties of a device: those of `plugin_config`, and a bound on what the runtime keeps for each shape.

OpenVINO's CPU device keeps the kernels that it made for a shape of input, 5,000 for each kind of operator. A
model whose inputs differ in length would grow for hours: Kokoro by 13 to 20 MB for each new sentence, an
encoder by 0.6 to 1.5 MB for each new length (2026-11-26, AMD EPYC). docs/performance.md has what the bound
costs.
"""

from __future__ import annotations

import json
from typing import Any

from ovserve.engine.host.cpu import processor

OWN_PRECISION = ("INFERENCE_PRECISION_HINT", "EXECUTION_MODE_HINT")
CACHE = "CPU_RUNTIME_CACHE_CAPACITY"
RUNTIME_CACHE_KERNELS = (
    64  # kernels of each kind of operator; a compiled model uses each of them once or in every layer
)
PER_DEVICE = "DEVICE_PROPERTIES"
DIVIDED = ("AUTO", "HETERO", "MULTI")  # devices that hand a model to others


def device_properties(text: str, *devices: str) -> dict[str, Any]:
    """Return a JSON object's properties with the bound, unless they have one.

    No bound is added for several devices, which would all get it. Raises ValueError for a text that is not
    JSON.
    """
    properties: dict[str, Any] = json.loads(text or "{}")
    own = properties.get(PER_DEVICE, {})
    if CACHE in properties or CACHE in own.get("CPU", {}) or len(devices) != 1:
        return properties
    (device,) = devices
    if device == "CPU":
        properties[CACHE] = RUNTIME_CACHE_KERNELS
    elif _may_use_cpu(device):
        properties[PER_DEVICE] = {**own, "CPU": {**own.get("CPU", {}), CACHE: RUNTIME_CACHE_KERNELS}}
    return properties


def properties_of(text: str, device: str) -> dict[str, Any]:
    """Return `device_properties` of an encoder or a voice, with f32 on a CPU that is slower in bf16."""
    properties = device_properties(text, device)
    if device == "CPU" and not set(OWN_PRECISION) & set(properties) and processor().bf16_is_slower:
        properties["INFERENCE_PRECISION_HINT"] = "f32"
    return properties


def _may_use_cpu(device: str) -> bool:
    """`AUTO` chooses among all devices, `HETERO:GPU,CPU` has a list."""
    kind, _, listed = device.partition(":")
    names = [name.partition("(")[0].strip() for name in listed.split(",")]
    return kind in DIVIDED and (not listed or "CPU" in names)
