"""nemotron_nano_v2: a JSON list in `<TOOLCALL>`. Nemotron Nano v2; Nemotron 3 writes qwen3coder.

Source: read 2026-11-22, https://github.com/vllm-project/vllm/blob/719d683d6bfa/vllm/tool_parsers/nemotron_nano_v2_tool_parser.py
"""

from __future__ import annotations

from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.tools.tagged import TaggedJson


class NemotronNanoV2(TaggedJson):
    name = "nemotron_nano_v2"
    tags = {"<TOOLCALL>": ("</TOOLCALL>",)}
    erase = ("<SPECIAL_12>",)
    guide = Guide(
        '{"name": "NAME", "arguments": ',
        "}",
        separator=", ",
        block=("<TOOLCALL>[", "]</TOOLCALL>"),
        trigger="<TOOLCALL>",
    )

    def matches(self, template: str) -> bool:
        return "<TOOLCALL>" in template
