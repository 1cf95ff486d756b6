"""The shipped tool dialects, in the order in which `detect` asks them."""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ToolDialect
from ovserve.llm.parsing.tools.apertus import Apertus
from ovserve.llm.parsing.tools.deepseek_v3 import DeepseekV3
from ovserve.llm.parsing.tools.deepseek_v31 import DeepseekV31
from ovserve.llm.parsing.tools.devstral import Devstral
from ovserve.llm.parsing.tools.functionary_v31 import FunctionaryV31
from ovserve.llm.parsing.tools.gemma4 import Gemma4
from ovserve.llm.parsing.tools.glm45 import Glm45
from ovserve.llm.parsing.tools.gptoss import GptOss
from ovserve.llm.parsing.tools.hermes3 import Hermes3
from ovserve.llm.parsing.tools.kimi_k2 import KimiK2
from ovserve.llm.parsing.tools.lfm2 import Lfm2
from ovserve.llm.parsing.tools.llama3 import Llama3
from ovserve.llm.parsing.tools.mistral import Mistral
from ovserve.llm.parsing.tools.olmo3 import Olmo3
from ovserve.llm.parsing.tools.onyx import Onyx
from ovserve.llm.parsing.tools.pythonic import Pythonic
from ovserve.llm.parsing.tools.qwen25coder import Qwen25Coder
from ovserve.llm.parsing.tools.tagged_json import (
    Apriel,
    CommandR7b,
    Ernie45,
    Granite,
    Hunyuan,
    InternLm,
    Jamba,
    NemotronNanoV2,
    Phi4,
)
from ovserve.llm.parsing.tools.tagged_xml import DeepseekV32, MiniCpm5, MiniMaxM2, Qwen3Coder, SeedOss, Step3
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
