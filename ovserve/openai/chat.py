"""POST chat/completions: request and response bodies, and their mapping. Reached through `ENDPOINTS`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ovserve.errors import InvalidArgument, UnsupportedParameter
from ovserve.llm.model import ModelContext
from ovserve.llm.output import Folded, Parsed
from ovserve.llm.request import GenerateRequest
from ovserve.openai.body import decode_body, refuse_unsupported
from ovserve.openai.common import DONE, Usage, encode, event, folded_usage, new_id, usage_of
from ovserve.openai.sampling import UNSUPPORTED, Count, SamplingFields, check_sampling, to_sampling

ROLES = ("system", "developer", "user", "assistant", "tool")


class Part(msgspec.Struct):
    type: str
    text: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None


class ChatRequest(SamplingFields, kw_only=True):
    model: str
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    chat_template_kwargs: dict[str, Any] | None = None


CHAT_UNSUPPORTED: dict[str, tuple[Any, ...]] = UNSUPPORTED | {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}

_decoder = msgspec.json.Decoder(ChatRequest)


@dataclass(frozen=True)
class Decoded:
    body: ChatRequest
    ignored: tuple[str, ...]


class ChatCompletions:
    """The endpoint."""

    name = "chat/completions"

    def decode(self, body: bytes) -> Decoded:
        request, unknown = decode_body(body, _decoder)
        refuse_unsupported(unknown, CHAT_UNSUPPORTED)
        check_sampling(request)
        for i, message in enumerate(request.messages):
            if message.role not in ROLES:
                param = f"messages[{i}].role"
                raise InvalidArgument(
                    f"{param}: expected one of {', '.join(ROLES)}, got {message.role!r}", param=param
                )
        return Decoded(request, tuple(sorted(unknown)))

    def to_request(self, decoded: Decoded, model: ModelContext) -> GenerateRequest:
        body = decoded.body
        if model.template is None:
            raise InvalidArgument("this model has no chat template; use completions", param="messages")
        field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        requested = getattr(body, field)
        max_tokens = model.max_tokens(requested, field)
        prompt = model.template.render(
            [_plain(m, i) for i, m in enumerate(body.messages)], body.chat_template_kwargs
        )
        return GenerateRequest(
            id=new_id("chatcmpl-"),
            model=body.model,
            created=int(time.time()),
            endpoint=self.name,
            prompt=prompt,
            add_special_tokens=False,  # the template writes them
            sampling=to_sampling(body, model, max_tokens),
            stream=bool(body.stream),
            include_usage=body.include_usage,
            requested_max_tokens=requested,
            ignored_params=decoded.ignored,
        )

    def writer(self, request: GenerateRequest) -> ChatWriter:
        return ChatWriter(request)


def _plain(message: Message, index: int) -> dict[str, Any]:
    """A message as templates of text models expect it: content is one string."""
    where = f"messages[{index}]"
    if message.tool_calls:
        raise UnsupportedParameter(
            f"{where}.tool_calls: not supported by this server", param=f"{where}.tool_calls"
        )
    content = message.content
    if isinstance(content, list):
        texts = []
        for i, part in enumerate(content):
            param = f"{where}.content[{i}]"
            if part.type != "text":
                raise InvalidArgument(
                    f"{param}.type: this model takes text only, got {part.type!r}", param=f"{param}.type"
                )
            if part.text is None:
                raise InvalidArgument(f"{param}.text: required, but missing", param=f"{param}.text")
            texts.append(part.text)
        content = "\n".join(texts)
    plain: dict[str, Any] = {"role": message.role, "content": content or ""}
    if message.name is not None:
        plain["name"] = message.name
    return plain


class ResponseMessage(msgspec.Struct, kw_only=True):
    role: str = "assistant"
    content: str
    refusal: None = None


class Choice(msgspec.Struct, kw_only=True):
    index: int = 0
    message: ResponseMessage
    logprobs: None = None
    finish_reason: str | None


class ChatResponse(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage


class ChunkDelta(msgspec.Struct, omit_defaults=True, gc=False):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True, gc=False):
    index: int = 0
    delta: ChunkDelta
    logprobs: None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct, kw_only=True, gc=False):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class ChatWriter:
    """The answer: a role chunk, content chunks, the last of them with the finish reason, usage if asked."""

    def __init__(self, request: GenerateRequest) -> None:
        self._request = request
        self._usage: UnsetType | None = None if request.include_usage else UNSET
        self._prompt_tokens = 0
        self._completion_tokens = 0

    def chunk(self, parsed: Parsed) -> bytes:
        if parsed.prompt_tokens:
            self._prompt_tokens = parsed.prompt_tokens
            out = self._event([ChunkChoice(delta=ChunkDelta(role="assistant", content=""))])
            if not parsed.tokens and parsed.finish_reason is None:
                return out
        else:
            out = b""
        self._completion_tokens += parsed.tokens
        if parsed.content or parsed.finish_reason is not None:
            delta = ChunkDelta(content=parsed.content) if parsed.content else ChunkDelta()
            out += self._event([ChunkChoice(delta=delta, finish_reason=parsed.finish_reason)])
        if parsed.finish_reason is not None:
            if self._request.include_usage:
                out += self._event([], usage_of(self._prompt_tokens, self._completion_tokens))
            out += DONE
        return out

    def _event(self, choices: list[ChunkChoice], usage: Usage | None = None) -> bytes:
        request = self._request
        return event(
            ChatChunk(
                id=request.id,
                created=request.created,
                model=request.model,
                choices=choices,
                usage=usage or self._usage,
            )
        )

    def whole(self, folded: Folded) -> bytes:
        request = self._request
        message = ResponseMessage(content=folded.content)
        return encode(
            ChatResponse(
                id=request.id,
                created=request.created,
                model=request.model,
                choices=[Choice(message=message, finish_reason=folded.finish_reason)],
                usage=folded_usage(folded),
            )
        )
