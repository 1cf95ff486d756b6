"""The shipped tool dialects, in the order in which `detect` asks them."""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ToolDialect
from ovserve.llm.parsing.tools.apertus import Apertus
from ovserve.llm.parsing.tools.command_r7b import CommandR7b
from ovserve.llm.parsing.tools.deepseek_v3 import DeepseekV3
from ovserve.llm.parsing.tools.deepseek_v31 import DeepseekV31
from ovserve.llm.parsing.tools.deepseek_v32 import DeepseekV32
from ovserve.llm.parsing.tools.devstral import Devstral
from ovserve.llm.parsing.tools.ernie45 import Ernie45
from ovserve.llm.parsing.tools.functionary_v31 import FunctionaryV31
from ovserve.llm.parsing.tools.gemma4 import Gemma4
from ovserve.llm.parsing.tools.glm45 import Glm45
from ovserve.llm.parsing.tools.gptoss import GptOss
from ovserve.llm.parsing.tools.granite import Granite
from ovserve.llm.parsing.tools.hermes3 import Hermes3
from ovserve.llm.parsing.tools.internlm import InternLm
from ovserve.llm.parsing.tools.kimi_k2 import KimiK2
from ovserve.llm.parsing.tools.lfm2 import Lfm2
from ovserve.llm.parsing.tools.llama3 import Llama3
from ovserve.llm.parsing.tools.minicpm5 import MiniCpm5
from ovserve.llm.parsing.tools.minimax_m2 import MiniMaxM2
from ovserve.llm.parsing.tools.mistral import Mistral
from ovserve.llm.parsing.tools.nemotron_nano_v2 import NemotronNanoV2
from ovserve.llm.parsing.tools.olmo3 import Olmo3
from ovserve.llm.parsing.tools.onyx import Onyx
from ovserve.llm.parsing.tools.phi4 import Phi4
from ovserve.llm.parsing.tools.pythonic import Pythonic
from ovserve.llm.parsing.tools.qwen3coder import Qwen3Coder
from ovserve.llm.parsing.tools.qwen25coder import Qwen25Coder
from ovserve.llm.parsing.tools.seed_oss import SeedOss
from ovserve.llm.parsing.tools.step3 import Step3
from ovserve.llm.parsing.tools.tool_calls_list import Apriel, Hunyuan, Jamba
from ovserve.llm.parsing.tools.xlam import Xlam

# First those that share a marker with a better known dialect (GLM writes hermes3's tags, Seed qwen3coder's),
# then OVMS's own order, then the general ones.
DIALECTS: tuple[type[ToolDialect], ...] = (
    Glm45,
    SeedOss,
    DeepseekV32,
    DeepseekV3,
    DeepseekV31,
    KimiK2,
    MiniMaxM2,
    Step3,
    InternLm,
    Phi4,
    Granite,
    Jamba,
    Apriel,
    Hunyuan,
    NemotronNanoV2,
    CommandR7b,
    Apertus,
    Olmo3,
    Ernie45,
    GptOss,
    Onyx,
    Gemma4,
    Qwen3Coder,
    MiniCpm5,
    Lfm2,
    Devstral,
    Mistral,
    FunctionaryV31,
    Pythonic,
    Llama3,
    Qwen25Coder,
    Hermes3,
    Xlam,
)
