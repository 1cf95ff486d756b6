"""glm45: `<think>...</think>`. GLM 4.5, 4.6, 4.7.

Source: parsers.md sections 4 and 10.
"""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect
from ovserve.llm.parsing.reasoning.think import has_think


class Glm45Reasoning(ReasoningDialect):
    name = "glm45"
    erase = ("<|user|>", "<|observation|>", "<|endoftext|>")

    def matches(self, template: str) -> bool:
        return "<arg_key>" in template and (has_think(template) or "</think>" in template)
