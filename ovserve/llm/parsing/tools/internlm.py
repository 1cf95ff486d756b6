"""internlm: a JSON object in `<|action_start|><|plugin|>`. InternLM 2 and 3.

The interpreter variant carries code, not calls, and stays text.

Source: read 2026-11-22, https://github.com/sgl-project/sglang/blob/0c50dc90ffc6/python/sglang/srt/function_call/internlm_detector.py
"""

from __future__ import annotations

from ovserve.llm.parsing.core.guide import Guide
from ovserve.llm.parsing.tools.tagged import TaggedJson


class InternLm(TaggedJson):
    name = "internlm"
    tags = {
        "<|action_start|><|plugin|>": ("<|action_end|>",),
        "<|action_start|> <|plugin|>": ("<|action_end|>",),
        "<|action_start|>\n<|plugin|>": ("<|action_end|>",),
    }
    erase = ("<|im_end|>",)
    guide = Guide(
        '<|action_start|><|plugin|>{"name": "NAME", "parameters": ',
        "}<|action_end|>",
        separator="\n",
        trigger="<|action_start|>",
    )

    def matches(self, template: str) -> bool:
        return "<|action_start|>" in template
