"""Which model ended a shared process, from what the process was doing at its end.

A process that ends by itself is a strike against each model that it was loading, unloading or calling. A
model with LIMIT strikes that was alone with the last of them gets a process of its own. A process that was
killed from outside, or by the kernel for want of memory, is not a model's fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from ovserve.engine.protocol.specs import Spec

LIMIT = 2
FORGOTTEN = 600.0  # seconds after the last strike


class Blame:
    """The strikes against models, by specification, so that a new attempt to load one does not clear them."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._strikes: dict[Spec, tuple[int, float]] = {}  # how many, and when the last
        self._quarantined: dict[Spec, float] = {}  # since when

    def ended(self, suspects: Sequence[Spec]) -> None:
        """Record that a process ended by itself while it worked for these."""
        now = self._now()
        for spec in suspects:
            strikes = self.strikes(spec) + 1
            self._strikes[spec] = strikes, now
            if len(suspects) == 1 and strikes >= LIMIT:
                self._quarantined[spec] = now

    def convict(self, spec: Spec) -> None:
        """Record that it is certain: the model stalled, or ended the process while it was loaded."""
        self._quarantined[spec] = self._now()

    def strikes(self, spec: Spec) -> int:
        count, last = self._strikes.get(spec, (0, 0.0))
        return count if self._now() - last < FORGOTTEN else 0

    def quarantined(self, spec: Spec) -> bool:
        """Return whether it has to be loaded into a process of its own."""
        since = self._quarantined.get(spec)
        return since is not None and self._now() - since < FORGOTTEN
