"""LoRA adapters of an image pipeline: read once, chosen by each call.

A pipeline that derives from another starts with no adapter at all, whatever the first was made with. So every
call names its adapters, and those it does not name are off.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import openvino_genai as ov_genai

from ovserve.engine.protocol.images import ImageSpec
from ovserve.errors import LoadError

MODES = {
    "DYNAMIC": ov_genai.AdapterConfig.Mode.MODE_DYNAMIC,
    "STATIC": ov_genai.AdapterConfig.Mode.MODE_STATIC,
    "FUSE": ov_genai.AdapterConfig.Mode.MODE_FUSE,
}


class Adapters:
    def __init__(self, spec: ImageSpec) -> None:
        """Raises LoadError for a file that the library cannot read."""
        self._read: dict[str, Any] = {}
        self._dynamic = spec.adapter_mode == "DYNAMIC"
        for adapter in spec.adapters:
            try:
                self._read[adapter.alias] = ov_genai.Adapter(adapter.path)
            except RuntimeError as error:
                text = str(error).strip().splitlines()[-1]
                raise LoadError(f"{adapter.path} cannot be read: {text}", field="lora_adapters") from error
        self.properties: dict[str, Any] = {}
        if spec.adapters:
            pairs = [(self._read[a.alias], a.alpha) for a in spec.adapters]
            self.properties["adapters"] = ov_genai.AdapterConfig(pairs, MODES[spec.adapter_mode])

    def chosen(self, alphas: Mapping[str, float]) -> dict[str, Any]:
        """Return the options of a call with these adapters, and no others."""
        if not self._read or not self._dynamic:
            return {}
        return {"adapters": ov_genai.AdapterConfig([(self._read[n], a) for n, a in alphas.items()])}
