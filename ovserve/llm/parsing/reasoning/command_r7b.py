"""command_r7b: `<|START_THINKING|>...<|END_THINKING|>`, the answer in tags as well. Cohere Command R7B and A.

Source: parsers.md section 10.
"""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect


class CommandR7bReasoning(ReasoningDialect):
    name = "command_r7b"
    starts = ("<|START_THINKING|>",)
    ends = ("<|END_THINKING|>",)
    erase = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|END_OF_TURN_TOKEN|>")

    def matches(self, template: str) -> bool:
        return "<|START_THINKING|>" in template
