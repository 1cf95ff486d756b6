"""Import openvino without its converter of models.

- What the library does: `import openvino` imports `openvino.tools.ovc` for the name `convert_model`. With it
  come the library's telemetry and Python's clients of HTTP and mail, which take 0.08 s of 0.19 s.
- The way around: the converter seems to be missing, which the library allows, until openvino is imported.
  `openvino.convert_model` then imports it, for calculators in Python that convert models.
- Seen: `python -X importtime -c "import openvino"`, tests/engine/test_converter.py.
  Versions: OpenVINO 2026.4.1.
- It can go when the library imports its converter where it is used.
"""

from __future__ import annotations

import sys
from importlib import import_module

CONVERTER = "openvino.tools.ovc"
NAME = "convert_model"


def import_openvino() -> None:
    """Raises ImportError. Does nothing if it is imported already."""
    if "openvino" in sys.modules:
        return
    sys.modules[CONVERTER] = None  # type: ignore[assignment]  # so that its import is an ImportError
    try:
        openvino = import_module("openvino")
    finally:
        del sys.modules[CONVERTER]

    def get(name: str) -> object:
        if name != NAME:
            raise AttributeError(f"module 'openvino' has no attribute {name!r}")
        converter: object = getattr(import_module(CONVERTER), NAME)
        setattr(openvino, NAME, converter)
        return converter

    if not hasattr(openvino, NAME) and not hasattr(openvino, "__getattr__"):
        openvino.__getattr__ = get  # type: ignore[method-assign]


import_openvino()
