"""The shipped reasoning dialects, in the order in which `detect` asks them; used by the registry."""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ReasoningDialect
from ovserve.llm.parsing.reasoning.aliases import ALIASES
from ovserve.llm.parsing.reasoning.apertus import ApertusReasoning
from ovserve.llm.parsing.reasoning.apriel import AprielReasoning
from ovserve.llm.parsing.reasoning.command_r7b import CommandR7bReasoning
from ovserve.llm.parsing.reasoning.deepseek_r1 import DeepseekR1Reasoning
from ovserve.llm.parsing.reasoning.ernie45 import Ernie45Reasoning
from ovserve.llm.parsing.reasoning.gemma4 import Gemma4Reasoning
from ovserve.llm.parsing.reasoning.glm45 import Glm45Reasoning
from ovserve.llm.parsing.reasoning.gptoss import GptOssReasoning
from ovserve.llm.parsing.reasoning.granite import GraniteReasoning
from ovserve.llm.parsing.reasoning.hunyuan import HunyuanReasoning
from ovserve.llm.parsing.reasoning.lfm2 import Lfm2Reasoning
from ovserve.llm.parsing.reasoning.magistral import MagistralReasoning
from ovserve.llm.parsing.reasoning.minicpm5 import MiniCpm5Reasoning
from ovserve.llm.parsing.reasoning.onyx import OnyxReasoning
from ovserve.llm.parsing.reasoning.qwen3 import Qwen3Reasoning
from ovserve.llm.parsing.reasoning.seed_oss import SeedOssReasoning

# The particular before the general: qwen3's tags are everybody's.
DIALECTS: tuple[type[ReasoningDialect], ...] = (
    GptOssReasoning,
    OnyxReasoning,
    Gemma4Reasoning,
    Glm45Reasoning,
    SeedOssReasoning,
    DeepseekR1Reasoning,
    CommandR7bReasoning,
    ApertusReasoning,
    AprielReasoning,
    MagistralReasoning,
    GraniteReasoning,
    Ernie45Reasoning,
    HunyuanReasoning,
    MiniCpm5Reasoning,
    Lfm2Reasoning,
    Qwen3Reasoning,
    *ALIASES,
)
