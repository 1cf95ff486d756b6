"""ernie45: hermes blocks after the reasoning; an answer stands in `<response>` (see `reasoning.py`).

Baidu ERNIE 4.5 reasoning models.

Source: read 2026-11-22, https://github.com/vllm-project/vllm/blob/0558e317a13a/vllm/entrypoints/openai/tool_parsers/ernie45_tool_parser.py
"""

from __future__ import annotations

from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.tools.tagged import TaggedJson


class Ernie45(TaggedJson):
    name = "ernie45"
    tags = {"<tool_call>": ("</tool_call>",)}
    erase = ("<response>", "</response>")
    guide = Guide(
        '<tool_call>\n{"name": "NAME", "arguments": ',
        "}\n</tool_call>",
        separator="\n",
        trigger="<tool_call>",
    )

    def matches(self, template: str) -> bool:
        return "<tool_call>" in template and "<response>" in template
