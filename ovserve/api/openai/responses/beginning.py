"""The response object before its first output: the parameters of the request as the API repeats them."""

from __future__ import annotations

from typing import Any

from ovserve.api.openai.common import UsageCounter, predictions
from ovserve.api.openai.responses.decoded import ResponsePresentation
from ovserve.api.openai.responses.objects import InputDetails, OutputDetails, Response, Usage
from ovserve.llm.request import GenerateRequest


def usage_of(meter: UsageCounter) -> Usage:
    """Return the tokens so far, in the shape of the Responses API."""
    total = meter.prompt_tokens + meter.completion_tokens
    details = OutputDetails(meter.reasoning_tokens, *predictions(meter))
    cached = InputDetails(meter.cached_tokens or 0)
    return Usage(meter.prompt_tokens, cached, meter.completion_tokens, details, total)


def new_response(request: GenerateRequest, shown: ResponsePresentation) -> Response:
    """Return the object of a response that has begun: what the request set, and no output yet."""
    decoded, sampling = shown.decoded, request.sampling
    body = decoded.body
    reasoning = body.reasoning
    text: dict[str, Any] = {"format": (body.text and body.text.format) or {"type": "text"}}
    if body.text and body.text.verbosity:
        text["verbosity"] = body.text.verbosity
    return Response(
        id=request.id,
        created_at=shown.created,
        status="queued" if body.background else "in_progress",
        model=shown.model,
        output=[],
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={
            "effort": reasoning.effort if reasoning else None,
            "summary": reasoning.summary if reasoning else None,
        },
        safety_identifier=body.safety_identifier,
        store=decoded.context.store,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        text=text,
        tool_choice=decoded.tools.choice,
        tools=list(decoded.tools.listed),
        top_logprobs=body.top_logprobs or 0,
        truncation=body.truncation or "disabled",
        user=body.user,
    )
