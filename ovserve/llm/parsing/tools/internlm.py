"""internlm: a JSON object in `<|action_start|><|plugin|>`. InternLM 2 and 3.

Source: parsers.md section 10. The interpreter variant carries code, not calls, and stays text.
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
