"""seed_oss: qwen3coder's tags in a block of its own. ByteDance Seed-OSS.

Source: read 2026-11-22, https://github.com/vllm-project/vllm/blob/3e47bf473f0a/vllm/tool_parsers/seed_oss_tool_parser.py
"""

from __future__ import annotations

import msgspec

from ovserve.llm.parsing.core.guide import Guide, tagged
from ovserve.llm.parsing.tools.qwen3coder import Qwen3Coder
from ovserve.llm.parsing.tools.tags import TaggedXml


class SeedOss(TaggedXml):
    name = "seed_oss"
    markers = ("<seed:tool_call>",)
    erase = ("<seed:eos>",)
    form = msgspec.structs.replace(Qwen3Coder.form, closers=("</seed:tool_call>",))
    guide = Guide(
        "<seed:tool_call>\n<function=NAME>\n",
        "</function>\n</seed:tool_call>",
        separator="\n",
        trigger="<seed:tool_call>",
        arguments=tagged("<parameter=NAME>", "</parameter>\n", without=form.ambiguous),
    )

    def matches(self, template: str) -> bool:
        return "<seed:tool_call>" in template
