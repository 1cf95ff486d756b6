"""ernie45: `<think>...</think>`, and the answer in `<response>`. Baidu ERNIE 4.5 thinking models.

Source: parsers.md section 10.
"""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect


class Ernie45Reasoning(ReasoningDialect):
    name = "ernie45"
    erase = ("<response>", "</response>", "</s>")

    def matches(self, template: str) -> bool:
        return "<response>" in template and "</think>" in template
