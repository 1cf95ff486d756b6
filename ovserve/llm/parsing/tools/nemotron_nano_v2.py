"""nemotron_nano_v2: a JSON list in `<TOOLCALL>`. Nemotron Nano v2; Nemotron 3 writes qwen3coder.

Source: parsers.md section 10.
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
