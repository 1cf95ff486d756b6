"""lfm2: `<think>...</think>` as special tokens. Liquid LFM2.5 thinking models.

Source: parsers.md section 4. The template hands old thinking back as `message.thinking`.
"""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect
from ovserve.llm.parsing.tools.lfm2 import Lfm2


class Lfm2Reasoning(ReasoningDialect):
    name = "lfm2"
    erase = ("<|im_end|>",)

    def matches(self, template: str) -> bool:
        return "message.thinking" in template and Lfm2().matches(template)
