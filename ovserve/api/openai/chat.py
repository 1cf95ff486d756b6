"""POST chat/completions: the request's body and its mapping. The answer is `chat_response.py`.

`functions`, `function_call` and the role `function` are OpenAI's form from before it had tools. A request in
that form becomes one with tools when it is decoded, and `chat_response.py` writes its answer in
that form again. A function is called at most once: the form has no place for more.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ovserve.api.openai.body import decode_body, refuse_unsupported
from ovserve.api.openai.chat_response import ChatChunk, ChatResponse, ChatWriter
from ovserve.api.openai.common import (
    BUDGET,
    DOC,
    MESSAGE,
    BudgetOrNone,
    ReasoningOptions,
    effort_variables,
    narrow_budget,
    narrow_effort,
    new_id,
    reasoning_budget,
)
from ovserve.api.openai.logprobs import pictures_of
from ovserve.api.openai.messages import (
    Message,
    ToolCallItem,
    check_messages,
    loosen_messages,
    template_message,
)
from ovserve.api.openai.operation import NaturalOrMinusOne, Operation, Override, Refused, TopCount, doc
from ovserve.api.openai.sampling import (
    DEFAULTS,
    FIXED_DEFAULTS,
    MAX_TOKENS,
    UNSUPPORTED,
    StreamFields,
    check_sampling,
    check_stream_options,
    idle_fields,
    narrow_length,
    narrow_sampling,
    to_sampling,
)
from ovserve.api.openai.tools import (
    FIELDS,
    ToolChoice,
    check_model,
    custom_function,
    function_tool,
    narrow_tools,
    tool_policy,
)
from ovserve.errors import InvalidArgument
from ovserve.llm.arrangement import Effort
from ovserve.llm.model import ModelContext
from ovserve.llm.request import GenerateRequest, Presentation, ToolPolicy


def function_policy(functions: list[dict[str, Any]] | None, choice: ToolChoice) -> ToolPolicy | None:
    """The policy of `functions` and `function_call`. Raises InvalidArgument naming them as the client did."""
    tools = [
        function_tool({**function, "type": "function"}, f"functions[{i}]")
        for i, function in enumerate(functions or ())
    ]
    tool_choice = {"type": "function", **choice} if isinstance(choice, dict) else choice
    try:
        return tool_policy(tools, tool_choice, parallel=False)
    except InvalidArgument as exc:
        texts = [
            (text or "").replace("tool_choice", "function_call").replace("tools", "functions")
            for text in (exc.message, exc.param)
        ]
        raise InvalidArgument(texts[0], param=texts[1]) from None


def in_tools_form(messages: list[Message]) -> list[Message]:
    """The same messages with calls and their answers as tools have them. Raises InvalidArgument."""
    converted: list[Message] = []
    call_id = None  # of the last call
    for i, message in enumerate(messages):
        if message.function_call is not None:
            if message.tool_calls:
                raise InvalidArgument.at(f"messages[{i}].function_call", "only allowed without tool_calls")
            call_id = f"call_{i}"
            calls = [ToolCallItem(message.function_call, call_id)]
            message = msgspec.structs.replace(message, tool_calls=calls, function_call=None)
        elif message.role == "function":
            if not message.name:
                raise InvalidArgument.at(f"messages[{i}].name", "required, but missing")
            message = msgspec.structs.replace(message, role="tool", tool_call_id=call_id or f"call_{i}")
        converted.append(message)
    return converted


class ChatRequest(StreamFields, kw_only=True):
    model: Annotated[str, doc("the name under which a graph is served")]
    messages: Annotated[Annotated[list[Message], Meta(min_length=1)], doc("the conversation")]
    max_tokens: Annotated[NaturalOrMinusOne | None, doc(MAX_TOKENS + "; -1: no bound")] = None
    max_completion_tokens: Annotated[
        NaturalOrMinusOne | None, doc("the newer name of max_tokens; wins over it")
    ] = None
    user: Annotated[str | None, doc("users share a full engine fairly")] = None
    logprobs: Annotated[bool | None, doc("of each token, streamed too")] = None
    top_logprobs: Annotated[
        TopCount | None,
        doc(
            "above 0 with logprobs: true only; above 1 with the paged engine only: others know the chosen "
            "token"
        ),
    ] = None
    add_generation_prompt: Annotated[
        bool | None, doc("false: the prompt ends without the header of an answer")
    ] = None
    continue_final_message: Annotated[
        bool | None, doc("the answer continues the last message; excludes add_generation_prompt: true")
    ] = None
    tools: Annotated[
        list[dict[str, Any]] | None,
        doc(
            "functions the model may call: unique names, parameters a JSON schema of an object; custom "
            "tools, whose regex is enforced and whose lark grammar is described to the model and reported"
        ),
    ] = None
    tool_choice: Annotated[
        str | dict[str, Any] | None,
        doc("none, auto, required, one function, or allowed_tools with a mode"),
    ] = None
    parallel_tool_calls: Annotated[bool | None, doc("false: one call at most")] = None
    functions: Annotated[
        list[dict[str, Any]] | None,
        doc("the older form of tools, which it excludes"),
    ] = None
    function_call: Annotated[
        str | dict[str, Any] | None,
        doc("with functions: none, auto, required, or the name of one in an object"),
    ] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, doc("variables for the chat template; not those the server sets")
    ] = None
    reasoning_effort: Annotated[Effort | None, doc(DOC)] = None
    reasoning: Annotated[ReasoningOptions | None, doc("OpenRouter's form of effort and budget")] = None
    reasoning_budget: Annotated[BudgetOrNone | None, doc(f"{BUDGET}; -1: no bound")] = None
    thinking_budget_tokens: Annotated[BudgetOrNone | None, doc("llama.cpp's name of reasoning_budget")] = None
    thinking_token_budget: Annotated[BudgetOrNone | None, doc("vLLM's name of reasoning_budget")] = None
    reasoning_budget_message: Annotated[
        Annotated[str, Meta(max_length=1024)] | None,
        doc("written at the end of reasoning that has reached its budget"),
    ] = None

    @property
    def effort(self) -> tuple[Effort | None, str]:
        """The effort and the field that sets it."""
        if self.reasoning is not None and self.reasoning.effort is not None:
            return self.reasoning.effort, "reasoning.effort"
        return self.reasoning_effort, "reasoning_effort"

    @property
    def budgets(self) -> dict[str, int | None]:
        nested = self.reasoning.max_tokens if self.reasoning is not None else None
        return {name: getattr(self, name) for name in BUDGETS} | {"reasoning.max_tokens": nested}


BUDGETS = ("reasoning_budget", "thinking_budget_tokens", "thinking_token_budget")

CHAT_UNSUPPORTED: dict[str, Refused] = UNSUPPORTED | {
    "modalities": Refused("the server answers with text only", (["text"],)),
    "audio": Refused("the server answers with text only"),
}

_decoder = msgspec.json.Decoder(ChatRequest)


def _narrow(model: ModelContext) -> dict[str, Override]:
    narrowed = narrow_sampling(model) | narrow_length(model, "max_tokens", "max_completion_tokens")
    narrowed |= narrow_tools(model)
    narrowed |= narrow_effort(model, "reasoning_effort") | narrow_effort(model, "reasoning.effort")
    narrowed |= narrow_budget(model, *BUDGETS, MESSAGE, "reasoning.max_tokens")
    return narrowed


OPERATION = Operation(
    "POST",
    "/v3/chat/completions",
    "Continue a conversation, rendered by the model's chat template.",
    answer=ChatResponse,
    event=ChatChunk,
    request=ChatRequest,
    example={"model": "smollm2", "messages": [{"role": "user", "content": "Say hello"}], "max_tokens": 8},
    refused=CHAT_UNSUPPORTED,
    defaults=DEFAULTS
    | FIXED_DEFAULTS
    | {
        "logprobs": False,
        "top_logprobs": 0,
        "add_generation_prompt": True,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
    },
    specialize=_narrow,
    needs_template=True,
)


class DecodedChat(msgspec.Struct, frozen=True):
    body: ChatRequest
    tools: ToolPolicy | None
    ignored: tuple[str, ...]
    custom: frozenset[str] = frozenset()  # names of custom tools


class ChatCompletions:
    name = "chat/completions"

    def decode(self, body: bytes) -> DecodedChat:
        request, unknown = decode_body(body, _decoder, loosen_messages)
        refuse_unsupported(unknown, CHAT_UNSUPPORTED)
        check_sampling(request)
        check_stream_options(request)
        dropped = check_messages(request.messages)
        _check_chat(request)
        request.messages = in_tools_form(request.messages)
        policy = _policy(request, dropped)
        unenforced = policy.unenforced if policy is not None else ()
        ignored = tuple(sorted([*unknown, *dropped, *unenforced, *request.answer_format.unenforced]))
        custom = (tool.get("custom", tool) for tool in request.tools or () if tool.get("type") == "custom")
        return DecodedChat(request, policy, ignored, frozenset(tool["name"] for tool in custom))

    def to_request(self, decoded: DecodedChat, model: ModelContext) -> GenerateRequest:
        body = decoded.body
        if model.template is None:
            raise InvalidArgument("this model has no chat template; use completions", param="messages")
        unenforced = check_model(decoded.tools, model)
        field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
        requested = getattr(body, field)
        max_tokens = model.max_tokens(requested, field)
        images = pictures_of(model)
        messages = [template_message(m, i, images) for i, m in enumerate(body.messages)]
        template_variables = body.chat_template_kwargs
        effort, effort_field = body.effort
        kwargs, ignored = effort_variables(effort, model, template_variables, effort_field)
        budget, idle = reasoning_budget(body.budgets, model, body.reasoning_budget_message)
        ignored += [*idle, *idle_fields(body, model), *unenforced]
        conversation = model.template.conversation(
            messages,
            kwargs,
            tools=decoded.tools.prompt_tools if decoded.tools is not None else None,
            add_generation_prompt=body.add_generation_prompt is not False and not body.continue_final_message,
            continue_final_message=bool(body.continue_final_message),
        )
        return GenerateRequest(
            id=new_id("chatcmpl-"),
            prompts=(),
            conversation=conversation,
            add_special_tokens=False,  # the template writes them
            sampling=to_sampling(
                body,
                model,
                max_tokens,
                logprobs=bool(body.logprobs),
                top_logprobs=body.top_logprobs,
                reasoning_budget=budget,
            ),
            presentation=Presentation(
                endpoint=self.name,
                model=body.model,
                created=int(time.time()),
                stream=bool(body.stream),
                include_usage=body.include_usage,
                continuous_usage=body.continuous_usage,
                requested_max_tokens=requested,
                top_logprobs=body.top_logprobs or 0,
                functions=body.functions is not None,
                custom_tools=decoded.custom,
                ignored_params=tuple(sorted([*decoded.ignored, *ignored])),
            ),
            tools=decoded.tools,
            user=body.user or "",
            image_sources=tuple(images.sources),
            file_sources=tuple(images.files),
            parts=lambda: model.parts(messages, kwargs, decoded.tools),
        )

    def writer(self, request: GenerateRequest) -> ChatWriter:
        return ChatWriter(request)


def _policy(body: ChatRequest, unenforced: list[str]) -> ToolPolicy | None:
    if body.functions is not None or body.function_call is not None:
        for name in FIELDS:
            if getattr(body, name) is not None:
                raise InvalidArgument.at(name, "only allowed without functions")
        return function_policy(body.functions, body.function_call)
    functions = [
        custom_function(tool, f"tools[{i}]", unenforced)
        if tool.get("type") == "custom"
        else function_tool(tool, f"tools[{i}]")
        for i, tool in enumerate(body.tools or ())
    ]
    return tool_policy(functions, body.tool_choice, body.parallel_tool_calls)


def _check_chat(body: ChatRequest) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        if getattr(body, name) == 0:
            raise InvalidArgument.at(name, "expected -1, or 1 or more, got 0")
    if body.top_logprobs and not body.logprobs:
        raise InvalidArgument.at("top_logprobs", "only allowed with logprobs: true")
    if body.reasoning_effort is not None and body.effort[1] != "reasoning_effort":
        raise InvalidArgument.at(
            "reasoning_effort",
            f"{body.reasoning_effort} and reasoning.effort: {body.effort[0]} exclude each other",
        )
    if body.continue_final_message and body.add_generation_prompt:
        raise InvalidArgument.at("continue_final_message", "true excludes add_generation_prompt: true")
