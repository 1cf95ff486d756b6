"""Azure's embeddings: OpenAI's endpoint behind the rule for fields that Azure's own API does not have."""

from __future__ import annotations

import msgspec

from ovserve.api.azure.chat import ExtraParameter
from ovserve.api.openai.body import decode_fields, unique_members
from ovserve.api.openai.common import encode

# Azure's own, from its API reference; everything else is extra.
FIELDS = frozenset({"model", "input", "dimensions", "encoding_format", "input_type", "user"})


def embeddings_for(body: bytes, model: str, mode: str) -> bytes:
    """Return the body naming `model`, with extra fields handled by `mode` (`azure/chat.py`).

    Raises InvalidArgument for one in the mode `error`, and for a body that is not a JSON object.
    """
    unique_members(body)  # the new body shows none that occurs twice
    fields = decode_fields(body)
    extras = sorted(fields.keys() - FIELDS)
    if mode == "error" and extras:
        raise ExtraParameter(
            f"{extras[0]}: not a parameter of this API, and extra-parameters is error", param=extras[0]
        )
    supported = {name: value for name, value in fields.items() if mode != "ignore" or name in FIELDS}
    return encode(supported | {"model": msgspec.Raw(encode(model))})
