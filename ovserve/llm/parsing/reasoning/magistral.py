"""magistral: `[THINK]...[/THINK]`. Mistral's Magistral and Ministral reasoning models.

Source: parsers.md section 10.
"""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect


class MagistralReasoning(ReasoningDialect):
    name = "magistral"
    starts = ("[THINK]",)
    ends = ("[/THINK]",)
    erase = ("</s>",)

    def matches(self, template: str) -> bool:
        return "[THINK]" in template
