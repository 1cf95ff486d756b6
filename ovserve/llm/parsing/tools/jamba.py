"""jamba: a JSON list in `<tool_calls>`. AI21 Jamba 1.5 and later.

Source: parsers.md section 10.
"""

from __future__ import annotations

from ovserve.llm.parsing.tools.tagged import ToolCallsList


class Jamba(ToolCallsList):
    name = "jamba"
    erase = ("<|eom|>", "<|endoftext|>")

    def matches(self, template: str) -> bool:
        return "<tool_calls>" in template and "<|bom|>" in template
