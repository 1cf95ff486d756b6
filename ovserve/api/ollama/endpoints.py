"""Ollama's chat and generate as endpoints: their bodies to one request for the engine, and their answers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from ovserve.access import current_request
from ovserve.api.ollama.body import ChatRequest, GenerateRequest, Options, Shared, read_options
from ovserve.api.ollama.body import Message as Turn
from ovserve.api.openai.body import decode_body
from ovserve.api.openai.common import (
    UncertainCall,
    UsageCounter,
    arguments_of,
    effort_variables,
    encode,
    new_id,
    rfc3339,
)
from ovserve.api.openai.logprobs import ChatTokenLogprob, Pictures, chat_logprobs, joined, pictures_of
from ovserve.api.openai.messages import (
    FunctionCall,
    Message,
    ToolCallItem,
    check_messages,
    data_url,
    json_text,
    template_message,
)
from ovserve.api.openai.sampling import check_sampling, idle_fields, to_sampling
from ovserve.api.openai.tools import check_model, function_tool, tool_policy
from ovserve.errors import InvalidArgument, UnsupportedParameter
from ovserve.llm import request as llm
from ovserve.llm.arrangement import call_ids
from ovserve.llm.fim import ending_middle, middle_prompt
from ovserve.llm.model import ModelContext
from ovserve.llm.output import Completion, Parsed, ToolCall
from ovserve.llm.request import TokenLogprob, ToolPolicy

_chat_decoder = msgspec.json.Decoder(ChatRequest)
_generate_decoder = msgspec.json.Decoder(GenerateRequest)


class Decoded(msgspec.Struct, frozen=True):
    body: Shared
    turns: list[Turn]  # none: the prompt is text
    options: Options
    ignored: tuple[str, ...]
    tools: ToolPolicy | None = None


class Chat:
    name = "api/chat"

    def decode(self, body: bytes) -> Decoded:
        request, unknown = decode_body(body, _chat_decoder)
        functions = [
            function_tool({**tool, "type": tool.get("type") or "function"}, f"tools[{i}]")
            for i, tool in enumerate(request.tools or ())
        ]
        policy = tool_policy(functions, None, None)
        turns = request.messages or []
        check_messages(_messages(turns, Pictures()))
        return _decoded(request, unknown, turns, policy)

    def to_request(self, decoded: Decoded, model: ModelContext) -> llm.GenerateRequest:
        return _conversation(decoded, model, self.name)

    def writer(self, request: llm.GenerateRequest) -> LineWriter:
        return LineWriter(request, chats=True)


class Generate:
    name = "api/generate"

    def decode(self, body: bytes) -> Decoded:
        request, unknown = decode_body(body, _generate_decoder)
        if request.template:
            raise UnsupportedParameter.at("template", "templates are the graph's, chat_template_path")
        if request.context:
            raise UnsupportedParameter.at("context", "send the conversation to /api/chat")
        turns = [Turn("system", request.system)] if request.system else []
        turns.append(Turn("user", request.prompt, images=request.images))
        text = request.raw or request.suffix
        if text and (request.system or request.images):
            raise InvalidArgument.at(
                "system" if request.system else "images", "not with raw or suffix, which use no chat template"
            )
        return _decoded(request, unknown, [] if text else turns, None)

    def to_request(self, decoded: Decoded, model: ModelContext) -> llm.GenerateRequest:
        body = decoded.body
        assert isinstance(body, GenerateRequest), "decode() made it"
        if decoded.turns and model.template is not None:
            return _conversation(decoded, model, self.name)
        prompt = body.prompt or ""
        if body.suffix:
            prompt = middle_prompt(model.fim, prompt, body.suffix)
        if not prompt:
            raise InvalidArgument.at("prompt", "expected at least one character, got none")
        ignored = ("think",) if body.think else ()
        request = _request(decoded, model, self.name, ignored, prompts=(prompt,), add_special_tokens=True)
        if not body.suffix:
            return request
        return msgspec.structs.replace(request, sampling=ending_middle(model.fim, request.sampling))

    def writer(self, request: llm.GenerateRequest) -> LineWriter:
        return LineWriter(request, chats=False)


def _decoded(
    body: Shared, unknown: dict[str, msgspec.Raw], turns: list[Turn], tools: ToolPolicy | None
) -> Decoded:
    options = read_options(body)
    check_sampling(options.sampling)
    ignored = tuple(sorted([*unknown, *options.unused, *options.sampling.answer_format.unenforced]))
    return Decoded(body, turns, options, ignored, tools)


def _conversation(decoded: Decoded, model: ModelContext, name: str) -> llm.GenerateRequest:
    if model.template is None:
        raise InvalidArgument("this model has no chat template; use /api/generate", param="messages")
    check_model(decoded.tools, model)  # none must be called
    images = pictures_of(model)
    messages = [template_message(m, i, images) for i, m in enumerate(_messages(decoded.turns, images))]
    kwargs, ignored = effort_variables(decoded.body.think, model, None, "think")
    if not decoded.turns:
        raise InvalidArgument.at("messages", "expected at least one message, got none")
    last = decoded.turns[-1]
    conversation = model.template.conversation(
        messages,
        kwargs,
        tools=decoded.tools.prompt_tools if decoded.tools is not None else None,
        continue_final_message=last.role == "assistant" and bool(last.content) and not last.tool_calls,
    )
    return _request(
        decoded,
        model,
        name,
        ignored,
        prompts=(),
        conversation=conversation,
        add_special_tokens=False,  # the template writes them
        image_sources=tuple(images.sources),
        file_sources=tuple(images.files),
        parts=lambda: model.parts(messages, kwargs, decoded.tools),
    )


def _request(
    decoded: Decoded, model: ModelContext, name: str, ignored: Sequence[str] = (), **prompt: Any
) -> llm.GenerateRequest:
    body, options = decoded.body, decoded.options
    max_tokens = model.max_tokens(options.max_tokens, "options.num_predict")
    ignored = (*ignored, *(f"options.{name}" for name in idle_fields(options.sampling, model)))
    context = options.max_context
    if context is not None and model.max_length is not None and context > model.max_length:
        ignored = (*ignored, "options.num_ctx")  # no request's context is above the graph's
    return llm.GenerateRequest(
        id=new_id("ollama-"),
        sampling=to_sampling(
            options.sampling,
            model,
            max_tokens,
            logprobs=bool(body.logprobs),
            top_logprobs=body.top_logprobs,
            max_context=context,
        ),
        presentation=llm.Presentation(
            endpoint=name,
            model=body.model,
            created=int(time.time()),
            stream=body.stream is not False,
            content_type=LINES,
            requested_max_tokens=options.max_tokens,
            top_logprobs=body.top_logprobs or 0,
            ignored_params=tuple(sorted([*decoded.ignored, *ignored])),
        ),
        tools=decoded.tools,
        **prompt,
    )


def _messages(turns: list[Turn], images: Pictures) -> list[Message]:
    """Return OpenAI's messages. Ids of calls are made up where they are missing, the same each time, so that
    the prompt of a conversation keeps its prefix."""
    messages: list[Message] = []
    open_calls: deque[str] = deque()
    free = call_ids({call.id for turn in turns for call in turn.tool_calls or ()})
    for i, turn in enumerate(turns):
        numbered = ((data, f"messages[{i}].images[{k}]") for k, data in enumerate(turn.images or ()))
        pieces = [(images.place(data_url(data), None, at, at, "image"), True) for data, at in numbered]
        calls = []
        for call in turn.tool_calls or ():
            id_ = call.id or next(free)
            open_calls.append(id_)
            arguments = json_text(call.function.arguments or {})
            calls.append(ToolCallItem(FunctionCall(call.function.name, arguments), id_))
        answered = turn.tool_call_id
        if turn.role == "tool" and answered is None and open_calls:
            answered = open_calls.popleft()
        messages.append(
            Message(
                turn.role,
                joined([*pieces, (turn.content or "", False)]),
                name=turn.tool_name,
                tool_calls=calls or None,
                tool_call_id=answered,
                reasoning_content=turn.thinking,
            )
        )
    return messages


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
    prompt_eval_cached_count: int | UnsetType = UNSET  # of it, found in the prefix cache, if that is known
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET


class LineWriter:
    """`chats`: the text stands in a message, else in `response`."""

    def __init__(self, request: llm.GenerateRequest, *, chats: bool) -> None:
        self._shown, self._chats = request.presentation, chats
        self._wants_logprobs = request.sampling.logprobs
        self._meter = UsageCounter()
        self._call = UncertainCall()

    # ---- as lines

    def chunk(self, parsed: Parsed) -> bytes:
        self._meter.add(parsed)
        certain = [self._call.take(part) for part in parsed.parts]
        if parsed.last:
            certain.append(self._call.end())
        calls = [call for call in certain if call is not None]
        out = b""
        content, thinking = parsed.content, parsed.reasoning
        if content or thinking or calls or (parsed.logprobs and self._wants_logprobs):
            out = encode(self._line(content, thinking, calls, parsed.logprobs)) + b"\n"
        if parsed.last:
            out += encode(self._end(self._line("", "", [], None), parsed.finish_reason, self._meter)) + b"\n"
        return out

    # ---- as one object

    def whole(self, completion: Completion) -> bytes:
        choice = completion.choices[0]
        line = self._line(choice.content, choice.reasoning, choice.tool_calls, choice.logprobs)
        return encode(self._end(line, choice.finish_reason, completion))

    # ---- both

    def _line(
        self, content: str, thinking: str, calls: list[ToolCall], logprobs: list[TokenLogprob] | None
    ) -> Line:
        line = Line(model=self._shown.model, created_at=rfc3339(time.time()))
        if logprobs and self._wants_logprobs:
            line.logprobs = chat_logprobs(logprobs, self._shown.top_logprobs).content
        if self._chats:
            line.message = AnswerMessage(content=content, thinking=thinking or UNSET)
            if calls:
                line.message.tool_calls = [
                    Call(call.id, CalledFunction(call.name, arguments_of(call))) for call in calls
                ]
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
        if counted.cached_tokens is not None:
            line.prompt_eval_cached_count = counted.cached_tokens
        line.prompt_eval_duration = max(1, int(first * NANOSECONDS_PER_SECOND))
        line.eval_duration = max(1, int((total - first) * NANOSECONDS_PER_SECOND))  # clients divide by it
        return line


def loaded(model: str, *, chats: bool) -> bytes:
    """Return the answer to a request that only asks for a model to be there."""
    line = Line(model=model, created_at=rfc3339(time.time()), done=True, done_reason="load")
    if chats:
        line.message = AnswerMessage()
    else:
        line.response = ""
    return encode(line)
