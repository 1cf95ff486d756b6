r"""gemma4: `<|channel>thought\n...<channel|>`. Google Gemma 4.

Source: parsers.md section 4. The word belongs to the tag; without it the text is thinking all the same.
With thinking off the template writes an empty thought itself, which is closed and so opens nothing.
"""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect


class Gemma4Reasoning(ReasoningDialect):
    name = "gemma4"
    starts = ("<|channel>",)
    ends = ("<channel|>",)
    label = "thought"
    erase = ("<turn|>", "<|tool_response>", "<eos>")

    def matches(self, template: str) -> bool:
        return "<|tool_call>call:" in template or "<|channel>thought" in template
