"""GET models in the form of Anthropic's client: pages, times as text, display names."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from ovserve.api.anthropic.answer import Error, Event, Message, TokenCount
from ovserve.api.anthropic.body import CountRequest, MessagesRequest
from ovserve.api.openai.common import encode, narrow_budget
from ovserve.api.openai.models import Model
from ovserve.api.openai.operation import Operation, Override
from ovserve.api.openai.sampling import narrow_length, narrow_sampling
from ovserve.api.openai.tools import narrow_tools
from ovserve.errors import InvalidArgument
from ovserve.llm.model import ModelContext

# Operations of Anthropic's paths (`api/openai/operation.py`).


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


VERSION = "anthropic-version"  # the header that every client of Anthropic's sends
DEFAULT_PAGE, MAX_PAGE = 20, 1000


class ModelInfo(msgspec.Struct, kw_only=True):
    type: str = "model"
    id: str
    display_name: str
    created_at: str  # RFC 3339: when it was loaded
    lifecycle: str = "active"
    max_input_tokens: int | None
    max_tokens: int | None
    state: str  # ours, as in OpenAI's shape


class ModelPage(msgspec.Struct, kw_only=True):
    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


def model_info(model: Model) -> bytes:
    return encode(_info(model))


def model_page(models: list[Model], query: Mapping[str, str]) -> bytes:
    """One page of them. Raises InvalidArgument naming the query parameter."""
    limit = _limit(query.get("limit"))
    after, before = query.get("after_id"), query.get("before_id")
    if after is not None and before is not None:
        raise InvalidArgument("before_id: only allowed without after_id", param="before_id")
    rest = models
    if after is not None:
        rest = models[_index(models, "after_id", after) + 1 :]
    elif before is not None:
        rest = models[: _index(models, "before_id", before)]
    page = rest[-limit:] if before is not None else rest[:limit]
    ends = (page[0].id, page[-1].id) if page else (None, None)
    data = [_info(model) for model in page]
    return encode(ModelPage(data=data, has_more=len(rest) > len(page), first_id=ends[0], last_id=ends[1]))


def _info(model: Model) -> ModelInfo:
    created = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    return ModelInfo(
        id=model.id,
        display_name=model.id,
        created_at=created,
        max_input_tokens=model.max_model_len,
        max_tokens=model.max_model_len,
        state=model.state,
    )


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_PAGE
    if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MAX_PAGE):
        raise InvalidArgument(f"limit: expected 1 to {MAX_PAGE}, got {text!r}", param="limit")
    return int(text)


def _index(models: list[Model], name: str, id_: str) -> int:
    for i, model in enumerate(models):
        if model.id == id_:
            return i
    raise InvalidArgument(f"{name}: {id_!r} is not one of the models", param=name)
