"""POST completions: prompts without a chat template. Request and response bodies, and their mapping.

POST fim/completions fills in the middle in Mistral's form, which editors speak. The request is that of
completions with one prompt; the answer has the shape of a chat's.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.api.openai.body import decode_body, refuse_unsupported
from ovserve.api.openai.chat_response import ChatChunk, ChatResponse, ChatWriter
from ovserve.api.openai.common import (
    DONE,
    Usage,
    UsageCounter,
    chunk_usage,
    encode,
    event,
    new_id,
    stop_reason,
    usage_of,
)
from ovserve.api.openai.logprobs import CompletionLogprobs, CompletionLogprobsWriter
from ovserve.api.openai.operation import NaturalOrMinusOne, Operation, Override, TopCount, doc
from ovserve.api.openai.sampling import (
    DEFAULTS,
    FIXED_DEFAULTS,
    MAX_TOKENS,
    UNSUPPORTED,
    StreamFields,
    TokenId,
    check_sampling,
    check_stream_options,
    idle_fields,
    narrow_length,
    narrow_sampling,
    to_sampling,
)
from ovserve.errors import InvalidArgument
from ovserve.llm.fim import ending_middle, middle_prompt
from ovserve.llm.model import ModelContext
from ovserve.llm.output import Completion, Parsed
from ovserve.llm.request import GenerateRequest, Presentation, Prompt

MAX_ALL_CHOICES = 256  # prompts times n


class CompletionRequest(StreamFields, kw_only=True):
    model: Annotated[str, doc("the name under which a graph is served")]
    prompt: Annotated[
        str | list[str | TokenId | list[TokenId]],
        doc("at most 256 prompts times n"),
    ]
    max_tokens: Annotated[NaturalOrMinusOne | None, doc(MAX_TOKENS + "; -1: no bound; 0: with echo")] = None
    logprobs: Annotated[
        TopCount | None, doc("of each token, and of so many others; above 1 with the paged engine only")
    ] = None
    user: Annotated[str | None, doc("users share a full engine fairly")] = None
    echo: Annotated[
        bool | None,
        doc("the answer begins with the prompt, logprobs included"),
    ] = None
    suffix: Annotated[
        str | None,
        doc("what follows the answer, of models that fill in the middle"),
    ] = None


SEES = "this is a vision model, which answers conversations only"

_decoder = msgspec.json.Decoder(CompletionRequest)


class DecodedCompletions(msgspec.Struct, frozen=True):
    body: CompletionRequest
    prompts: tuple[Prompt, ...]
    ignored: tuple[str, ...]


class Completions:
    name = "completions"

    def decode(self, body: bytes) -> DecodedCompletions:
        request, unknown = decode_body(body, _decoder)
        refuse_unsupported(unknown, UNSUPPORTED)
        return _checked(request, unknown)

    def to_request(self, decoded: DecodedCompletions, model: ModelContext) -> GenerateRequest:
        return _to_request(decoded, model, self.name)

    def writer(self, request: GenerateRequest) -> CompletionWriter:
        return CompletionWriter(request)


def _checked(request: CompletionRequest, unknown: Iterable[str]) -> DecodedCompletions:
    """Check what types cannot say. Raises InvalidArgument."""
    check_sampling(request)
    check_stream_options(request)
    prompts = ("",) if request.suffix and request.prompt == "" else _prompts(request.prompt)
    _check_suffix(request, prompts)
    if len(prompts) * (request.n or 1) > MAX_ALL_CHOICES:
        raise InvalidArgument.at(
            "prompt", f"{len(prompts)} prompts with n {request.n or 1} exceed {MAX_ALL_CHOICES} choices"
        )
    if request.max_tokens == 0 and not request.echo:
        raise InvalidArgument.at("max_tokens", "0 is only allowed with echo: true")
    return DecodedCompletions(request, prompts, tuple(sorted([*unknown, *request.answer_format.unenforced])))


def _to_request(decoded: DecodedCompletions, model: ModelContext, endpoint: str) -> GenerateRequest:
    body = decoded.body
    if model.vision is not None:
        raise InvalidArgument.at("prompt", f"{SEES}; use chat/completions")
    max_tokens = 0 if body.max_tokens == 0 else model.max_tokens(body.max_tokens, "max_tokens")
    sampling = to_sampling(
        body,
        model,
        max_tokens,
        logprobs=body.logprobs is not None,
        top_logprobs=body.logprobs,
        top_name="logprobs",
        echo=bool(body.echo),
    )
    prompts = decoded.prompts
    if body.suffix:
        prompts = tuple(middle_prompt(model.fim, str(prompt), body.suffix) for prompt in prompts)
        sampling = ending_middle(model.fim, sampling)
    return GenerateRequest(
        id=new_id("cmpl-"),
        prompts=prompts,
        add_special_tokens=True,
        sampling=sampling,
        presentation=Presentation(
            endpoint=endpoint,
            model=body.model,
            created=int(time.time()),
            stream=bool(body.stream),
            include_usage=body.include_usage,
            continuous_usage=body.continuous_usage,
            requested_max_tokens=body.max_tokens,
            top_logprobs=body.logprobs or 0,
            ignored_params=tuple(sorted([*decoded.ignored, *idle_fields(body, model)])),
        ),
        user=body.user or "",
    )


def _check_suffix(request: CompletionRequest, prompts: tuple[Prompt, ...]) -> None:
    if not request.suffix:
        return
    if request.echo:
        raise InvalidArgument.at("suffix", "excludes echo: true")
    if not all(isinstance(prompt, str) for prompt in prompts):
        raise InvalidArgument.at("suffix", "needs a prompt of text, got token ids")


def _prompts(prompt: str | list[Any]) -> tuple[Prompt, ...]:
    """One text, several texts, one list of token ids, or several such lists; nothing empty, nothing mixed."""
    prompts = [prompt] if isinstance(prompt, str) else prompt
    if prompts and all(isinstance(p, int) for p in prompts):
        return (tuple(prompts),)
    for kind in (str, list):
        if prompts and all(isinstance(p, kind) for p in prompts):
            empty = next((i for i, p in enumerate(prompts) if not p), None)
            if empty is None:
                return tuple(p if isinstance(p, str) else tuple(p) for p in prompts)
            raise InvalidArgument.at(
                "prompt" if isinstance(prompt, str) else f"prompt[{empty}]",
                "expected at least one character or token, got none",
            )
    what = "a mixture of texts, token ids and lists" if prompts else "[]"
    raise InvalidArgument.at("prompt", f"expected a text, texts, token ids or lists of token ids, got {what}")


class Choice(msgspec.Struct, kw_only=True, gc=False):
    index: int = 0
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | UnsetType = UNSET  # why an answer with the finish reason `length` is no longer


class CompletionObject(msgspec.Struct, kw_only=True, gc=False):
    """The unary body and each chunk: OpenAI uses one shape and one object name for both."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    system_fingerprint: str | UnsetType = UNSET
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET


class CompletionWriter:
    """The answer: an empty first chunk, text chunks, each choice's last with the reason."""

    def __init__(self, request: GenerateRequest) -> None:
        self._request, self._shown = request, request.presentation
        self._top = self._shown.top_logprobs
        self._meter = UsageCounter()
        self._logprobs: dict[int, CompletionLogprobsWriter] = {}  # by choice

    def chunk(self, parsed: Parsed) -> bytes:
        self._meter.add(parsed)
        out = b""
        if parsed.parts or parsed.finish_reason is not None or parsed.prompt_tokens or parsed.logprobs:
            logprobs = None
            if parsed.logprobs:
                writer = self._logprobs.setdefault(parsed.index, CompletionLogprobsWriter(self._top))
                logprobs = writer.write(parsed.logprobs)
            choice = Choice(
                index=parsed.index,
                text=parsed.content,
                logprobs=logprobs,
                finish_reason=parsed.finish_reason,
                stop_reason=stop_reason(parsed),
            )
            out = self._event([choice])
        if parsed.last:
            if self._shown.include_usage:
                out += self._event([], usage_of(self._meter))
            out += DONE
        return out

    def _event(self, choices: list[Choice], usage: Usage | None = None) -> bytes:
        return event(self._body(choices, usage or chunk_usage(self._shown, self._meter)))

    def _body(self, choices: list[Choice], usage: Usage | UnsetType | None) -> CompletionObject:
        presentation = self._shown
        return CompletionObject(
            id=self._request.id,
            created=presentation.created,
            model=presentation.model,
            system_fingerprint=presentation.fingerprint or UNSET,
            choices=choices,
            usage=usage,
        )

    def whole(self, completion: Completion) -> bytes:
        num_logprobs = self._request.sampling.logprobs
        choices = [
            Choice(
                index=c.index,
                text=c.content,
                logprobs=CompletionLogprobsWriter(self._top).write(c.logprobs) if num_logprobs else None,
                finish_reason=c.finish_reason,
                stop_reason=stop_reason(c),
            )
            for c in completion.choices
        ]
        return encode(self._body(choices, usage_of(completion)))


def _narrow(model: ModelContext) -> dict[str, Override]:
    narrowed = narrow_sampling(model) | narrow_length(model, "max_tokens")
    return narrowed | {"logprobs": narrowed["top_logprobs"]}


OPERATION = Operation(
    "POST",
    "/v3/completions",
    "Continue a text as it is, without a chat template.",
    answer=CompletionObject,
    event=CompletionObject,
    request=CompletionRequest,
    example={"model": "smollm2", "prompt": "Once upon a time", "max_tokens": 8},
    refused=UNSUPPORTED,
    defaults=DEFAULTS | FIXED_DEFAULTS | {"echo": False},
    specialize=_narrow,
    without_vision=True,
)


class FimRequest(CompletionRequest, kw_only=True):
    prompt: Annotated[str, doc("what stands before the answer; may be empty with a suffix")]
    random_seed: Annotated[int | None, doc("Mistral's name of seed")] = None


_fim_decoder = msgspec.json.Decoder(FimRequest)


class FimCompletions:
    name = "fim/completions"

    def decode(self, body: bytes) -> DecodedCompletions:
        request, unknown = decode_body(body, _fim_decoder)
        refuse_unsupported(unknown, UNSUPPORTED)
        if request.random_seed is not None:
            if request.seed is not None:
                raise InvalidArgument.at("random_seed", "excludes seed")
            request.seed = request.random_seed
        return _checked(request, unknown)

    def to_request(self, decoded: DecodedCompletions, model: ModelContext) -> GenerateRequest:
        return _to_request(decoded, model, self.name)

    def writer(self, request: GenerateRequest) -> ChatWriter:
        return ChatWriter(request)


FIM_OPERATION: Operation = replace(
    OPERATION,
    path="/v3/fim/completions",
    summary="Fill in the middle, in Mistral's form.",
    answer=ChatResponse,
    event=ChatChunk,
    request=FimRequest,
    example={"model": "smollm2", "prompt": "def add(a, b):", "max_tokens": 8},
    same_as="completions",
)
