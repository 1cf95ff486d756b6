"""The real engine, on OpenVINO GenAI; imported by `worker.py` in the engine process. Only files of this
package import openvino and openvino_genai.

`continuous.py` is the engine, `grammar.py` compiles grammars for it and for the process that proves them,
`options.py` makes the library's configuration of an EngineSpec.
"""

from ovserve.engine.genai.continuous import GenAIEngine

__all__ = ["GenAIEngine"]
