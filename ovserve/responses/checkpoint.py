"""Checkpoints: the new events of running responses are stored once a second, so a kill -9 loses one second.

The same turn looks for responses that another server was asked to cancel (`elsewhere.py`).

Only new events are written, so the cost is linear in the length of the response. The store's thread writes
them, so no stream waits for the disk. After a failure the next turn tries again; the end of a response is
written separately.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from ovserve.responses.run import Run
from ovserve.responses.store import ResponseStore, StoreError

SECONDS = 1.0

log = logging.getLogger(__name__)


class Checkpoints:
    """`runs` is read, at each turn, for what is running then. `cancel` ends one of them."""

    def __init__(
        self,
        store: ResponseStore,
        runs: Mapping[str, Run],
        cancel: Callable[[Run], Awaitable[None]],
        seconds: float = SECONDS,
    ) -> None:
        self._store, self._runs, self._cancel, self._seconds = store, runs, cancel, seconds
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._every_second(), name="checkpoints of responses")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _every_second(self) -> None:
        failed = False
        while True:
            await asyncio.sleep(self._seconds)
            fresh = {run: run.unwritten() for run in self._runs.values() if not run.ended}
            parts = {run.id: part for run, (part, _) in fresh.items() if part}
            if not fresh:
                continue  # nothing runs here
            try:
                if parts:
                    await self._store.append(parts)
                for id_ in await self._store.cancels():
                    if (run := self._runs.get(id_)) is not None:
                        await self._cancel(run)
            except StoreError as exc:
                if not failed:
                    log.error("running responses cannot be stored: %s", exc)
                failed = True
            else:
                failed = False
                for run, (_, written) in fresh.items():
                    run.written = written
