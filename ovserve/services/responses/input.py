"""Resolves the references of a client's body: the conversation it refers to is looked up.

Called by `service.py` for every POST. The client's body reaches the graph as it came, unless it refers to
single items or has to be shortened; the history goes into the payload's context.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Iterable, Mapping
from typing import TypeVar

import msgspec
from msgspec import Raw

from ovserve.api.openai.body import decode_fields, decode_struct, is_light, unique_members
from ovserve.api.openai.common import encode
from ovserve.api.openai.responses.request import ResponseContext
from ovserve.api.openai.responses.tools import McpOffer
from ovserve.errors import InvalidArgument, Unavailable, UnsupportedParameter
from ovserve.kinds.payload import HttpPayload
from ovserve.sandbox.bodies import Bodies, Head
from ovserve.services.responses.store import ResponseStore, StoreError

log = logging.getLogger(__name__)

T = TypeVar("T")


class PreviousResponseNotFound(InvalidArgument):
    code = "previous_response_not_found"


class _Peek(msgspec.Struct):
    """The fields that this service acts on; the graph's endpoint checks all fields."""

    model: str
    input: Raw = Raw(b"null")
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    truncation: str | None = None
    tools: Raw = Raw(b"null")


class ItemHead(msgspec.Struct):
    """The fields by which an item is known as an instruction, a turn or a reference."""

    type: str | None = None
    id: str | None = None
    role: object = None
    content: object = None

    @property
    def refers(self) -> bool:
        """Return whether it is a reference. Its type may be left out, as that of a message may."""
        return self.type == "item_reference" or self.type is self.role is self.content is None


# What may be a reference: its type, or an object with nothing but an id.
_TYPE = r'"type"\s*:\s*null\s*'
_REFERENCE = re.compile(
    rf'"item_reference"|\{{\s*(?:{_TYPE},\s*)?"id"\s*:\s*"[^"]*"\s*(?:,\s*{_TYPE})?\}}'.encode()
)


class _Output(msgspec.Struct):
    output: list[Raw]
    status: str


_peek = msgspec.json.Decoder(_Peek)
_raws = msgspec.json.Decoder(list[Raw])
_output = msgspec.json.Decoder(_Output)


class ResolvedRequest(msgspec.Struct, frozen=True):
    """A request whose references are resolved."""

    owner: str
    model: str
    stream: bool
    store: bool
    background: bool
    large: bool
    truncate: bool
    previous: str | None
    body: bytes
    input: Raw
    fields: Mapping[str, Raw] | None  # of a body that may be rewritten
    context: ResponseContext

    def payload(
        self,
        headers: Mapping[str, str],
        history: Iterable[Raw] | None = None,
        input_: Iterable[Raw] | None = None,
        mcp: tuple[McpOffer, ...] | None = None,
        call_items: Iterable[Raw] = (),
        replaced: Mapping[str, Raw] | None = None,
    ) -> HttpPayload:
        """Return the graph's payload, with all of the conversation or the part that is given.

        `mcp` are the tools of MCP servers, `call_items` those of the same response that the conversation has
        by now, and `replaced` fields in place of those of the body.
        """
        body, context = self.body, self.context
        if history is not None:
            context = msgspec.structs.replace(context, history=tuple(history))
        if mcp is not None:
            context = msgspec.structs.replace(context, mcp=mcp, done=tuple(call_items))
        if input_ is not None or replaced:
            assert self.fields is not None, "read where the body may be rewritten"
            input_fields = {} if input_ is None else {"input": list(input_)}
            body = encode({**self.fields, **input_fields, **(replaced or {})})
        items = (*context.history, *context.done)
        whole = b",".join([body, *items]) if items else body
        head = Head(not is_light(whole), self.model, self.stream)
        return HttpPayload("responses", body, headers, head, context)


def own_items(request: ResolvedRequest) -> list[Raw]:
    """Return the request's own input as items; a text is a message of the user."""
    try:
        return msgspec.json.decode(request.input, type=list[Raw] | None) or []
    except msgspec.ValidationError:
        return [Raw(b'{"role":"user","content":' + bytes(request.input) + b"}")]


def _read_peek(body: bytes) -> _Peek:
    try:
        return decode_struct(body, _peek)
    except InvalidArgument:
        unique_members(body)  # what is wrong with all of it comes first
        raise


def _read_fields(body: bytes) -> dict[str, Raw]:
    unique_members(body)  # a body made of these shows none that occurs twice
    return decode_fields(body)


async def prepare(
    owner: str, body: bytes, store: ResponseStore | None, bodies: Bodies, head: Head
) -> ResolvedRequest:
    """Raises InvalidArgument, also for a conversation that is not (or no longer) there."""
    peek = await bodies.run(head.large, _read_peek, body)
    if peek.background and peek.store is False:
        raise InvalidArgument.at("background", "true needs store, got store: false; the answer would be lost")
    if peek.background and store is None:
        raise UnsupportedParameter.at(
            "background", "true needs the response store, which is off on this server"
        )
    history: list[Raw] = []
    if peek.previous_response_id is not None:
        history = await _history(owner, peek.previous_response_id, store)
    raw_input, truncate, fields = bytes(peek.input), peek.truncation == "auto", None
    refers = raw_input.startswith(b"[") and _REFERENCE.search(raw_input) is not None
    uses_mcp = b'"mcp"' in bytes(peek.tools) or b'"mcp_approval_response"' in raw_input
    if refers or truncate or uses_mcp:
        fields = await bodies.run(head.large, _read_fields, body)
    if refers and fields is not None:
        items = [await _resolve(owner, item, i, store) for i, item in enumerate(_raws.decode(peek.input))]
        fields["input"] = Raw(encode(items))
        body = encode(fields)
    keeps = store is not None and peek.store is not False
    return ResolvedRequest(
        owner=owner,
        model=peek.model,
        stream=bool(peek.stream),
        store=keeps,
        background=bool(peek.background),
        large=head.large,
        truncate=truncate,
        previous=peek.previous_response_id,
        body=body,
        input=peek.input if fields is None else fields.get("input", peek.input),
        fields=fields,
        context=ResponseContext(store=keeps, history=tuple(history)),
    )


async def _history(owner: str, id_: str, store: ResponseStore | None) -> list[Raw]:
    """The items of a response and of all before it: what each was asked, then what it answered."""
    chain = [] if store is None else await read_stored(store.chain(owner, id_))
    if not chain or chain[0].previous is not None:
        missing = chain[0].previous if chain else id_
        at = "" if missing == id_ else f", which {chain[0].id!r} continues,"
        why = "this server keeps no responses" if store is None else "it may be deleted or expired"
        raise PreviousResponseNotFound.at(
            "previous_response_id", f"response {missing!r}{at} is not stored ({why})"
        )
    items: list[Raw] = []
    for record in chain:
        answer = _output.decode(record.body)
        if record.server:
            raise InvalidArgument.at(
                "previous_response_id", f"response {record.id!r} is still {answer.status}"
            )
        items += [*_raws.decode(record.input), *answer.output]
    return items


async def _resolve(owner: str, item: Raw, index: int, store: ResponseStore | None) -> Raw:
    try:
        reference = msgspec.json.decode(item, type=ItemHead)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return item  # the graph's endpoint says what is wrong with it
    if reference.id is None or not reference.refers:
        return item
    record = None if store is None else await read_stored(store.find_item(owner, reference.id))
    for raw in [] if record is None else [*_raws.decode(record.input), *_output.decode(record.body).output]:
        if msgspec.json.decode(raw, type=ItemHead).id == reference.id:
            return raw
    raise InvalidArgument.at(f"input[{index}].id", f"item {reference.id!r} is not stored here")


async def read_stored(operation: Awaitable[T]) -> T:
    """Return what the store of responses has. Raises Unavailable where it fails."""
    try:
        return await operation
    except StoreError as exc:
        log.error("the response store cannot be read: %s", exc)
        raise Unavailable("the response store cannot be read now") from exc
