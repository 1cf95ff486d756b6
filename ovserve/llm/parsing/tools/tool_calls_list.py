"""hunyuan, jamba, apriel: a JSON list in `<tool_calls>`, distinguished by the tokens around it.

Source: read 2026-11-22, https://github.com/vllm-project/vllm/blob/055a6478d72b/vllm/entrypoints/openai/tool_parsers/jamba_tool_parser.py
"""

from __future__ import annotations

from ovserve.llm.parsing.tools.tagged import ToolCallsList


class Hunyuan(ToolCallsList):
    """Tencent Hunyuan A13B and the small Hunyuan models."""

    name = "hunyuan"

    def matches(self, template: str) -> bool:
        return "<tool_calls>" in template


class Jamba(ToolCallsList):
    """AI21 Jamba 1.5 and later."""

    name = "jamba"
    erase = ("<|eom|>", "<|endoftext|>")

    def matches(self, template: str) -> bool:
        return "<tool_calls>" in template and "<|bom|>" in template


class Apriel(ToolCallsList):
    """ServiceNow Apriel 1.5."""

    name = "apriel"
    erase = ("<|end|>",)

    def matches(self, template: str) -> bool:
        return "<tool_calls>" in template and ("<thinking>" in template or "FINAL RESPONSE]" in template)
