"""qwen3: `<think>...</think>`. Qwen3, QwQ, and everybody else who writes these tags.

Source: parsers.md section 4. Templates may open the thinking in the prompt; then the answer begins inside.
"""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect
from ovserve.llm.parsing.reasoning.think import has_think


class Qwen3Reasoning(ReasoningDialect):
    name = "qwen3"

    def matches(self, template: str) -> bool:
        return has_think(template)
