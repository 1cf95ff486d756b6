"""granite: thinking and answer begin with phrases (3.2) or stand in tags (3.3). IBM Granite.

Source: parsers.md section 10; for 3.3 the model's chat template.
"""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect


class GraniteReasoning(ReasoningDialect):
    name = "granite"
    starts = ("Here is my thought process:", "Here's my thought process:", "<think>")
    ends = ("Here is my response:", "Here's my response:", "</think>")
    erase = ("<response>", "</response>", "<|end_of_text|>")

    def matches(self, template: str) -> bool:
        phrases = "my thought process" in template and "my response" in template
        return phrases or ("<|start_of_role|>" in template and "<think>" in template)
