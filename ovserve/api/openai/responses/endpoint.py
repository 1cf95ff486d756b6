"""The endpoint `responses`: a decoded body becomes one GenerateRequest. Reached through `ENDPOINTS`.

The graph answers with response events, also for a unary answer, which is the fold of its events.
"""

from __future__ import annotations

import msgspec

from ovserve.api.openai.body import decode_body, refuse_unsupported
from ovserve.api.openai.effort import effort_variables, reasoning_budget
from ovserve.api.openai.images import pictures_of
from ovserve.api.openai.responses.decoded import DecodedResponses, ResponsePresentation
from ovserve.api.openai.responses.items import as_items, check_items, loosen_items, to_messages
from ovserve.api.openai.responses.request import (
    RESPONSES_UNSUPPORTED,
    ResponseRequest,
    check_response,
    unused_fields,
)
from ovserve.api.openai.responses.tools import clean_tools
from ovserve.api.openai.responses.writer import ResponseEventWriter
from ovserve.api.openai.sampling import check_sampling, idle_fields, to_sampling
from ovserve.api.openai.structured import without_effect
from ovserve.api.openai.tools import check_model
from ovserve.errors import InvalidArgument
from ovserve.llm.model import ModelContext
from ovserve.llm.request import GenerateRequest

OWN = "ovserve"

_decoder = msgspec.json.Decoder(ResponseRequest)


class Responses:
    """The endpoint."""

    name = "responses"

    def decode(self, body: bytes) -> DecodedResponses:
        request, unknown = decode_body(body, _decoder, loosen_items)
        if OWN in unknown:
            raise InvalidArgument(f"{OWN}: this field is the server's own", param=OWN)
        refuse_unsupported(unknown, RESPONSES_UNSUPPORTED)
        check_sampling(request)
        check_response(request)
        items = as_items(request.input)
        ignored = [*unknown, *unused_fields(request), *check_items(items), *without_effect(request)]
        tools = clean_tools(request.tools, request.tool_choice, request.parallel_tool_calls)
        return DecodedResponses(request, tuple(items), tools, (*sorted(ignored), *tools.ignored))

    def to_request(self, decoded: DecodedResponses, model: ModelContext) -> GenerateRequest:
        body = decoded.body
        if model.template is None:
            raise InvalidArgument("this model has no chat template; use completions", param="input")
        policy = decoded.tools.policy
        check_model(policy, model)
        max_tokens = model.max_tokens(body.max_output_tokens, "max_output_tokens")
        images, history = pictures_of(model), decoded.history
        conversation = [*history, *decoded.items, *decoded.done]
        messages = to_messages(conversation, body.instructions, images, len(history))
        if not messages:
            raise InvalidArgument("input: expected at least one message, got none", param="input")
        effort = body.reasoning.effort if body.reasoning else None
        kwargs, ignored = effort_variables(effort, model, body.chat_template_kwargs, "reasoning.effort")
        budget, idle = reasoning_budget(
            {"reasoning.max_tokens": body.reasoning.max_tokens if body.reasoning else None}, model
        )
        return GenerateRequest(
            id=decoded.context.id,
            prompts=(),
            conversation=model.template.conversation(
                messages, kwargs, tools=policy.prompt_tools if policy is not None else None, param="input"
            ),
            add_special_tokens=False,  # the template writes them
            sampling=to_sampling(
                body,
                model,
                max_tokens,
                logprobs=body.wants_logprobs,
                top_logprobs=body.top_logprobs,
                reasoning_budget=budget,
            ),
            presentation=ResponsePresentation(
                endpoint=self.name,
                model=body.model,
                created=decoded.context.created,
                stream=bool(body.stream),
                requested_max_tokens=body.max_output_tokens,
                top_logprobs=body.top_logprobs or 0,
                ignored_params=(*decoded.ignored, *ignored, *idle, *idle_fields(body, model)),
                decoded=decoded,
            ),
            reports_admission=True,  # a response is queued, and can be followed, before it says anything
            tools=policy,
            user=body.safety_identifier or body.user or "",
            image_sources=tuple(images.sources),
            file_sources=tuple(images.files),
            parts=lambda: model.parts(messages, kwargs, policy),
        )

    def writer(self, request: GenerateRequest) -> ResponseEventWriter:
        return ResponseEventWriter(request)
