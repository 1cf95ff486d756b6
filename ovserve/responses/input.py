"""From a client's body to one that stands by itself: the conversation it refers to is looked up and put in.

Called by `responses.py` for every POST. The client's own `input` keeps its place in the body, so that an
error names the index the client wrote; the past goes beside it, in the field `ovserve`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Raw

from ovserve.api.openai.body import decode_all, is_light
from ovserve.api.openai.common import encode, new_id
from ovserve.calculators.payload import HttpPayload
from ovserve.errors import InvalidArgument, Unavailable, UnsupportedParameter
from ovserve.responses.store import Record, ResponseStore, StoreError
from ovserve.sandbox.bodies import Bodies, Head

RESERVED = "ovserve"


class PreviousResponseNotFound(InvalidArgument):
    code = "previous_response_not_found"


class _Peek(msgspec.Struct):
    """The fields this service acts on; the graph's endpoint checks all of them."""

    model: str
    input: Raw = Raw(b"null")
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    truncation: str | None = None


class _Reference(msgspec.Struct):
    type: str | None = None
    id: str | None = None


class _Output(msgspec.Struct):
    output: list[Raw]
    status: str


_peek = msgspec.json.Decoder(_Peek)
_raws = msgspec.json.Decoder(list[Raw])
_output = msgspec.json.Decoder(_Output)


@dataclass(frozen=True)
class ResolvedRequest:
    """A request whose references are resolved."""

    owner: str
    model: str
    stream: bool
    store: bool
    background: bool
    truncate: bool
    previous: str | None
    fields: Mapping[str, Raw]  # the body without `ovserve`
    resolved: Mapping[str, Any]  # `ovserve` without the history
    history: tuple[Raw, ...]

    def body(self, history: Iterable[Raw] | None = None, input_: Iterable[Raw] | None = None) -> bytes:
        """The body for the graph, with all of the conversation or the part that is given."""
        past = list(self.history if history is None else history)
        fields: dict[str, Any] = {**self.fields, RESERVED: {**self.resolved, "history": past}}
        if input_ is not None:
            fields["input"] = list(input_)
        return encode(fields)

    def payload(self, body: bytes, headers: Mapping[str, str]) -> HttpPayload:
        """What the graph gets. With a history, a small body may have become a large one."""
        head = Head(not is_light(body), self.model, self.stream, self.background)
        return HttpPayload("responses", body, headers, head)


def _read_fields(body: bytes) -> tuple[_Peek, dict[str, Raw]]:
    return decode_all(body, _peek)


async def prepare(
    owner: str, body: bytes, store: ResponseStore | None, bodies: Bodies, head: Head
) -> ResolvedRequest:
    """Raises InvalidArgument, also for a conversation that is not (or no longer) there."""
    peek, fields = await bodies.run(head.large, _read_fields, body)
    if RESERVED in fields:
        raise InvalidArgument(f"{RESERVED}: this field is the server's own", param=RESERVED)
    if peek.background and peek.store is False:
        raise InvalidArgument(
            "background: true needs store, got store: false; the answer would be lost", param="background"
        )
    if peek.background and store is None:
        raise UnsupportedParameter(
            "background: true needs the response store, which is off on this server", param="background"
        )
    history: list[Raw] = []
    if peek.previous_response_id is not None:
        history = await _history(owner, peek.previous_response_id, store)
    given = bytes(peek.input)
    if given.startswith(b"[") and b'"item_reference"' in given:
        fields["input"] = Raw(encode(await _dereference(owner, _raws.decode(peek.input), store)))
    keeps = store is not None and peek.store is not False
    return ResolvedRequest(
        owner=owner,
        model=peek.model,
        stream=bool(peek.stream),
        store=keeps,
        background=bool(peek.background),
        truncate=peek.truncation == "auto",
        previous=peek.previous_response_id,
        fields=fields,
        resolved={"id": new_id("resp_"), "created": int(time.time()), "store": keeps},
        history=tuple(history),
    )


async def _history(owner: str, id_: str, store: ResponseStore | None) -> list[Raw]:
    """The items of a response and of all before it: what each was asked, then what it answered."""
    chain = [] if store is None else await _read(store.chain(owner, id_))
    if not chain or chain[0].previous is not None:
        missing = chain[0].previous if chain else id_
        at = "" if missing == id_ else f", which {chain[0].id!r} continues,"
        why = "this server keeps no responses" if store is None else "it may be deleted or expired"
        raise PreviousResponseNotFound(
            f"previous_response_id: response {missing!r}{at} is not stored ({why})",
            param="previous_response_id",
        )
    items: list[Raw] = []
    for record in chain:
        answer = _output.decode(record.body)
        if record.server:
            raise InvalidArgument(
                f"previous_response_id: response {record.id!r} is still {answer.status}",
                param="previous_response_id",
            )
        items += [*_raws.decode(record.input), *answer.output]
    return items


async def _dereference(owner: str, items: list[Raw], store: ResponseStore | None) -> list[Raw]:
    return [await _resolve(owner, item, i, store) for i, item in enumerate(items)]


async def _resolve(owner: str, item: Raw, index: int, store: ResponseStore | None) -> Raw:
    try:
        reference = msgspec.json.decode(item, type=_Reference)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return item  # the graph's endpoint says what is wrong with it
    if reference.type != "item_reference" or reference.id is None:
        return item
    record = None if store is None else await _read(store.find_item(owner, reference.id))
    for raw in [] if record is None else [*_raws.decode(record.input), *_output.decode(record.body).output]:
        if msgspec.json.decode(raw, type=_Reference).id == reference.id:
            return raw
    param = f"input[{index}].id"
    raise InvalidArgument(f"{param}: item {reference.id!r} is not stored here", param=param)


async def _read(asked: Any) -> Any:
    try:
        return await asked
    except StoreError as exc:
        raise Unavailable("the response store cannot be read now") from exc


__all__ = ["PreviousResponseNotFound", "Record", "ResolvedRequest", "prepare"]
