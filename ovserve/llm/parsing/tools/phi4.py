"""phi4: `functools[{...}]`, vLLM's template for Phi-4-mini, and the stock template's `<|tool_call|>`.

`functools` is also a Python module: only a list makes it a call. The stock template shows an object or a
list.

Source: read 2026-11-22, https://github.com/openvinotoolkit/model_server/blob/7e4df0c7ae34/src/llm/io_processing/phi4/tool_parser.cpp
"""

from __future__ import annotations

from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.tools.tagged import TaggedJson


class Phi4(TaggedJson):
    name = "phi4"
    tags = {"functools": (), "<|tool_call|>": ("<|/tool_call|>",)}
    plain = ("functools",)
    forms = {"functools": "["}
    erase = ("<|end|>", "<|endoftext|>")
    guide = Guide(
        '{"name": "NAME", "arguments": ', "}", separator=", ", block=("functools[", "]"), trigger="functools["
    )

    def matches(self, template: str) -> bool:
        return "functools" in template or "<|/tool_call|>" in template or "<|/tool|>" in template
