"""LoRA adapters of an image pipeline: read once, set by each call.

The library (2026.4.1) sets adapters wrongly in two cases, and then draws with those of an earlier call. A
list of fewer adapters than the pipeline was made with may leave the others on, so every call names all, those
that are off with alpha 0. And of two lists of the same adapters only the last alpha is compared, so the order
alternates: a list in another order is set as a whole. Pipelines that share weights share this state.
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
        self._reversed = False
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
        pairs = [(adapter, alphas.get(alias, 0.0)) for alias, adapter in self._read.items()]
        self._reversed = not self._reversed
        return {"adapters": ov_genai.AdapterConfig(pairs[::-1] if self._reversed else pairs)}
