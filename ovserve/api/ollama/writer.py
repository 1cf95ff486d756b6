"""The answers of Ollama's chat and generate: one object, or a line of JSON per piece.

The two differ in where the text stands. A call goes out when it is certain, because clients carry out what
they read (the rules are in llm/output.py). Times are nanoseconds since the request came.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.access import current_request
from ovserve.api.openai.common import UsageCounter, encode
from ovserve.api.openai.logprobs import ChatTokenLogprob, chat_logprobs
from ovserve.llm import output as parts
from ovserve.llm.output import Completion, Parsed, ToolCall
from ovserve.llm.request import GenerateRequest, TokenLogprob

LINES = "application/x-ndjson"
NANOSECONDS_PER_SECOND = 1_000_000_000


class CalledFunction(msgspec.Struct):
    name: str
    arguments: dict[str, Any]


class Call(msgspec.Struct):
    id: str
    function: CalledFunction


class AnswerMessage(msgspec.Struct, kw_only=True):
    role: str = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[Call] | UnsetType = UNSET


class Line(msgspec.Struct, kw_only=True):
    """One object of either answer: a piece, or with `done` the end with its counts."""

    model: str
    created_at: str
    message: AnswerMessage | UnsetType = UNSET  # of chat
    response: str | UnsetType = UNSET  # of generate
    thinking: str | UnsetType = UNSET  # of generate
    logprobs: list[ChatTokenLogprob] | UnsetType = UNSET
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


def now() -> str:
    """Return the time in RFC 3339, as Go's clients and pydantic read it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")


class LineWriter:
    """`chats`: the text stands in a message, else in `response`."""

    def __init__(self, request: GenerateRequest, *, chats: bool) -> None:
        self._shown, self._chats = request.presentation, chats
        self._wants_logprobs = request.sampling.logprobs
        self._meter = UsageCounter()
        self._call: ToolCall | None = None  # the one that is not certain yet

    # ---- as lines

    def chunk(self, parsed: Parsed) -> bytes:
        self._meter.add(parsed)
        calls: list[ToolCall] = []
        for part in parsed.parts:
            match part:
                case parts.ToolCallDelta():
                    self._piece(part, calls)
                case parts.ToolCallBroken():
                    self._call = None
                case _:
                    self._certain(calls)
        if parsed.last:
            self._certain(calls)
        out = b""
        content, thinking = parsed.content, parsed.reasoning
        if content or thinking or calls or (parsed.logprobs and self._wants_logprobs):
            out = encode(self._line(content, thinking, calls, parsed.logprobs)) + b"\n"
        if parsed.last:
            out += encode(self._end(self._line("", "", [], None), parsed.finish_reason, self._meter)) + b"\n"
        return out

    def _piece(self, piece: parts.ToolCallDelta, calls: list[ToolCall]) -> None:
        if piece.id is not None:
            self._certain(calls)
            self._call = ToolCall(piece.id, piece.name or "", "")
        assert self._call is not None, "the first piece of a call has its id"
        self._call.arguments += piece.arguments

    def _certain(self, calls: list[ToolCall]) -> None:
        if self._call is not None:
            calls.append(self._call)
            self._call = None

    # ---- as one object

    def whole(self, completion: Completion) -> bytes:
        choice = completion.choices[0]
        line = self._line(choice.content, choice.reasoning, choice.tool_calls, choice.logprobs)
        return encode(self._end(line, choice.finish_reason, completion))

    # ---- both

    def _line(
        self, content: str, thinking: str, calls: list[ToolCall], logprobs: list[TokenLogprob] | None
    ) -> Line:
        line = Line(model=self._shown.model, created_at=now())
        if logprobs and self._wants_logprobs:
            line.logprobs = chat_logprobs(logprobs, self._shown.top_logprobs).content
        if self._chats:
            line.message = AnswerMessage(content=content, thinking=thinking or UNSET)
            if calls:
                line.message.tool_calls = [_call(call) for call in calls]
        else:
            line.response, line.thinking = content, thinking or UNSET
        return line

    def _end(self, line: Line, reason: str | None, counted: UsageCounter | Completion) -> Line:
        request = current_request()
        total = time.monotonic() - request.started
        first = request.first_token if request.first_token is not None else total
        line.done, line.done_reason = True, "length" if reason == "length" else "stop"
        line.total_duration, line.load_duration = int(total * NANOSECONDS_PER_SECOND), 0
        line.prompt_eval_count, line.eval_count = counted.prompt_tokens, counted.completion_tokens
        line.prompt_eval_duration = max(1, int(first * NANOSECONDS_PER_SECOND))
        line.eval_duration = max(1, int((total - first) * NANOSECONDS_PER_SECOND))  # clients divide by it
        return line


def _call(call: ToolCall) -> Call:
    """Arguments must be an object; what the model wrote otherwise is kept as text, not lost."""
    try:
        value = msgspec.json.decode(call.arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        value = None
    arguments = value if isinstance(value, dict) else {"unparsed": call.arguments}
    return Call(call.id, CalledFunction(call.name, arguments))


def loaded(model: str, *, chats: bool) -> bytes:
    """Return the answer to a request that only asks for a model to be there."""
    line = Line(model=model, created_at=now(), done=True, done_reason="load")
    if chats:
        line.message = AnswerMessage()
    else:
        line.response = ""
    return encode(line)
