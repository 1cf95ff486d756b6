"""hunyuan: a JSON list in `<tool_calls>`. Hunyuan A13B and the small Hunyuan models.

Source: parsers.md section 10.
"""

from __future__ import annotations

from ovserve.llm.parsing.guide import Guide
from ovserve.llm.parsing.tools.tagged import TaggedJson


class Hunyuan(TaggedJson):
    name = "hunyuan"
    tags = {"<tool_calls>": ("</tool_calls>",)}
    guide = Guide(
        '{"name": "NAME", "arguments": ',
        "}",
        separator=", ",
        block=("<tool_calls>[", "]</tool_calls>"),
        trigger="<tool_calls>",
    )

    def matches(self, template: str) -> bool:
        return "<tool_calls>" in template
