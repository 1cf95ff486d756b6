"""POST completions: a prompt without a chat template. Request and response bodies, and their mapping."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ovserve.llm.model import ModelContext
from ovserve.llm.output import Folded, Parsed
from ovserve.llm.request import GenerateRequest
from ovserve.openai.body import decode_body, refuse_unsupported
from ovserve.openai.common import DONE, Usage, encode, event, folded_usage, new_id, usage_of
from ovserve.openai.sampling import UNSUPPORTED, SamplingFields, check_sampling, to_sampling


class CompletionRequest(SamplingFields, kw_only=True):
    model: str
    prompt: Annotated[str, Meta(min_length=1)]


COMPLETIONS_UNSUPPORTED: dict[str, tuple[Any, ...]] = UNSUPPORTED | {"echo": (False,), "suffix": ("",)}

_decoder = msgspec.json.Decoder(CompletionRequest)


@dataclass(frozen=True)
class Decoded:
    body: CompletionRequest
    ignored: tuple[str, ...]


class Completions:
    """The endpoint."""

    name = "completions"

    def decode(self, body: bytes) -> Decoded:
        request, unknown = decode_body(body, _decoder)
        refuse_unsupported(unknown, COMPLETIONS_UNSUPPORTED)
        check_sampling(request)
        return Decoded(request, tuple(sorted(unknown)))

    def to_request(self, decoded: Decoded, model: ModelContext) -> GenerateRequest:
        body = decoded.body
        max_tokens = model.max_tokens(body.max_tokens, "max_tokens")
        return GenerateRequest(
            id=new_id("cmpl-"),
            model=body.model,
            created=int(time.time()),
            endpoint=self.name,
            prompt=body.prompt,
            add_special_tokens=True,
            sampling=to_sampling(body, model, max_tokens),
            stream=bool(body.stream),
            include_usage=body.include_usage,
            requested_max_tokens=body.max_tokens,
            ignored_params=decoded.ignored,
        )

    def writer(self, request: GenerateRequest) -> CompletionWriter:
        return CompletionWriter(request)


class Choice(msgspec.Struct, kw_only=True, gc=False):
    index: int = 0
    text: str
    logprobs: None = None
    finish_reason: str | None = None


class Completion(msgspec.Struct, kw_only=True, gc=False):
    """The unary body and each chunk: OpenAI uses one shape and one object name for both."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET


class CompletionWriter:
    """The answer: an empty first chunk once admitted, text chunks, the last with the finish reason."""

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request
        self._usage: UnsetType | None = None if request.include_usage else UNSET
        self._prompt_tokens = 0
        self._completion_tokens = 0

    def chunk(self, parsed: Parsed) -> bytes:
        self._prompt_tokens += parsed.prompt_tokens
        self._completion_tokens += parsed.tokens
        finish = parsed.finish_reason
        out = b""
        if parsed.content or finish is not None or parsed.prompt_tokens:
            out = self._event([Choice(text=parsed.content, finish_reason=finish)])
        if finish is not None:
            if self._request.include_usage:
                out += self._event([], usage_of(self._prompt_tokens, self._completion_tokens))
            out += DONE
        return out

    def _event(self, choices: list[Choice], usage: Usage | None = None) -> bytes:
        return event(self._body(choices, usage or self._usage))

    def _body(self, choices: list[Choice], usage: Usage | UnsetType | None) -> Completion:
        request = self._request
        return Completion(
            id=request.id, created=request.created, model=request.model, choices=choices, usage=usage
        )

    def whole(self, folded: Folded) -> bytes:
        return encode(
            self._body(
                [Choice(text=folded.content, finish_reason=folded.finish_reason)], folded_usage(folded)
            )
        )
