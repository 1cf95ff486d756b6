"""jamba: a JSON list in `<tool_calls>`. AI21 Jamba 1.5 and later.

Source: parsers.md section 10.
"""

from __future__ import annotations

from ovserve.llm.parsing.guide import Guide
from ovserve.llm.parsing.tools.tagged import TaggedJson


class Jamba(TaggedJson):
    name = "jamba"
    tags = {"<tool_calls>": ("</tool_calls>",)}
    erase = ("<|eom|>", "<|endoftext|>")
    guide = Guide(
        '{"name": "NAME", "arguments": ',
        "}",
        separator=", ",
        block=("<tool_calls>[", "]</tool_calls>"),
        trigger="<tool_calls>",
    )

    def matches(self, template: str) -> bool:
        return "<tool_calls>" in template and "<|bom|>" in template
