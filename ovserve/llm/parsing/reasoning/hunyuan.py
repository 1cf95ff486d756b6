"""hunyuan: `<think>...</think>`, and the answer in `<answer>`. Tencent Hunyuan A13B and small models.

Source: the models' chat templates; parsers.md section 10 has their calls.
"""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect


class HunyuanReasoning(ReasoningDialect):
    name = "hunyuan"
    erase = ("<answer>", "</answer>")

    def matches(self, template: str) -> bool:
        return "<answer>" in template and "</think>" in template
