"""OpenAI's paths of files and batches. Only translation: what happens is in `services/responses/`."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from aiohttp import web

from ovserve.api.openai.batches import BatchRequest, FileDeleted, FileUpload
from ovserve.api.openai.body import decode_body, decode_fields
from ovserve.api.openai.common import encode
from ovserve.errors import InvalidArgument, PayloadTooLarge
from ovserve.http.body import read_small_body
from ovserve.http.form import TEXT_BYTES, read_form
from ovserve.http.routes.responses import number_of, owner_of
from ovserve.kinds.payload import report_headers
from ovserve.services.responses.batches import BatchService

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
            raise PayloadTooLarge(f"file: the form has {size} bytes, a file {most} at most", param="file")
        async with (
            self._files.arriving(owner, most if size is None else size),
            read_form(request, most=most, directory=self._files.directory) as form,
        ):
            upload, ignored = decode_body(_nested(form.body.data), _upload)
            if (file := form.files.get("file")) is None:
                raise InvalidArgument("file: expected a file as a part of the form", param="file")
            if not file.size:
                raise InvalidArgument("file: is empty", param="file")
            seconds = upload.expires_after.seconds if upload.expires_after else None
            added = await self._files.add(owner, file.path, file.name, file.size, seconds)
        return _json(added, tuple(ignored))

    async def list_files(self, request: web.Request) -> web.Response:
        order = request.query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidArgument(f"order: expected asc or desc, got {order!r}", param="order")
        after, purpose = request.query.get("after"), request.query.get("purpose")
        limit = _limit(request, 10_000, 10_000)
        return _json(
            await self._files.page(owner_of(request), limit=limit, order=order, after=after, purpose=purpose)
        )

    async def get_file(self, request: web.Request) -> web.Response:
        return _json(await self._files.get(owner_of(request), request.match_info["id"]))

    async def content(self, request: web.Request) -> web.StreamResponse:
        file = await self._files.get(owner_of(request), request.match_info["id"])
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Disposition": f'attachment; filename="{file.id}.jsonl"',
        }
        return web.FileResponse(self._files.path(file.id), headers=headers)

    async def delete_file(self, request: web.Request) -> web.Response:
        id_ = request.match_info["id"]
        await self._files.delete(owner_of(request), id_)
        return _json(FileDeleted(id_))

    async def create(self, request: web.Request) -> web.Response:
        body, ignored = decode_body(await read_small_body(request), _batch)
        retry_key = request.headers.get(RETRY_KEY)
        if retry_key is not None and not 0 < len(retry_key) <= MAX_RETRY_KEY:
            raise InvalidArgument(f"{RETRY_KEY}: expected 1 to {MAX_RETRY_KEY} characters", param=RETRY_KEY)
        return _json(await self._service.create(owner_of(request), body, retry_key), tuple(ignored))

    async def list_batches(self, request: web.Request) -> web.Response:
        limit, after = _limit(request, 20, 100), request.query.get("after")
        return _json(await self._service.page(owner_of(request), limit, after))

    async def get_batch(self, request: web.Request) -> web.Response:
        return _json(await self._service.get(owner_of(request), request.match_info["id"]))

    async def cancel(self, request: web.Request) -> web.Response:
        return _json(await self._service.cancel(owner_of(request), request.match_info["id"]))


def _limit(request: web.Request, default: int, most: int) -> int:
    limit = number_of(request, "limit")
    if limit is None:
        return default
    if not 1 <= limit <= most:
        raise InvalidArgument(f"limit: expected 1 to {most}, got {limit}", param="limit")
    return limit


def _nested(data: bytes) -> bytes:
    """Return a form's fields with expires_after[anchor] and expires_after[seconds] as one object."""
    fields = decode_fields(data)
    inner = {name: fields.pop(f"{EXPIRY}[{name}]", None) for name in ("anchor", "seconds")}
    if given_parts := {name: value for name, value in inner.items() if value is not None}:
        if (seconds := given_parts.get("seconds")) and (text := bytes(seconds)[1:-1]).isdigit():
            given_parts["seconds"] = msgspec.Raw(text)
        fields[EXPIRY] = msgspec.Raw(encode(given_parts))
    return encode(fields)


def _json(value: msgspec.Struct, ignored: tuple[str, ...] = ()) -> web.Response:
    headers = report_headers(ignored, ())
    return web.Response(body=encode(value), content_type="application/json", headers=headers)
