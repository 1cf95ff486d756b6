"""Try devices and their properties on a model of one node: `python -m ovserve.kinds.text.worker.genai.probe`.

Run by `serving/check.py`, because neither the server nor a command imports OpenVINO. It reads a JSON
array of [device, properties] from stdin and writes one of [option, reason], empty where nothing is wrong.
What the library says here is what it says when an engine starts, and no weights are read.
"""

from __future__ import annotations

import json
import sys
from difflib import get_close_matches
from typing import Any

import openvino
from openvino import opset13

from ovserve.kinds.text.worker.genai.options import sentence

# Read by the pipeline and not by the device; CACHE_DIR would be written to.
OF_THE_PIPELINE = ("ATTENTION_BACKEND", "CACHE_DIR", "GENERATE_HINT", "PREFILL_HINT")
UNTRIED = ("NPU",)  # its pipeline rewrites the properties


def fault(core: openvino.Core, device: str, properties: dict[str, Any]) -> tuple[str, str]:
    number = opset13.parameter([1], openvino.Type.f32)
    model = openvino.Model([opset13.relu(number)], [number])
    there = ", ".join(core.available_devices) or "none"
    try:
        core.compile_model(model, device)
    except RuntimeError as error:
        return "device", f"{device!r} cannot be used: {sentence(error)}; devices here: {there}"
    device_properties = {key: value for key, value in properties.items() if key not in OF_THE_PIPELINE}
    if device.startswith(UNTRIED) or not device_properties:
        return "", ""
    try:
        core.compile_model(model, device, device_properties)
    except (RuntimeError, TypeError, ValueError) as error:
        return "plugin_config", f"{sentence(error)}{_nearest(core, device, device_properties)}"
    return "", ""


def _nearest(core: openvino.Core, device: str, properties: dict[str, Any]) -> str:
    """Return a hint for each property that the device does not know and that is near one it knows."""
    supported = list(core.get_property(device, "SUPPORTED_PROPERTIES"))
    near = {key: get_close_matches(key, supported, n=1) for key in properties if key not in supported}
    return "".join(f"; {key}: did you mean {names[0]}?" for key, names in near.items() if names)


def main() -> None:
    core = openvino.Core()
    print(json.dumps([fault(core, *arguments) for arguments in json.load(sys.stdin)]))  # noqa: T201


if __name__ == "__main__":
    main()
