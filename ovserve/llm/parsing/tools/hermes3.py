"""hermes3: `<tool_call>` around one JSON object. Hermes 2/3, Qwen2.5, Qwen3, QwQ, Granite 4.

Source: NousResearch's function-calling format; parsers.md section 3.1.
"""

from __future__ import annotations

from ovserve.llm.parsing.tools.tagged import TaggedJson


class Hermes3(TaggedJson):
    name = "hermes3"
    tags = {"<tool_call>": ("</tool_call>",)}
    erase = ("<|im_end|>",)

    def matches(self, template: str) -> bool:
        return "<tool_call>" in template and "</tool_call>" in template
