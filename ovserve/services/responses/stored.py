"""Stored responses: what the service reads from its store and writes to it.

A store that cannot be read is Unavailable; one that cannot be written never fails an answer.

Cancel a background response that another server on the same store generates.

The request is a row in the store. The server that runs the response looks for such rows with each checkpoint
(`service.py`), ends the response and writes how it ended, which is read here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Container
from dataclasses import replace
from typing import TypeVar

import msgspec

from ovserve.api.openai.responses.fold import ResponseFold
from ovserve.api.openai.responses.replay import failed, lost
from ovserve.errors import InvalidArgument, NotFound, Unavailable
from ovserve.services.responses.input import ResolvedRequest
from ovserve.services.responses.run import Run
from ovserve.services.responses.store import Record, ResponseStore, StoreError

LOOK_SECONDS = 0.2
MOST_SECONDS = 10.0  # several checkpoints of the other server


async def cancel_elsewhere(store: ResponseStore, record: Record) -> Record | None:
    """The response as it ended; None if it was deleted meanwhile. Raises Unavailable, StoreError."""
    await store.request_cancel(record.owner, record.id)
    deadline = time.monotonic() + MOST_SECONDS
    current: Record | None = record
    while current is not None and current.server:
        if time.monotonic() > deadline:
            raise Unavailable(
                f"response {record.id!r} runs on another server, which has not cancelled it yet",
                retry_after=1.0,
            )
        await asyncio.sleep(LOOK_SECONDS)
        current = await store.get(record.owner, record.id)
    return current


SERVER_GONE = "the server ended while this response was being generated"
END_LOST = "the end of this response could not be stored"

T = TypeVar("T")

log = logging.getLogger(__name__)


class StoredResponses:
    """`store` None: nothing is stored, and reading is a 404. `running`: ids of this server's runs."""

    def __init__(self, store: ResponseStore | None, running: Container[str]) -> None:
        self.store, self._running = store, running

    async def get(self, owner: str, id_: str) -> Record:
        """Return a response; one whose server died has failed. Raises NotFound, Unavailable."""
        store = self._required()
        record = await _read(store.get(owner, id_))
        if record is not None and record.server:  # another server's, or it has ended since
            if record.server != store.instance:
                await self.fail_orphans()
            record = await _read(store.get(owner, id_))
        if record is None:
            raise unknown(id_)
        if record.server == store.instance and id_ not in self._running:
            record = replace(record, server="", body=failed(record.body, END_LOST))
        return record

    async def end(self, record: Record) -> Record:
        """Return a background response as it ended; one that runs on another server is cancelled there."""
        if not record.server:
            return record
        current = await _read(cancel_elsewhere(self._required(), record))
        if current is None:
            raise unknown(record.id)
        return current

    async def delete(self, owner: str, id_: str) -> bool:
        """Delete a response; return whether there was one. Raises NotFound, Unavailable."""
        return await _read(self._required().delete(owner, id_))

    async def save(
        self, request: ResolvedRequest, fold: ResponseFold, ended: Run | None = None
    ) -> str | None:
        """Write a response as it is now, unless it was deleted while it ran.

        Returns None, or why that failed.
        """
        assert self.store is not None, "requests that store are rejected without a store"
        assert fold.input is not None, "the graph sends it for a response that is stored"
        record = Record(
            id=fold.response.id,
            owner=request.owner,
            created=fold.response.created_at,
            server="" if fold.ended else self.store.instance,
            previous=request.previous,
            body=fold.snapshot(),
            input=fold.input.json,
            log=ended.log if ended else None,
        )
        try:
            ids = [*fold.input.ids, *(item.id for item in fold.response.output)]
            await self.store.put(record, ids, again=ended is not None and ended.stored)
        except StoreError as exc:
            log.error("response %s is not stored: %s", record.id, exc)
            return "the response store failed"
        return None

    async def fail_orphans(self) -> None:
        """Write that the responses of servers that died have failed. A store that fails is tried later."""
        if self.store is None:
            return
        try:
            for record in await self.store.orphans():
                body, events = lost(record.body, record.log, SERVER_GONE)
                await self.store.put(replace(record, server="", body=body, log=events))
        except StoreError as exc:
            log.error("the response store cannot be used: %s", exc)

    def _required(self) -> ResponseStore:
        if self.store is None:
            raise NotFound("this server keeps no responses (--response_store off)")
        return self.store


async def _read(operation: Awaitable[T]) -> T:
    try:
        return await operation
    except StoreError as exc:
        log.error("the response store cannot be read: %s", exc)
        raise Unavailable("the response store cannot be read now") from exc


class _Background(msgspec.Struct):
    background: bool


def is_background(record: Record) -> bool:
    return msgspec.json.decode(record.body, type=_Background).background


def require_background(id_: str, background: bool) -> None:
    """Raises InvalidArgument for a response that ends with its client's connection."""
    if not background:
        raise InvalidArgument(
            f"response {id_!r} was not created with background: true; close its connection to cancel it",
            param="response_id",
        )


def unknown(id_: str) -> NotFound:
    return NotFound(f"response {id_!r} not found", param="response_id")
