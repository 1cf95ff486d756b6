"""Ollama's chat and generate as endpoints: their bodies to one request for the engine."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import msgspec

from ovserve.api.ollama.body import ChatRequest, GenerateRequest, Options, Shared, read_options
from ovserve.api.ollama.body import Message as Turn
from ovserve.api.ollama.writer import LINES, LineWriter
from ovserve.api.openai.body import decode_body
from ovserve.api.openai.common import SWITCHES, Effort, effort_variables, new_id
from ovserve.api.openai.logprobs import Pictures, joined, pictures_of
from ovserve.api.openai.messages import FunctionCall, Message, ToolCallItem, check_messages, template_message
from ovserve.api.openai.sampling import check_sampling, idle_fields, to_sampling
from ovserve.api.openai.structured import without_effect
from ovserve.api.openai.tools import check_model, function_tool, tool_policy
from ovserve.errors import InvalidArgument, UnsupportedParameter
from ovserve.llm import request as llm
from ovserve.llm.model import ModelContext
from ovserve.llm.prompt.fim import ending_middle, middle_prompt
from ovserve.llm.request import ToolPolicy

_chat_decoder = msgspec.json.Decoder(ChatRequest)
_generate_decoder = msgspec.json.Decoder(GenerateRequest)


@dataclass(frozen=True)
class Decoded:
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
            function_tool({"type": "function"} | tool, f"tools[{i}]")
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
            raise UnsupportedParameter(
                "template: templates are the graph's, chat_template_path", param="template"
            )
        if request.context:
            raise UnsupportedParameter("context: send the conversation to /api/chat", param="context")
        turns = [Turn("system", request.system)] if request.system else []
        turns.append(Turn("user", request.prompt, images=request.images))
        text = request.raw or request.suffix
        if text and (request.system or request.images):
            name = "system" if request.system else "images"
            raise InvalidArgument(f"{name}: not with raw or suffix, which use no chat template", param=name)
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
            raise InvalidArgument("prompt: expected at least one character, got none", param="prompt")
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
    ignored = tuple(sorted([*unknown, *options.unused, *without_effect(options.sampling)]))
    return Decoded(body, turns, options, ignored, tools)


def _conversation(decoded: Decoded, model: ModelContext, name: str) -> llm.GenerateRequest:
    if model.template is None:
        raise InvalidArgument("this model has no chat template; use /api/generate", param="messages")
    check_model(decoded.tools, model)  # none must be called
    images = pictures_of(model)
    messages = [template_message(m, i, images) for i, m in enumerate(_messages(decoded.turns, images))]
    kwargs, ignored = _thinking(decoded.body.think, model)
    if not decoded.turns:
        raise InvalidArgument("messages: expected at least one message, got none", param="messages")
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
    decoded: Decoded, model: ModelContext, name: str, ignored: tuple[str, ...] = (), **prompt: Any
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
    number = 0
    for i, turn in enumerate(turns):
        pieces = [
            (
                images.place(
                    _data_url(data), None, f"messages[{i}].images[{k}]", f"messages[{i}].images[{k}]", "image"
                ),
                True,
            )
            for k, data in enumerate(turn.images or ())
        ]
        calls = []
        for call in turn.tool_calls or ():
            number += 1
            id_ = call.id or f"call{number:05d}"  # nine characters, which some templates ask for
            open_calls.append(id_)
            arguments = call.function.arguments or {}
            if not isinstance(arguments, str):
                arguments = msgspec.json.encode(arguments).decode()
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


def _data_url(data: str) -> str:
    return data if data.startswith("data:") else f"data:;base64,{data}"


def _thinking(think: bool | Effort | None, model: ModelContext) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return variables of the template, and `think` if it reads none of them."""
    assert model.template is not None, "checked before"
    if think is None:
        return {}, ()
    if not isinstance(think, bool):
        kwargs, ignored = effort_variables(think, model, None, "think")
        return kwargs, tuple(ignored)
    kwargs = {name: think for name in SWITCHES if model.template.mentions(name)}
    return kwargs, () if kwargs or not think else ("think",)
