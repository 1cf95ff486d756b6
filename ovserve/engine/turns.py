"""Which requests of those that have arrived the engine takes before its next step; used by `worker.py`.

The vision part of a model runs when a request is taken in, and all other answers stand still for that long
(docs/images.md tells why it cannot run beside the steps). So of requests with images one is taken between two
steps, in the order of their arrival, and the rest wait; everything else is taken at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ovserve.engine.messages import Abort, Add, ToEngine


class Turns:
    def __init__(self) -> None:
        self._waiting: deque[Add] = deque()
        self._taken = False

    @property
    def waiting(self) -> bool:
        return bool(self._waiting)

    def begin(self) -> None:
        """Once between two steps."""
        self._taken = False

    def take(self, messages: Sequence[ToEngine]) -> list[ToEngine]:
        """What to do now of what has arrived and of what has waited."""
        now: list[ToEngine] = []
        for message in messages:
            if isinstance(message, Add) and message.images:
                self._waiting.append(message)
            else:
                now.append(message)
                if isinstance(message, Abort):
                    self._waiting = deque(add for add in self._waiting if add.id != message.id)
        if self._waiting and not self._taken:
            self._taken = True
            now.append(self._waiting.popleft())
        return now
