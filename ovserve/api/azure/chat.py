"""Azure's chat/completions: OpenAI's endpoint behind a rule for fields that Azure's own API does not have.

Reached through `ENDPOINTS`, one endpoint per value of the header `extra-parameters`. `error` rejects such
fields, and `ignore` drops and reports them. `pass-through`, the default, hands them on: top_k and the like
have their effect, and unknown fields are reported."""

from __future__ import annotations

import dataclasses

import msgspec

from ovserve.api.openai.body import decode_fields, unique_members
from ovserve.api.openai.chat import ChatCompletions, DecodedChat
from ovserve.api.openai.chat_response import ChatWriter
from ovserve.api.openai.common import encode
from ovserve.errors import InvalidArgument
from ovserve.llm.model import ModelContext
from ovserve.llm.request import GenerateRequest

MODES = ("pass-through", "ignore", "error")
DEFAULT_MODE = "pass-through"

# Azure's own, from its API reference; everything else is extra.
FIELDS = frozenset(
    {
        "frequency_penalty",
        "max_tokens",
        "messages",
        "model",
        "presence_penalty",
        "response_format",
        "seed",
        "stop",
        "stream",
        "temperature",
        "tool_choice",
        "tools",
        "top_p",
    }
)


class ExtraParameter(InvalidArgument):
    code = "extra_parameter"


def name_of(mode: str) -> str:
    return f"azure/chat/completions/{mode}"


def with_model(body: bytes, model: str) -> bytes:
    """The body naming `model`, whatever it named before."""
    unique_members(body)  # the new body shows none that occurs twice
    return encode(decode_fields(body) | {"model": msgspec.Raw(encode(model))})


class AzureChat:
    """The endpoint in one of the modes."""

    def __init__(self, mode: str) -> None:
        self.name = name_of(mode)
        self._mode = mode
        self._chat = ChatCompletions()

    def decode(self, body: bytes) -> DecodedChat:
        fields = decode_fields(body)
        extras = sorted(fields.keys() - FIELDS)
        if self._mode == "error" and extras:
            raise ExtraParameter(
                f"{extras[0]}: not a parameter of this API, and extra-parameters is error", param=extras[0]
            )
        if self._mode != "ignore":
            return self._chat.decode(body)
        unique_members(body)
        supported = {name: value for name, value in fields.items() if name in FIELDS}
        decoded = self._chat.decode(encode(supported))
        return dataclasses.replace(decoded, ignored=tuple(sorted([*decoded.ignored, *extras])))

    def to_request(self, decoded: DecodedChat, model: ModelContext) -> GenerateRequest:
        request = self._chat.to_request(decoded, model)
        presentation = msgspec.structs.replace(request.presentation, endpoint=self.name)
        return msgspec.structs.replace(request, presentation=presentation)

    def writer(self, request: GenerateRequest) -> ChatWriter:
        return self._chat.writer(request)
