"""The answer of chat/completions: one body, or chunks. Built by `chat.py`, one writer per request.

A stream begins with a role chunk per choice, made of the admission, so that headers need not wait for the
prefill; the finish reason comes with the last text of its choice.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.api.openai.common import DONE, Usage, UsageCounter, chunk_usage, encode, event, usage_of
from ovserve.api.openai.logprobs import ChatLogprobs, chat_logprobs
from ovserve.llm.output import (
    Completion,
    Content,
    FoldedChoice,
    Parsed,
    Part,
    Reasoning,
    ToolCallBroken,
    ToolCallDelta,
)
from ovserve.llm.request import GenerateRequest


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
    function_call: Function | UnsetType = UNSET  # where the request has `functions`
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
    function_call: ChunkFunction | UnsetType = UNSET


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


_NOTHING = ChunkDelta()


class ChatWriter:
    def __init__(self, request: GenerateRequest) -> None:
        self._request, self._shown = request, request.presentation
        self._top = self._shown.top_logprobs
        self._fingerprint = self._shown.fingerprint or UNSET
        self._meter = UsageCounter()
        self._functions = self._shown.functions
        self._held = _HeldCalls() if self._functions else None

    def chunk(self, parsed: Parsed) -> bytes:
        self._meter.add(parsed)
        out = b""
        if parsed.prompt_tokens:
            for index in range(self._request.choices):
                role = ChunkDelta(role="assistant", content="")
                out += self._event([ChunkChoice(index=index, delta=role)])
        for choice in self._choices(parsed):
            out += self._event([choice])
        if parsed.last:
            if self._shown.include_usage:
                out += self._event([], self._meter.usage)
            out += DONE
        return out

    def _choices(self, parsed: Parsed) -> list[ChunkChoice]:
        """One chunk for each part. Log-probabilities go with the content, the finish reason with the last."""
        index = parsed.index
        held = self._held
        chunks = [
            ChunkChoice(index=index, delta=delta)
            for part in parsed.parts
            if (held is None or not isinstance(part, ToolCallDelta)) and (delta := _delta(part)) is not None
        ]
        if held is not None and (call := held.take(parsed)) is not None:
            chunks.append(ChunkChoice(index=index, delta=ChunkDelta(function_call=call)))
        if parsed.finish_reason is not None or parsed.logprobs:
            if not chunks:
                chunks.append(ChunkChoice(index=index, delta=ChunkDelta()))
            chunks[-1].finish_reason = self._reason(parsed.finish_reason)
            if parsed.logprobs:
                said = next((chunk for chunk in chunks if chunk.delta.content), chunks[-1])
                said.logprobs = chat_logprobs(parsed.logprobs, self._top)
        return chunks

    def _event(self, choices: list[ChunkChoice], usage: Usage | None = None) -> bytes:
        shown = self._shown
        counted = usage or chunk_usage(shown, self._meter)
        return event(
            ChatChunk(
                id=self._request.id,
                created=shown.created,
                model=shown.model,
                system_fingerprint=self._fingerprint,
                choices=choices,
                usage=counted,
            )
        )

    def whole(self, completion: Completion) -> bytes:
        shown = self._shown
        return encode(
            ChatResponse(
                id=self._request.id,
                created=shown.created,
                model=shown.model,
                system_fingerprint=self._fingerprint,
                choices=[self._choice(choice) for choice in completion.choices],
                usage=usage_of(completion),
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
            tool_calls=UNSET if self._functions else calls or UNSET,
            function_call=calls[0].function if self._functions and calls else UNSET,
        )
        logprobs = chat_logprobs(choice.logprobs, self._top) if self._request.sampling.logprobs else None
        return Choice(
            index=choice.index,
            message=message,
            logprobs=logprobs,
            finish_reason=self._reason(choice.finish_reason),
        )

    def _reason(self, reason: str | None) -> str | None:
        return "function_call" if self._functions and reason == "tool_calls" else reason


class _HeldCalls:
    """The call of each choice in the form of `functions`, sent at the end of the choice.

    The form has no index: a client could not distinguish a call that broke off from the next one.
    """

    def __init__(self) -> None:
        self._calls: dict[int, tuple[int, Function]] = {}  # by choice: the call's index, and the call

    def take(self, parsed: Parsed) -> ChunkFunction | None:
        choice = parsed.index
        for part in parsed.parts:
            if isinstance(part, ToolCallBroken) and self._calls.get(choice, (None,))[0] == part.index:
                del self._calls[choice]
            elif isinstance(part, ToolCallDelta):
                if part.id is not None:
                    self._calls[choice] = part.index, Function(name=part.name or "", arguments="")
                self._calls[choice][1].arguments += part.arguments
        if parsed.finish_reason is None or choice not in self._calls:
            return None
        _, call = self._calls.pop(choice)
        return ChunkFunction(name=call.name, arguments=call.arguments)


def _delta(part: Part) -> ChunkDelta | None:
    if isinstance(part, Content):
        return ChunkDelta(content=part.text)
    if isinstance(part, Reasoning):
        return ChunkDelta(reasoning_content=part.text)
    if isinstance(part, ToolCallDelta):
        return ChunkDelta(tool_calls=[_call(part)])
    return None  # a stream takes nothing back


def _call(piece: ToolCallDelta) -> ChunkToolCall:
    if piece.id is None:
        return ChunkToolCall(index=piece.index, function=ChunkFunction(arguments=piece.arguments))
    function = ChunkFunction(name=piece.name or "", arguments=piece.arguments)
    return ChunkToolCall(index=piece.index, id=piece.id, type="function", function=function)
