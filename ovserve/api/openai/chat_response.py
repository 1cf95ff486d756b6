"""The answer of chat/completions: one body, or chunks. Built by `chat.py`, one writer per request.

A stream begins with a role chunk per choice, made of the admission, so that headers need not wait for the
prefill; the finish reason comes with the last text of its choice.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.api.openai.common import (
    DONE,
    Usage,
    UsageCounter,
    chunk_usage,
    encode,
    event,
    stop_reason,
    usage_of,
)
from ovserve.api.openai.logprobs import ChatLogprobs, chat_logprobs
from ovserve.api.openai.tools import InputReader, input_of
from ovserve.llm.output import (
    Completion,
    Content,
    FoldedChoice,
    Parsed,
    Part,
    Reasoning,
    ToolCall,
    ToolCallBroken,
    ToolCallDelta,
)
from ovserve.llm.request import GenerateRequest


class Function(msgspec.Struct, kw_only=True):
    name: str
    arguments: str


class Custom(msgspec.Struct, kw_only=True):
    name: str
    input: str


class MessageToolCall(msgspec.Struct, kw_only=True):
    id: str
    type: str = "function"
    function: Function | UnsetType = UNSET
    custom: Custom | UnsetType = UNSET  # of type custom


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
    stop_reason: str | UnsetType = UNSET  # why an answer with the finish reason `length` is no longer


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


class ChunkCustom(msgspec.Struct, omit_defaults=True, gc=False):
    name: str | UnsetType = UNSET
    input: str | UnsetType = UNSET


class ChunkToolCall(msgspec.Struct, kw_only=True, gc=False):
    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: ChunkFunction | UnsetType = UNSET
    custom: ChunkCustom | UnsetType = UNSET


class ChunkDelta(msgspec.Struct, omit_defaults=True, gc=False):
    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ChunkToolCall] | UnsetType = UNSET
    function_call: ChunkFunction | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, kw_only=True, gc=False):
    index: int = 0
    delta: ChunkDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | UnsetType = UNSET


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
        self._begun = False
        self._functions = self._shown.functions
        self._held = _HeldCalls() if self._functions else None
        self._custom = _CustomCalls(self._shown.custom_tools) if self._shown.custom_tools else None

    def chunk(self, parsed: Parsed) -> bytes:
        self._meter.add(parsed)
        out = b""
        if not self._begun:
            self._begun = True
            for index in range(self._request.choices):
                # An empty text would begin a part of its own in the AI SDK, also before a call.
                role = ChunkDelta(role="assistant", content=None if self._request.tools else "")
                out += self._event([ChunkChoice(index=index, delta=role)])
        for choice in self._choices(parsed):
            out += self._event([choice])
        if parsed.last:
            if self._shown.include_usage:
                out += self._event([], usage_of(self._meter))
            out += DONE
        return out

    def _choices(self, parsed: Parsed) -> list[ChunkChoice]:
        """One chunk for each part. Log-probabilities go with the content, the finish reason with the last."""
        index = parsed.index
        held = self._held
        if self._custom is not None:
            return self._with_reason(parsed, self._custom.deltas(parsed))
        chunks: list[ChunkChoice] = []
        for part in parsed.parts:  # no comprehension, which is one more call per token
            if held is not None and isinstance(part, ToolCallDelta):
                continue
            if (delta := _delta(part)) is not None:
                chunks.append(ChunkChoice(index=index, delta=delta))
        if held is not None and (call := held.take(parsed)) is not None:
            chunks.append(ChunkChoice(index=index, delta=ChunkDelta(function_call=call)))
        return self._with_reason(parsed, chunks)

    def _with_reason(self, parsed: Parsed, chunks: list[ChunkChoice]) -> list[ChunkChoice]:
        if parsed.finish_reason is not None or parsed.logprobs:
            if not chunks:
                chunks.append(ChunkChoice(index=parsed.index, delta=ChunkDelta()))
            chunks[-1].finish_reason = self._reason(parsed.finish_reason)
            chunks[-1].stop_reason = stop_reason(parsed)
            if parsed.logprobs:
                chunk_with_text = next((chunk for chunk in chunks if chunk.delta.content), chunks[-1])
                chunk_with_text.logprobs = chat_logprobs(parsed.logprobs, self._top)
        return chunks

    def _event(self, choices: list[ChunkChoice], usage: Usage | None = None) -> bytes:
        presentation = self._shown
        counted = usage or chunk_usage(presentation, self._meter)
        return event(
            ChatChunk(
                id=self._request.id,
                created=presentation.created,
                model=presentation.model,
                system_fingerprint=self._fingerprint,
                choices=choices,
                usage=counted,
            )
        )

    def whole(self, completion: Completion) -> bytes:
        presentation = self._shown
        return encode(
            ChatResponse(
                id=self._request.id,
                created=presentation.created,
                model=presentation.model,
                system_fingerprint=self._fingerprint,
                choices=[self._choice(choice) for choice in completion.choices],
                usage=usage_of(completion),
            )
        )

    def _choice(self, choice: FoldedChoice) -> Choice:
        calls = [_whole_call(call, self._shown.custom_tools) for call in choice.tool_calls]
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
            stop_reason=stop_reason(choice),
        )

    def _reason(self, reason: str | None) -> str | None:
        return "function_call" if self._functions and reason == "tool_calls" else reason


class _CustomCalls:
    """The calls of a stream, of which those of custom tools have their input as text."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._open: dict[int, tuple[int, InputReader]] = {}  # by choice: the call's index, and its reader

    def deltas(self, parsed: Parsed) -> list[ChunkChoice]:
        deltas: list[ChunkDelta] = []
        for part in parsed.parts:
            if isinstance(part, ToolCallDelta):
                deltas += self._call(parsed.index, part)
            elif (delta := _delta(part)) is not None:
                deltas += [*self._end(parsed.index), delta]
        if parsed.finish_reason is not None:
            deltas += self._end(parsed.index)
        return [ChunkChoice(index=parsed.index, delta=delta) for delta in deltas]

    def _call(self, choice: int, piece: ToolCallDelta) -> list[ChunkDelta]:
        ended: list[ChunkDelta] = []
        if piece.id is not None:
            ended = self._end(choice)
            if piece.name in self._names:
                self._open[choice] = piece.index, InputReader()
        if choice not in self._open:
            return [*ended, ChunkDelta(tool_calls=[_call(piece)])]
        text = self._open[choice][1].feed(piece.arguments)
        if piece.id is not None:
            custom = ChunkCustom(name=piece.name or "", input=text)
            begins = ChunkToolCall(index=piece.index, id=piece.id, type="custom", custom=custom)
            return [*ended, ChunkDelta(tool_calls=[begins])]
        return [*ended, *_more_input(piece.index, text)]

    def _end(self, choice: int) -> list[ChunkDelta]:
        index, reader = self._open.pop(choice, (0, None))
        return [] if reader is None else _more_input(index, reader.finish())


def _more_input(index: int, text: str) -> list[ChunkDelta]:
    call = ChunkToolCall(index=index, custom=ChunkCustom(input=text))
    return [ChunkDelta(tool_calls=[call])] if text else []


def _whole_call(call: ToolCall, custom: frozenset[str]) -> MessageToolCall:
    if call.name in custom:
        custom_call = Custom(name=call.name, input=input_of(call.arguments))
        return MessageToolCall(id=call.id, type="custom", custom=custom_call)
    return MessageToolCall(id=call.id, function=Function(name=call.name, arguments=call.arguments))


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
