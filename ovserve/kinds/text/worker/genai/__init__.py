"""The real engines, on OpenVINO GenAI. Only files of this package import openvino and openvino_genai.

`continuous.py` is the engine of many requests at a time, `stateful.py` that of one at a time. They share
`text.py` (tokens and text), `options.py` (the library's configuration of a TextSpec and of a request),
`facts.py`, and `grammar.py`. The last compiles grammars for them and for the process that proves them.
`continuous.py` admits what is sure to fit, and `quirks.py` has the workarounds.
"""

from ovserve.kinds.text.worker.genai import converter  # noqa: F401  before others import openvino

# isort: split
from ovserve.kinds.text.worker.genai.continuous import GenAIEngine
from ovserve.kinds.text.worker.genai.stateful import StatefulEngine

__all__ = ["GenAIEngine", "StatefulEngine"]
