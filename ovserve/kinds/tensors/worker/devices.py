"""Prints OpenVINO's version and devices as JSON, for `ovserve doctor`.

It is a process of its own, because plugins of devices may end it.
"""

from __future__ import annotations

import json

import openvino


def devices() -> dict[str, str]:
    """Return for each device its name, and the number formats that it computes in.

    A device that fails when it is asked has the error instead.
    """
    core, descriptions = openvino.Core(), {}
    for device in core.available_devices:
        try:
            formats = core.get_property(device, "OPTIMIZATION_CAPABILITIES")
            formats_text = ", ".join(sorted(name for name in formats if name[-1:].isdigit()))
            descriptions[device] = f"{core.get_property(device, 'FULL_DEVICE_NAME')}; {formats_text}"
        except RuntimeError as error:
            descriptions[device] = str(error).strip().splitlines()[-1]
    return descriptions


if __name__ == "__main__":
    print(json.dumps({"version": openvino.get_version(), "devices": devices()}))  # noqa: T201
