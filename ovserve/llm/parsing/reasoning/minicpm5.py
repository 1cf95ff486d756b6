"""minicpm5: `<think>...</think>`; the start may be missing. MiniCPM5.

Source: parsers.md section 4.
"""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect


class MiniCpm5Reasoning(ReasoningDialect):
    name = "minicpm5"
    start_optional = True
    erase = ("<s>", "</s>", "<|im_end|>")

    def matches(self, template: str) -> bool:
        return '<param name="' in template
