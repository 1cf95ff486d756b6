"""POST messages: the request's mapping; and the prompt of messages/count_tokens, which is the same one.

The answer is `writer.py`. A conversation that ends with the assistant is continued where it ends.

Anthropic's tools and tool_choice become a policy like that of OpenAI's bodies.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from ovserve.api.anthropic.answer import TokenCount
from ovserve.api.anthropic.body import CountRequest, MessagesRequest, check_stops
from ovserve.api.anthropic.history import loosen_blocks, to_messages
from ovserve.api.anthropic.writer import MessagesWriter
from ovserve.api.openai.body import decode_body
from ovserve.api.openai.common import encode, new_id
from ovserve.api.openai.effort import EFFORT_VARIABLE, SWITCHES, reasoning_budget
from ovserve.api.openai.images import Pictures, pictures_of
from ovserve.api.openai.messages import Message, template_message
from ovserve.api.openai.sampling import SamplingFields, to_sampling
from ovserve.api.openai.structured import without_effect
from ovserve.api.openai.tools import check_model, function_tool, tool_policy
from ovserve.errors import InvalidArgument
from ovserve.llm.model import ModelContext
from ovserve.llm.prompt.chat_template import Conversation
from ovserve.llm.request import GenerateRequest, Presentation, ReasoningBudget
from ovserve.llm.tooling import ToolPolicy

CHOICES = {"auto": "auto", "any": "required", "none": "none"}


@dataclass(frozen=True)
class Tools:
    policy: ToolPolicy | None
    dropped: tuple[str, ...] = ()  # types that only Anthropic can run, and what is not enforced


def openai_tools(body: CountRequest) -> Tools:
    """Raises InvalidArgument naming the index, or the choice of a tool that is not there."""
    functions: list[dict[str, Any]] = []
    dropped: list[str] = []
    for i, tool in enumerate(body.tools or ()):
        if tool.type not in (None, "custom"):
            dropped.append(f"tools.{tool.type}")
            continue
        if tool.input_schema is None:
            param = f"tools[{i}].input_schema"
            raise InvalidArgument(f"{param}: required, but missing", param=param)
        function = {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input_schema,
            "strict": tool.strict,
        }
        try:
            functions.append(function_tool(function, f"tools[{i}]"))
        except InvalidArgument as exc:  # a schema has another name here
            texts = [
                (text or "").replace(".parameters", ".input_schema") for text in (exc.message, exc.param)
            ]
            raise InvalidArgument(texts[0], param=texts[1]) from None
    choice_field = body.tool_choice
    if choice_field is None or (dropped and not functions):
        return _tools(tool_policy(functions, None, None), dropped)
    function_choice: dict[str, Any] = {"type": "function", "name": choice_field.name}
    choice = function_choice if choice_field.type == "tool" else CHOICES[choice_field.type]
    return _tools(tool_policy(functions, choice, not choice_field.disable_parallel_tool_use), dropped)


def _tools(policy: ToolPolicy | None, dropped: list[str]) -> Tools:
    return Tools(policy, (*dropped, *(policy.unenforced if policy is not None else ())))


BUDGET_FIELD = "thinking.budget_tokens"
_decoder = msgspec.json.Decoder(MessagesRequest)
_count_decoder = msgspec.json.Decoder(CountRequest)


@dataclass(frozen=True)
class DecodedMessages:
    body: CountRequest
    messages: list[Message]
    tools: Tools
    ignored: tuple[str, ...]
    sampling: SamplingFields | None = None  # None: of count_tokens, which has none


@dataclass(frozen=True)
class ToRender:
    conversation: Conversation
    messages: list[dict[str, Any]]  # as the template got them
    ignored: list[str]


class _SamplingFields(SamplingFields, kw_only=True):
    """OpenAI's fields, with the format where Anthropic has it."""

    source: MessagesRequest

    @property
    def formats(self) -> list[tuple[str, dict[str, Any] | None]]:
        config = self.source.output_config
        places = (
            ("output_config.format", config.format if config is not None else None),
            ("output_format", self.source.output_format),
        )
        return [(name, None if f is None else {"type": f.type, "schema": f.schema}) for name, f in places]


def _sampling_fields(body: MessagesRequest) -> SamplingFields:
    return _SamplingFields(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k or (None if body.top_k is None else -1),
        stop=body.stop_sequences,
        stream=body.stream,
        source=body,
    )


class Messages:
    """The endpoint."""

    name = "messages"

    def decode(self, body: bytes) -> DecodedMessages:
        request, unknown = decode_body(body, _decoder, loosen_blocks)
        check_stops(request)
        decoded = _decoded(request, unknown)
        sampling = _sampling_fields(request)
        ignored = tuple(sorted([*decoded.ignored, *without_effect(sampling)]))
        return replace(decoded, ignored=ignored, sampling=sampling)

    def to_request(self, decoded: DecodedMessages, model: ModelContext) -> GenerateRequest:
        body, sampling = decoded.body, decoded.sampling
        assert isinstance(body, MessagesRequest), "decode() made it"
        assert sampling is not None, "decode() made it"
        max_tokens = model.max_tokens(body.max_tokens, "max_tokens")
        images = pictures_of(model)
        rendered = to_render(decoded, model, images)
        budget, idle = _budget(body, model)
        return GenerateRequest(
            id=new_id("msg_"),
            prompts=(),
            conversation=rendered.conversation,
            add_special_tokens=False,  # the template writes them
            sampling=to_sampling(sampling, model, max_tokens, reasoning_budget=budget),
            presentation=Presentation(
                endpoint=self.name,
                model=body.model,
                created=int(time.time()),
                stream=bool(body.stream),
                requested_max_tokens=body.max_tokens,
                stop_sequences=tuple(body.stop_sequences or ()),
                ignored_params=tuple(sorted({*decoded.ignored, *rendered.ignored, *idle})),
            ),
            tools=decoded.tools.policy,
            image_sources=tuple(images.sources),
            file_sources=tuple(images.files),
            parts=lambda: model.parts(rendered.messages, {}, decoded.tools.policy),
        )

    def writer(self, request: GenerateRequest) -> MessagesWriter:
        return MessagesWriter(request)


def decode_count(body: bytes) -> DecodedMessages:
    """The body of count_tokens; max_tokens and the like are of no interest there."""
    decoded = _decoded(*decode_body(body, _count_decoder, loosen_blocks))
    if (thinking := decoded.body.thinking) is None or thinking.budget_tokens is None:
        return decoded
    return replace(decoded, ignored=(*decoded.ignored, BUDGET_FIELD))


def count_body(tokens: int) -> bytes:
    return encode(TokenCount(tokens))


def _decoded(body: CountRequest, unknown: dict[str, msgspec.Raw]) -> DecodedMessages:
    messages, dropped = to_messages(body, Pictures())
    tools = openai_tools(body)
    return DecodedMessages(body, messages, tools, tuple(sorted({*unknown, *dropped, *tools.dropped})))


def to_render(decoded: DecodedMessages, model: ModelContext, images: Pictures) -> ToRender:
    """Return the messages of the prompt; images go to `pictures`. Raises InvalidArgument."""
    if model.template is None:
        raise InvalidArgument("this model has no chat template", param="messages")
    policy = decoded.tools.policy
    check_model(policy, model)
    kwargs, ignored = _thinking(decoded.body, model)
    ignored += _effort(decoded.body, model, kwargs)
    messages, _ = to_messages(decoded.body, images)
    plain = [template_message(message, i, images) for i, message in enumerate(messages)]
    last = decoded.messages[-1]
    conversation = model.template.conversation(
        plain,
        kwargs,
        tools=policy.prompt_tools if policy is not None else None,
        continue_final_message=last.role == "assistant" and bool(last.content) and not last.tool_calls,
    )
    return ToRender(conversation, plain, ignored)


def _budget(body: CountRequest, model: ModelContext) -> tuple[ReasoningBudget | None, list[str]]:
    """Return the budget of the reasoning, and its field if it has no effect."""
    thinking = body.thinking
    if thinking is None or thinking.budget_tokens is None:
        return None, []
    if thinking.type != "enabled":
        return None, [BUDGET_FIELD]
    return reasoning_budget({BUDGET_FIELD: thinking.budget_tokens}, model)


def _effort(body: CountRequest, model: ModelContext, kwargs: dict[str, Any]) -> list[str]:
    """Puts the effort into the template's variables; returns what has no effect."""
    effort = body.output_config.effort if body.output_config is not None else None
    if effort is None:
        return []
    assert model.template is not None
    if not model.template.mentions(EFFORT_VARIABLE):
        return ["output_config.effort"]
    kwargs[EFFORT_VARIABLE] = effort
    return []


def _thinking(body: CountRequest, model: ModelContext) -> tuple[dict[str, Any], list[str]]:
    """Return `thinking` as template variables, if the template reads one, and the fields without effect."""
    thinking = body.thinking
    if thinking is None or thinking.type not in ("enabled", "disabled"):
        return {}, [] if thinking is None else ["thinking"]
    assert model.template is not None
    on = thinking.type == "enabled"
    switches = [n for n in SWITCHES if model.template.mentions(n)]
    ignored = ["thinking"] if on and not switches else []
    return dict.fromkeys(switches, on), ignored
