"""hunyuan: a JSON list in `<tool_calls>`. Hunyuan A13B and the small Hunyuan models.

Source: parsers.md section 10.
"""

from __future__ import annotations

from ovserve.llm.parsing.tools.tagged import ToolCallsList


class Hunyuan(ToolCallsList):
    name = "hunyuan"

    def matches(self, template: str) -> bool:
        return "<tool_calls>" in template
