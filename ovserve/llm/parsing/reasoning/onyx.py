"""onyx: thinking is what the model says to itself; tools/onyx.py reads the whole answer.

Source: parsers.md section 3.10.
"""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect


class OnyxReasoning(ReasoningDialect):
    name = "onyx"
    framed = True
    starts = ("to=self<|message|>",)
    ends = ("<|eom|>",)
    after = "<|start|>assistant"
    answer = " to=user<|message|>"
    foreign = ("<|start|>", "<|eot|>")

    def matches(self, template: str) -> bool:
        return all(token in template for token in ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"))
