"""apriel: a JSON list in `<tool_calls>`. ServiceNow Apriel 1.5.

Source: parsers.md section 10.
"""

from __future__ import annotations

from ovserve.llm.parsing.guide import Guide
from ovserve.llm.parsing.tools.tagged import TaggedJson


class Apriel(TaggedJson):
    name = "apriel"
    tags = {"<tool_calls>": ("</tool_calls>",)}
    erase = ("<|end|>",)
    guide = Guide(
        '{"name": "NAME", "arguments": ',
        "}",
        separator=", ",
        block=("<tool_calls>[", "]</tool_calls>"),
        trigger="<tool_calls>",
    )

    def matches(self, template: str) -> bool:
        return "<tool_calls>" in template and ("<thinking>" in template or "FINAL RESPONSE]" in template)
