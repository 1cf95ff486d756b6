"""OpenAI's Responses paths. Only translation: what happens is in `services/responses/service.py`.

A stream here never ends in an error of ours: the service ends it with the dialect's own last event.
"""

from __future__ import annotations

import logging
from typing import TypeVar

import msgspec
from aiohttp import web

from ovserve.access import current_request
from ovserve.api.openai.batches import BatchRequest, FileDeleted, FileUpload
from ovserve.api.openai.body import decode_body, decode_fields
from ovserve.api.openai.common import encode
from ovserve.errors import InvalidArgument, NotFound, OvserveError, PayloadTooLarge, public
from ovserve.http.body import headers_of, json_of, json_response, read_body, read_small_body, tokens_response
from ovserve.http.errors import openai_body
from ovserve.http.form import TEXT_BYTES, read_form
from ovserve.http.middleware import REQUEST_ID
from ovserve.http.sse import EventStream, as_event
from ovserve.kinds.payload import report_headers
from ovserve.log import request_id
from ovserve.services.responses.batches import BatchService
from ovserve.services.responses.run import ResponseReply
from ovserve.services.responses.service import ResponsesService

log = logging.getLogger(__name__)

FLAGS = {"true": True, "1": True, "false": False, "0": False}


class ResponsesRoutes:
    def __init__(self, service: ResponsesService) -> None:
        self._service = service

    async def create(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request)
        headers = headers_of(request)
        async with EventStream(request, _ids(), pings=body.head.stream) as stream:
            try:
                async with self._service.create(owner_of(request), body.data, headers, body.head) as reply:
                    return await _send(stream, reply)
            except OvserveError as exc:
                if not stream.begun:
                    raise
                return await _end_with(stream, exc)

    async def count(self, request: web.Request) -> web.StreamResponse:
        body = await read_body(request)
        return tokens_response(await self._service.count(owner_of(request), body.data, body.head))

    async def get(self, request: web.Request) -> web.StreamResponse:
        owner, id_ = owner_of(request), request.match_info["id"]
        after = number_of(request, "starting_after")
        if _flag(request, "stream"):
            events = await self._service.stream(owner, id_, after)
            async with EventStream(request, _ids(), pings=True) as stream:
                return await _send(stream, ResponseReply(events=events))
        if after is not None:
            raise InvalidArgument.at("starting_after", f"{after} needs stream=true")
        return json_response(await self._service.get(owner, id_))

    async def delete(self, request: web.Request) -> web.StreamResponse:
        return json_response(await self._service.delete(owner_of(request), request.match_info["id"]))

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        return json_response(await self._service.cancel(owner_of(request), request.match_info["id"]))

    async def input_items(self, request: web.Request) -> web.StreamResponse:
        page = await self._service.input_items(
            owner_of(request),
            request.match_info["id"],
            limit=_limit(request, 20, 100),
            order=_order(request),
            after=request.query.get("after"),
        )
        return json_response(page)


def owner_of(request: web.Request) -> str:
    """The name behind the request's API key; everything belongs to "" as long as keys have no names."""
    return current_request().caller.name


def _flag(request: web.Request, name: str) -> bool:
    text = request.query.get(name, "false")
    if text.lower() not in FLAGS:
        raise InvalidArgument.expected(name, "true or false", text)
    return FLAGS[text.lower()]


def number_of(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise InvalidArgument.expected(name, "a whole number", text)
    return int(text)


def _ids() -> dict[str, str]:
    return {REQUEST_ID: request_id.get()}


async def _send(stream: EventStream, reply: ResponseReply) -> web.StreamResponse:
    headers = {**reply.headers, **_ids()}
    if reply.events is None and not stream.begun:
        return web.Response(body=reply.body, content_type=reply.content_type, headers=headers)
    await stream.begin(headers)
    if reply.events is None:
        await stream.write(as_event(reply.body))
        return await stream.end()
    try:
        async for chunk in reply.events:
            if chunk:
                await stream.write(chunk)
    except OvserveError as exc:  # only of a graph that writes its own responses
        return await _end_with(stream, exc)
    return await stream.end()


async def _end_with(stream: EventStream, error: OvserveError) -> web.StreamResponse:
    current_request().failure = error
    log.warning("the stream ended: %s", error)
    await stream.begin(_ids())
    await stream.write(as_event(openai_body(public(error))))
    return await stream.end()


T = TypeVar("T", bound=msgspec.Struct)

RETRY_KEY = "Idempotency-Key"
MAX_RETRY_KEY = 256  # characters
EXPIRY = "expires_after"

_upload = msgspec.json.Decoder(FileUpload)
_batch = msgspec.json.Decoder(BatchRequest)


class BatchRoutes:
    def __init__(self, service: BatchService) -> None:
        self._service, self._files = service, service.files

    async def upload(self, request: web.Request) -> web.Response:
        owner = owner_of(request)
        most, size = self._files.bounds.file_bytes, request.content_length
        if size is not None and size > most + TEXT_BYTES:
            raise PayloadTooLarge.at("file", f"the form has {size} bytes, a file {most} at most")
        async with (
            self._files.arriving(owner, most if size is None else size),
            read_form(request, most=most, directory=self._files.directory) as form,
        ):
            upload, ignored = decode_body(_nested(form.body.data), _upload)
            if (file := form.files.get("file")) is None:
                raise InvalidArgument.at("file", "expected a file as a part of the form")
            if not file.size:
                raise InvalidArgument.at("file", "is empty")
            seconds = upload.expires_after.seconds if upload.expires_after else None
            added = await self._files.add(owner, file.path, file.name, file.size, seconds)
        return _encoded(added, tuple(ignored))

    async def list_files(self, request: web.Request) -> web.Response:
        page = await self._files.page(
            owner_of(request),
            limit=_limit(request, 10_000, 10_000),
            order=_order(request),
            after=request.query.get("after"),
            purpose=request.query.get("purpose"),
        )
        return _encoded(page)

    async def get_file(self, request: web.Request) -> web.Response:
        return _encoded(await self._files.get(owner_of(request), request.match_info["id"]))

    async def content(self, request: web.Request) -> web.StreamResponse:
        file = await self._files.get(owner_of(request), request.match_info["id"])
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Disposition": f'attachment; filename="{file.id}.jsonl"',
        }
        path = self._files.path(file.id)
        if not path.exists():  # aiohttp would answer a 404 without a body
            raise NotFound.at("file_id", f"the content of file {file.id!r} is gone")
        return web.FileResponse(path, headers=headers)

    async def delete_file(self, request: web.Request) -> web.Response:
        id_ = request.match_info["id"]
        await self._files.delete(owner_of(request), id_)
        return _encoded(FileDeleted(id_))

    async def create(self, request: web.Request) -> web.Response:
        body, ignored = decode_body(await read_small_body(request), _batch)
        retry_key = request.headers.get(RETRY_KEY)
        if retry_key is not None and not (0 < len(retry_key) <= MAX_RETRY_KEY and retry_key.isprintable()):
            message = f"{RETRY_KEY}: expected 1 to {MAX_RETRY_KEY} characters of UTF-8"
            raise InvalidArgument(message, param=RETRY_KEY)
        return _encoded(await self._service.create(owner_of(request), body, retry_key), tuple(ignored))

    async def list_batches(self, request: web.Request) -> web.Response:
        limit, after = _limit(request, 20, 100), request.query.get("after")
        return _encoded(await self._service.page(owner_of(request), limit, after))

    async def get_batch(self, request: web.Request) -> web.Response:
        return _encoded(await self._service.get(owner_of(request), request.match_info["id"]))

    async def cancel(self, request: web.Request) -> web.Response:
        return _encoded(await self._service.cancel(owner_of(request), request.match_info["id"]))


def _limit(request: web.Request, default: int, most: int) -> int:
    limit = number_of(request, "limit")
    if limit is None:
        return default
    if not 1 <= limit <= most:
        raise InvalidArgument.at("limit", f"expected 1 to {most}, got {limit}")
    return limit


def _order(request: web.Request) -> str:
    order = request.query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidArgument.expected("order", "asc or desc", order)
    return order


def _nested(data: bytes) -> bytes:
    """Return a form's fields with expires_after[anchor] and expires_after[seconds] as one object."""
    fields = decode_fields(data)
    inner = {name: fields.pop(f"{EXPIRY}[{name}]", None) for name in ("anchor", "seconds")}
    if given_parts := {name: value for name, value in inner.items() if value is not None}:
        if (seconds := given_parts.get("seconds")) and (text := bytes(seconds)[1:-1][:20]).isdigit():
            given_parts["seconds"] = msgspec.Raw(b"%d" % int(text))
        fields[EXPIRY] = msgspec.Raw(encode(given_parts))
    return encode(fields)


def _encoded(value: msgspec.Struct, ignored: tuple[str, ...] = ()) -> web.Response:
    return json_of(value, report_headers(ignored, ()))
