"""gptoss: thinking is the analysis channel; tools/gptoss.py reads the whole answer.

Source: parsers.md section 3.6.
"""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect


class GptOssReasoning(ReasoningDialect):
    name = "gptoss"
    framed = True
    starts = ("<|channel|>analysis<|message|>",)
    ends = ("<|end|>",)
    after = "<|start|>assistant"
    answer = "<|channel|>final<|message|>"
    foreign = ("<|start|>", "<|channel|>", "<|return|>", "<|call|>")

    def matches(self, template: str) -> bool:
        return "<|channel|>" in template
