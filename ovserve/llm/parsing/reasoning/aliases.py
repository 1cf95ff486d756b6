"""Names under which operators know models whose thinking is qwen3's or deepseek_r1's; never detected.

Source: the reasoning parsers of vLLM and SGLang carry these names.
"""

from __future__ import annotations

from ovserve.llm.parsing.reasoning.deepseek_r1 import DeepseekR1Reasoning
from ovserve.llm.parsing.reasoning.qwen3 import Qwen3Reasoning


class _Prompted(Qwen3Reasoning):
    """The model writes the tag, or the prompt does."""

    def matches(self, template: str) -> bool:
        return False


class _Always(DeepseekR1Reasoning):
    """The answer begins inside the thinking."""

    def matches(self, template: str) -> bool:
        return False


class DeepseekV3Reasoning(_Prompted):
    name = "deepseek_v3"


class DeepseekV31Reasoning(_Prompted):
    name = "deepseek_v31"


class KimiK2Reasoning(_Prompted):
    name = "kimi_k2"


class MiniMaxM2Reasoning(_Always):
    name = "minimax_m2"


class NemotronNanoV2Reasoning(_Prompted):
    name = "nemotron_nano_v2"


class Olmo3Reasoning(_Prompted):
    name = "olmo3"


class Step3Reasoning(_Always):
    name = "step3"


ALIASES = (
    DeepseekV3Reasoning,
    DeepseekV31Reasoning,
    KimiK2Reasoning,
    MiniMaxM2Reasoning,
    NemotronNanoV2Reasoning,
    Olmo3Reasoning,
    Step3Reasoning,
)
