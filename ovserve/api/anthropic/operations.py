"""Operations of Anthropic's paths (`api/openai/operation.py`)."""

from __future__ import annotations

from ovserve.api.anthropic.answer import Error, Event, Message, TokenCount
from ovserve.api.anthropic.body import CountRequest, MessagesRequest
from ovserve.api.openai.effort import narrow_budget
from ovserve.api.openai.operation import Operation, Override
from ovserve.api.openai.sampling import narrow_length, narrow_sampling
from ovserve.api.openai.tools import narrow_tools
from ovserve.llm.model import ModelContext

SHARED = ("temperature", "top_p", "top_k")


def _narrow_count(model: ModelContext) -> dict[str, Override]:
    tools = narrow_tools(model)
    return {name: tools[name] for name in ("tools", "tool_choice") if name in tools}


def _narrow(model: ModelContext) -> dict[str, Override]:
    sampling = narrow_sampling(model)
    return (
        _narrow_count(model)
        | {name: sampling[name] for name in SHARED}
        | narrow_budget(model, "thinking.budget_tokens")
        | {"max_tokens": Override(maximum=narrow_length(model, "max_tokens")["max_tokens"].maximum)}
    )


_EXAMPLE = {"model": "smollm2", "messages": [{"role": "user", "content": "Say hello"}]}

OPERATIONS = (
    Operation(
        "POST",
        "/v3/messages",
        "Anthropic's Messages API.",
        answer=Message,
        error=Error,
        event=Event,
        request=MessagesRequest,
        example=_EXAMPLE | {"max_tokens": 8},
        defaults={"temperature": 1.0, "top_p": 1.0, "top_k": 40, "stream": False},
        specialize=_narrow,
        needs_template=True,
    ),
    Operation(
        "POST",
        "/v3/messages/count_tokens",
        "How many tokens such a request has.",
        answer=TokenCount,
        error=Error,
        request=CountRequest,
        example=_EXAMPLE,
        reported={"thinking.budget_tokens": "no effect: it bounds the answer"},
        specialize=_narrow_count,
        needs_template=True,
    ),
)
