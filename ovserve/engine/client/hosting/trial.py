"""Trial: the return of one suspected model, while no other suspect returns.

A process that ends meanwhile is this model's doing. The trial covers its load and the calls that are
repeated, and ends after SECONDS at the latest, because the other suspects wait for their turn.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ovserve.engine.client.hosting.blame import Blame
from ovserve.engine.protocol.specs import Spec

if TYPE_CHECKING:
    from ovserve.engine.client.hosting.hosted import HostedModel

SECONDS = 5.0
CALM_SECONDS = 0.2  # without a call; repeated ones are sent right after the load
INTERVAL = 0.05


class Trial:
    """A trial that does not take place until `begin`."""

    def __init__(self, blame: Blame, spec: Spec) -> None:
        self._blame = blame
        self._spec = spec
        self._lock: asyncio.Lock | None = None
        self.hosted: HostedModel | None = None
        self._watching: asyncio.Task[None] | None = None

    async def begin(self, lock: asyncio.Lock) -> None:
        await lock.acquire()
        self._lock = lock
        self._watching = asyncio.create_task(self._watch(), name="trial of a small model")

    @property
    def open(self) -> bool:
        return self._lock is not None

    def of(self, hosted: HostedModel) -> None:
        """Set the model, before it is loaded."""
        self.hosted = hosted

    def loaded(self) -> None:
        """Record that the load has ended, well or not."""
        if self._watching is not None and (self.hosted is None or self.hosted.ended.is_set()):
            self._watching.cancel()

    async def _watch(self) -> None:
        """End the trial when the model is at rest, has gone, or has had its time."""
        assert self._lock is not None
        calm = spent = 0.0
        try:
            while calm < CALM_SECONDS and spent < SECONDS:
                await asyncio.sleep(INTERVAL)
                if (hosted := self.hosted) is None:
                    continue  # the process is starting
                if hosted.ended.is_set():
                    return
                spent += INTERVAL
                calm = calm + INTERVAL if hosted.loaded and not hosted.busy else 0.0
            self._blame.acquit(self._spec)
        finally:
            self._lock.release()
            self._lock = None
