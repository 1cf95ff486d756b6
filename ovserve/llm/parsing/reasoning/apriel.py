"""apriel: `<thinking>...</thinking>`, or steps under a phrase, up to `[BEGIN FINAL RESPONSE]`. Apriel 1.5.

Source: the model's chat template; parsers.md section 10 has its calls.
"""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect


class AprielReasoning(ReasoningDialect):
    name = "apriel"
    starts = ("<thinking>", "<think>", "Here are my reasoning steps:")
    ends = ("</thinking>", "</think>", "[BEGIN FINAL RESPONSE]")
    erase = ("[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]", "<|end|>")

    def matches(self, template: str) -> bool:
        return "<thinking>" in template and "<tool_calls>" in template
