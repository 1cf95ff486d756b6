"""Finds the model that ended a shared process, from what the process was doing at its end.

A process that ends by itself is a strike against each model that it was loading, unloading or calling. If
that was one model, it is known. If there were more, they come back one after the other (`Trial`), each with
the calls that are repeated, so the next end finds one of them alone. A model with MAX_STRIKES strikes that
was alone with the last gets a process of its own, and so does one that was alone and loading. A process that
ends again and again with several models at work loses one of them at MAX_UNRESOLVED_CRASHES strikes.

A process that was killed from outside, or by the kernel for want of memory, is not a model's fault.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from ovserve.engine.protocol.specs import Spec

MAX_STRIKES = 2
MAX_UNRESOLVED_CRASHES = 4
STRIKE_LIFETIME_SECONDS = 600.0  # seconds after the last strike
TRIAL_SECONDS = 5.0
CALM_SECONDS = 0.2  # without a call; repeated ones are sent right after the load
TRIAL_INTERVAL = 0.05


class Blame:
    """The strikes against models, by specification, so that a new attempt to load one does not clear them."""

    def __init__(self) -> None:
        self._strikes: dict[Spec, tuple[int, float]] = {}  # how many, and when the last
        self._suspected: set[Spec] = set()
        self._quarantined: dict[Spec, float] = {}  # since when

    def ended(self, suspects: Sequence[Spec]) -> None:
        """Record that a process ended by itself while it worked for these, the longest first."""
        for spec in suspects:
            self._strikes[spec] = self.strikes(spec) + 1, time.monotonic()
            self._suspected.add(spec)
        if not suspects:
            return
        worst = max(suspects, key=self.strikes)
        if self.strikes(worst) >= (MAX_STRIKES if len(suspects) == 1 else MAX_UNRESOLVED_CRASHES):
            self.convict(worst)

    def convict(self, spec: Spec) -> None:
        """Record that it is certain: the model stalled, or ended the process while it alone was loaded."""
        self._quarantined[spec] = time.monotonic()

    def acquit(self, spec: Spec) -> None:
        """Record that it has come back, and the process goes on. Its strikes still count."""
        self._suspected.discard(spec)

    def strikes(self, spec: Spec) -> int:
        count, last = self._strikes.get(spec, (0, 0.0))
        return count if time.monotonic() - last < STRIKE_LIFETIME_SECONDS else 0

    def suspected(self, spec: Spec) -> bool:
        """Return whether it has to come back while no other suspect does."""
        return spec in self._suspected and self.strikes(spec) > 0

    def quarantined(self, spec: Spec) -> bool:
        """Return whether it has to be loaded into a process of its own."""
        since = self._quarantined.get(spec)
        return since is not None and time.monotonic() - since < STRIKE_LIFETIME_SECONDS


class Trial:
    """The return of one suspected model, while no other suspect returns; it takes place from `begin` on.

    A process that ends meanwhile is this model's doing. The trial covers its load and the calls that are
    repeated, and ends after TRIAL_SECONDS at the latest, because the other suspects wait for their turn.
    """

    def __init__(self, blame: Blame, spec: Spec) -> None:
        self._blame = blame
        self._spec = spec
        self._lock: asyncio.Lock | None = None
        self._ended: asyncio.Event | None = None  # of the model in a process
        self._is_at_rest: Callable[[], bool] = lambda: False
        self._watching: asyncio.Task[None] | None = None

    async def begin(self, lock: asyncio.Lock) -> None:
        await lock.acquire()
        self._lock = lock
        self._watching = asyncio.create_task(self._watch(), name="trial of a small model")

    @property
    def open(self) -> bool:
        return self._lock is not None

    def of(self, ended: asyncio.Event, is_at_rest: Callable[[], bool]) -> None:
        """Set the end and the state of the model in its process, before it is loaded."""
        self._ended, self._is_at_rest = ended, is_at_rest

    def loaded(self) -> None:
        """Record that the load has ended, well or not."""
        if self._watching is not None and (self._ended is None or self._ended.is_set()):
            self._watching.cancel()

    async def _watch(self) -> None:
        """End the trial when the model is at rest, has gone, or has had its time."""
        assert self._lock is not None
        calm = spent = 0.0
        try:
            while calm < CALM_SECONDS and spent < TRIAL_SECONDS:
                await asyncio.sleep(TRIAL_INTERVAL)
                if self._ended is None:
                    continue  # the process is starting
                if self._ended.is_set():
                    return
                spent += TRIAL_INTERVAL
                calm = calm + TRIAL_INTERVAL if self._is_at_rest() else 0.0
            self._blame.acquit(self._spec)
        finally:
            self._lock.release()
            self._lock = None
