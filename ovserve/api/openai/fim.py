"""POST fim/completions: fill in the middle in Mistral's form, which editors speak.

The request is that of completions with one prompt; the answer has the shape of a chat's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import msgspec

from ovserve.api.openai.body import decode_body, refuse_unsupported
from ovserve.api.openai.chat_response import ChatChunk, ChatResponse, ChatWriter
from ovserve.api.openai.completions import OPERATION as COMPLETIONS
from ovserve.api.openai.completions import CompletionRequest, Completions, DecodedCompletions
from ovserve.api.openai.describe.operation import Operation, doc
from ovserve.api.openai.sampling import UNSUPPORTED
from ovserve.errors import InvalidArgument
from ovserve.llm.model import ModelContext
from ovserve.llm.request import GenerateRequest


class FimRequest(CompletionRequest, kw_only=True):
    prompt: Annotated[str, doc("what stands before the answer; may be empty with a suffix")]
    random_seed: Annotated[int | None, doc("Mistral's name of seed")] = None


_decoder = msgspec.json.Decoder(FimRequest)


class FimCompletions(Completions):
    name = "fim/completions"

    def decode(self, body: bytes) -> DecodedCompletions:
        request, unknown = decode_body(body, _decoder)
        refuse_unsupported(unknown, UNSUPPORTED)
        if request.random_seed is not None:
            if request.seed is not None:
                raise InvalidArgument("random_seed: excludes seed", param="random_seed")
            request.seed = request.random_seed
        return self.checked(request, unknown)

    def to_request(self, decoded: DecodedCompletions, model: ModelContext) -> GenerateRequest:
        request = super().to_request(decoded, model)
        presentation = msgspec.structs.replace(request.presentation, endpoint=self.name)
        return msgspec.structs.replace(request, presentation=presentation)

    def writer(self, request: GenerateRequest) -> ChatWriter:  # type: ignore[override]
        return ChatWriter(request)


OPERATION: Operation = replace(
    COMPLETIONS,
    path="/v3/fim/completions",
    summary="Fill in the middle, in Mistral's form.",
    answer=ChatResponse,
    event=ChatChunk,
    request=FimRequest,
    example={"model": "smollm2", "prompt": "def add(a, b):", "max_tokens": 8},
    same_as="completions",
)
