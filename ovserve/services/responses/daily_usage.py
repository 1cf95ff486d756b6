"""DailyUsage: keeps what keys with daily limits have used in the file of stored responses.

It survives a restart, and servers that share the file count together. Every SYNC_SECONDS each server adds
what is new and reads the sum. A limit may be passed by what is answered in that time, and a `kill -9` loses
that much. A file that cannot be used is logged, and the counts of this server hold.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Sequence

from ovserve.access import Guard
from ovserve.access.caller import Caller, Usage
from ovserve.services.responses.store import ResponseStore, StoreError

SYNC_SECONDS = 1.0
KEPT_DAYS = 7  # of counts that are past

TABLE = (
    "CREATE TABLE IF NOT EXISTS daily_usage (key TEXT NOT NULL, day INTEGER NOT NULL,"
    " requests INTEGER NOT NULL, tokens INTEGER NOT NULL, PRIMARY KEY (key, day)) WITHOUT ROWID"
)
ADD = (
    "INSERT INTO daily_usage (key, day, requests, tokens) VALUES (?, ?, ?, ?) ON CONFLICT (key, day)"
    " DO UPDATE SET requests = requests + excluded.requests, tokens = tokens + excluded.tokens"
)

log = logging.getLogger(__name__)


class DailyUsage:
    def __init__(self, guard: Guard, store: ResponseStore | None) -> None:
        self._guard, self._store = guard, store
        self._task: asyncio.Task[None] | None = None
        self._fault = ""
        if store is None and self._limited():
            log.warning("daily limits of keys count from the start of the server: --response_store is off")

    async def start(self) -> None:
        """Read what was used before; `stop` is to follow."""
        await self.sync()
        if self._store is not None:
            self._task = asyncio.create_task(self._run(), name="daily usage of keys")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.sync()

    async def sync(self) -> None:
        """Write what is new, and read what all servers have counted."""
        callers = self._limited()
        if self._store is None or not callers:
            return
        for caller in callers:
            caller.day.current()
        unsaved = [(caller.name, caller.day.unsaved) for caller in callers]
        try:
            totals = await self._store.run(lambda db: _add(db, unsaved))
        except StoreError as error:
            if str(error) != self._fault:
                log.error("the daily usage of keys is not kept: %s", error)
            self._fault = str(error)
            return
        self._fault = ""
        for caller, (_, usage), total in zip(callers, unsaved, totals, strict=True):
            caller.day.saved(usage, total)

    def _limited(self) -> list[Caller]:
        return [entry.caller for entry in self._guard.entries if entry.caller.rights.limited_by_day]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(SYNC_SECONDS)
            await self.sync()


def _add(db: sqlite3.Connection, unsaved: Sequence[tuple[str, Usage]]) -> list[Usage]:
    """Add each, and return the sums in the same order."""
    db.execute(TABLE)
    totals = []
    for name, usage in unsaved:
        if usage.requests or usage.tokens:
            db.execute(ADD, (name, *usage))
        query = "SELECT day, requests, tokens FROM daily_usage WHERE key = ? AND day = ?"
        row = db.execute(query, (name, usage.day)).fetchone()
        totals.append(Usage(*row) if row else Usage(usage.day))
    db.execute("DELETE FROM daily_usage WHERE day < ?", (unsaved[0][1].day - KEPT_DAYS,))
    return totals
