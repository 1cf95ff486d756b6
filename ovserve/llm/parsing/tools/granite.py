"""granite: a JSON list after `<|tool_call|>`. IBM Granite 3.x; also 3.1's and the 20b model's tags.

Granite 4 writes hermes3.

Source: read 2026-11-22, https://github.com/vllm-project/vllm/blob/037ed0620610/vllm/tool_parsers/granite_tool_parser.py
"""

from __future__ import annotations

from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.tools.tagged import TaggedJson


class Granite(TaggedJson):
    name = "granite"
    tags = {
        "<|tool_call|>": ("<|/tool_call|>",),
        "<tool_call>": ("</tool_call>",),
        "<function_call>": ("</function_call>",),
    }
    erase = ("<|end_of_text|>",)
    guide = Guide(
        '{"name": "NAME", "arguments": ',
        "}",
        separator=", ",
        block=("<|tool_call|>[", "]"),
        trigger="<|tool_call|>",
    )

    def matches(self, template: str) -> bool:
        return "<|tool_call|>" in template
