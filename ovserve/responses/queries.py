"""Queries of the Responses service that run no graph: a page of input items, and the length of a prompt."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from ovserve.api.openai.body import decode_fields, peek_optional_model
from ovserve.api.openai.common import encode
from ovserve.api.openai.responses.operations import ItemPage
from ovserve.errors import InvalidArgument
from ovserve.responses.input import prepare
from ovserve.responses.store import ResponseStore
from ovserve.sandbox.bodies import Head
from ovserve.serving.manager import Manager
from ovserve.serving.token_checks import TokenizeResult
from ovserve.serving.tokens import tokens_of

MAX_PAGE = 100


async def count_tokens(
    manager: Manager, store: ResponseStore | None, owner: str, body: bytes, head: Head
) -> TokenizeResult:
    """Count the tokens of the prompt of such a response; `model` and `input` may be left out."""
    named = head.model if head.large or head.model is not None else peek_optional_model(body)
    name = manager.only(named).name
    completed = await manager.bodies.run(head.large, _completed, body, name)
    asked = await prepare(owner, completed, store, manager.bodies, head)
    return await tokens_of(manager.get(asked.model)).count_response(asked.payload({}))


def _completed(body: bytes, model: str) -> bytes:
    """The body with what may be left out of it."""
    fields = decode_fields(body)
    fields["model"] = Raw(encode(model))
    if bytes(fields.get("input", b"null")) == b"null":
        fields["input"] = Raw(b"[]")
    return encode(fields)


def page_of(items: list[dict[str, Any]], id_: str, limit: int, order: str, after: str | None) -> bytes:
    """A page of the items of response `id_`: the newest first unless order is asc. Raises InvalidArgument."""
    if order == "desc":
        items.reverse()
    if after is not None:
        at = next((i for i, item in enumerate(items) if item["id"] == after), None)
        if at is None:
            raise InvalidArgument(f"after: {after!r} is not an item of response {id_!r}", param="after")
        items = items[at + 1 :]
    page = items[:limit]
    ids = [item["id"] for item in page] or [""]
    more = len(items) > limit
    return encode(ItemPage(data=page, first_id=ids[0], last_id=ids[-1], has_more=more))


def check_page(limit: int, order: str) -> None:
    """Raises InvalidArgument."""
    if not 1 <= limit <= MAX_PAGE:
        raise InvalidArgument(f"limit: expected 1 to {MAX_PAGE}, got {limit}", param="limit")
    if order not in ("asc", "desc"):
        raise InvalidArgument(f"order: expected asc or desc, got {order!r}", param="order")
