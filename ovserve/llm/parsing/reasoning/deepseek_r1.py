"""deepseek_r1: the answer begins inside the thinking, always. DeepSeek R1 and its distills, MiniMax M2.

Source: parsers.md section 10. A `<think>` that the model repeats is dropped. Hybrid models, whose prompt
decides, are qwen3.
"""

# ruff: noqa: RUF001 - these bars are the model's own characters
from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect


class DeepseekR1Reasoning(ReasoningDialect):
    name = "deepseek_r1"
    always = True
    erase = ("<｜end▁of▁sentence｜>",)

    def matches(self, template: str) -> bool:
        if "</think>" not in template:
            return False
        # V3.1 and later are hybrid: their prompt opens the thinking, or closes it at once.
        r1 = "<｜tool▁calls▁begin｜>" in template and "```json" in template
        return r1 or "<minimax:tool_call>" in template
