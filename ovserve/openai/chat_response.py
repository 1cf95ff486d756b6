"""The answer of chat/completions: one body, or chunks. Built by `chat.py`, one writer per request.

A stream begins with a role chunk per choice, made of the admission, so that headers need not wait for the
prefill; the finish reason comes with the last text of its choice.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.llm.output import Folded, FoldedChoice, Parsed, ToolCallDelta
from ovserve.llm.request import GenerateRequest
from ovserve.openai.common import DONE, Meter, Usage, chunk_usage, encode, event, usage_of
from ovserve.openai.logprobs import ChatLogprobs, chat_logprobs


class Function(msgspec.Struct, kw_only=True):
    name: str
    arguments: str


class MessageToolCall(msgspec.Struct, kw_only=True):
    id: str
    type: str = "function"
    function: Function


class ResponseMessage(msgspec.Struct, kw_only=True):
    role: str = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[MessageToolCall] | UnsetType = UNSET
    refusal: None = None


class Choice(msgspec.Struct, kw_only=True):
    index: int
    message: ResponseMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None


class ChatResponse(msgspec.Struct, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    system_fingerprint: str | UnsetType = UNSET
    choices: list[Choice]
    usage: Usage


class ChunkFunction(msgspec.Struct, omit_defaults=True, gc=False):
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ChunkToolCall(msgspec.Struct, kw_only=True, gc=False):
    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: ChunkFunction


class ChunkDelta(msgspec.Struct, omit_defaults=True, gc=False):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ChunkToolCall] | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True, gc=False):
    index: int = 0
    delta: ChunkDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatChunk(msgspec.Struct, kw_only=True, gc=False):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str | UnsetType = UNSET
    choices: list[ChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class ChatWriter:
    def __init__(self, request: GenerateRequest) -> None:
        self._request = request
        self._top = request.top_logprobs
        self._fingerprint = request.fingerprint or UNSET
        self._meter = Meter()

    def chunk(self, parsed: Parsed) -> bytes:
        self._meter.add(parsed)
        out = b""
        if parsed.prompt_tokens:
            for index in range(self._request.choices):
                role = ChunkDelta(role="assistant", content="")
                out += self._event([ChunkChoice(index=index, delta=role)])
        delta = _delta(parsed)
        if delta is not None or parsed.finish_reason is not None or parsed.logprobs:
            logprobs = chat_logprobs(parsed.logprobs, self._top) if parsed.logprobs else None
            choice = ChunkChoice(
                index=parsed.index,
                delta=delta or ChunkDelta(),
                logprobs=logprobs,
                finish_reason=parsed.finish_reason,
            )
            out += self._event([choice])
        if parsed.last:
            if self._request.include_usage:
                out += self._event([], self._meter.usage)
            out += DONE
        return out

    def _event(self, choices: list[ChunkChoice], usage: Usage | None = None) -> bytes:
        request = self._request
        shown = usage or chunk_usage(request, self._meter)
        return event(
            ChatChunk(
                id=request.id,
                created=request.created,
                model=request.model,
                system_fingerprint=self._fingerprint,
                choices=choices,
                usage=shown,
            )
        )

    def whole(self, folded: Folded) -> bytes:
        request = self._request
        return encode(
            ChatResponse(
                id=request.id,
                created=request.created,
                model=request.model,
                system_fingerprint=self._fingerprint,
                choices=[self._choice(choice) for choice in folded.choices],
                usage=usage_of(folded),
            )
        )

    def _choice(self, choice: FoldedChoice) -> Choice:
        calls = [
            MessageToolCall(id=c.id, function=Function(name=c.name, arguments=c.arguments))
            for c in choice.tool_calls
        ]
        message = ResponseMessage(
            content=None if calls and not choice.content else choice.content,
            reasoning_content=choice.reasoning or UNSET,
            tool_calls=calls or UNSET,
        )
        logprobs = chat_logprobs(choice.logprobs, self._top) if self._request.sampling.logprobs else None
        return Choice(
            index=choice.index, message=message, logprobs=logprobs, finish_reason=choice.finish_reason
        )


def _delta(parsed: Parsed) -> ChunkDelta | None:
    if not (parsed.content or parsed.reasoning or parsed.tool_calls):
        return None
    return ChunkDelta(
        content=parsed.content or UNSET,
        reasoning_content=parsed.reasoning or UNSET,
        tool_calls=[_call(piece) for piece in parsed.tool_calls] or UNSET,
    )


def _call(piece: ToolCallDelta) -> ChunkToolCall:
    if piece.id is None:
        return ChunkToolCall(index=piece.index, function=ChunkFunction(arguments=piece.arguments))
    function = ChunkFunction(name=piece.name or "", arguments=piece.arguments)
    return ChunkToolCall(index=piece.index, id=piece.id, type="function", function=function)
