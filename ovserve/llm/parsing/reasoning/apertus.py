"""apertus: `<|inner_prefix|>...<|inner_suffix|>`. Swiss AI Apertus.

Source: the model's chat template; parsers.md section 10 has its calls.
"""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect


class ApertusReasoning(ReasoningDialect):
    name = "apertus"
    starts = ("<|inner_prefix|>",)
    ends = ("<|inner_suffix|>",)
    erase = ("<|assistant_end|>",)

    def matches(self, template: str) -> bool:
        return "<|inner_prefix|>" in template
