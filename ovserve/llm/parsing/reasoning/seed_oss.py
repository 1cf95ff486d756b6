"""seed_oss: `<seed:think>...</seed:think>`. ByteDance Seed-OSS.

Source: parsers.md section 10.
"""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect


class SeedOssReasoning(ReasoningDialect):
    name = "seed_oss"
    starts = ("<seed:think>",)
    ends = ("</seed:think>",)
    erase = ("<seed:eos>",)

    def implicit(self, prompt: str) -> bool:
        """With a thinking budget of 0 the prompt opens a reflection on it inside the thinking."""
        return super().implicit(prompt.rstrip().removesuffix("<seed:cot_budget_reflect>"))

    def matches(self, template: str) -> bool:
        return "<seed:think>" in template
