"""GET info: what Azure's client asks to know the model before its first request."""

from __future__ import annotations

import msgspec

from ovserve.api.openai.common import encode

PROVIDER = "ovserve"


class ModelInfo(msgspec.Struct):
    model_name: str
    model_type: str
    model_provider_name: str


def info_body(name: str, *, chat: bool, embeds: bool = False) -> bytes:
    kind = "embeddings" if embeds else "chat_completion" if chat else "text_generation"
    return encode(ModelInfo(name, kind, PROVIDER))
