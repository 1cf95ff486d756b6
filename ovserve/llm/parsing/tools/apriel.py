"""apriel: a JSON list in `<tool_calls>`. ServiceNow Apriel 1.5.

Source: parsers.md section 10.
"""

from __future__ import annotations

from ovserve.llm.parsing.tools.tagged import ToolCallsList


class Apriel(ToolCallsList):
    name = "apriel"
    erase = ("<|end|>",)

    def matches(self, template: str) -> bool:
        return "<tool_calls>" in template and ("<thinking>" in template or "FINAL RESPONSE]" in template)
