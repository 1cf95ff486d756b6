"""Operations of tokenize, detokenize and tokenizer_info (`api/openai/describe/operation.py`)."""

from __future__ import annotations

from ovserve.api.openai.describe.operation import Operation
from ovserve.api.openai.tokenize import (
    CountedTokens,
    DetokenizedText,
    DetokenizeRequest,
    TokenIds,
    TokenizeRequest,
    TokenizerInfo,
)

OPERATIONS = (
    Operation(
        "POST",
        "/v3/tokenize",
        "Text to token ids: with `text` in OVMS's form, with `prompt` or `messages` in vLLM's.",
        answer=(TokenIds, CountedTokens),
        request=TokenizeRequest,
        example={"model": "smollm2", "text": "Hello world"},
        defaults={"pad_to_max_length": False, "padding_side": "right", "add_generation_prompt": True},
    ),
    Operation(
        "POST",
        "/v3/detokenize",
        "Token ids to text.",
        answer=DetokenizedText,
        request=DetokenizeRequest,
        defaults={"skip_special_tokens": False},
    ),
    Operation(
        "GET",
        "/v3/tokenizer_info",
        "What lm-eval's remote tokenizer asks for.",
        answer=TokenizerInfo,
        query={"model": "may be left out when one graph is served"},
    ),
)
