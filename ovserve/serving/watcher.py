"""Reloads without a network call: by the watcher, every --file_system_poll_wait_seconds, and by SIGHUP.

The watcher polls, as OVMS does: kernel notifications do not work for network volumes and mounted
ConfigMaps, where configurations live. A poll compares the times of files and reads only those that
differ.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

from ovserve.access import as_system
from ovserve.errors import LoadError
from ovserve.serving.manager import Manager
from ovserve.serving.status import ReloadResult

log = logging.getLogger(__name__)


class Reloads:
    """Runs reloads. SIGHUP is handled from the start, because it would end the process; a reload waits for
    the first load."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._tasks: set[asyncio.Task[None]] = set()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._on_hangup)

    def start(self, poll_seconds: float) -> None:
        """Start to watch; 0 seconds: never."""
        if poll_seconds > 0:
            self._begin(self._watch(poll_seconds))

    async def stop(self) -> None:
        """Stop watching. The manager ends a running reload. SIGHUP has no effect from now on."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, lambda: None)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_hangup(self) -> None:
        log.info("reloading: SIGHUP")
        self._begin(_logged(self._manager.reload()))

    async def _watch(self, seconds: float) -> None:
        while True:
            await asyncio.sleep(seconds)
            await _logged(self._manager.poll())

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a reload by watcher or SIGHUP failed unexpectedly", exc_info=error)


async def _logged(reload: Coroutine[Any, Any, ReloadResult | None]) -> None:
    """Run a reload; its errors are already in the log and in the states."""
    try:
        with as_system():
            await reload
    except LoadError:
        return
