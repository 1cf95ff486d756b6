"""The shipped tool dialects, in the order in which `detect` asks them."""

from __future__ import annotations

from ovserve.llm.parsing.core.dialect import ToolDialect
from ovserve.llm.parsing.tools.gemma4 import Devstral, Gemma4, Mistral
from ovserve.llm.parsing.tools.pythonic import Lfm2, Olmo3, Pythonic
from ovserve.llm.parsing.tools.recipients import GptOss, Onyx
from ovserve.llm.parsing.tools.sections import DeepseekV3, DeepseekV31, KimiK2
from ovserve.llm.parsing.tools.tagged_json import (
    Apertus,
    Apriel,
    CommandR7b,
    Ernie45,
    Granite,
    Hermes3,
    Hunyuan,
    InternLm,
    Jamba,
    Llama3,
    NemotronNanoV2,
    Phi4,
    Qwen25Coder,
    Xlam,
)
from ovserve.llm.parsing.tools.tagged_xml import (
    DeepseekV32,
    FunctionaryV31,
    Glm45,
    MiniCpm5,
    MiniMaxM2,
    Qwen3Coder,
    SeedOss,
    Step3,
)

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
