"""Which requests of those that have arrived the engine takes before its next step.

Two kinds wait for a later step, each in the order of arrival:

- The vision part of a model runs when a request is taken in, and all other answers stand still for that long
  (docs/images.md explains why it cannot run beside the steps). So of requests with images one is taken
  between two steps.
- A prompt that would be cut by the end of the next step waits for the one after it
  (`decoding/token_budget.py`). A short one may overtake: those that wait here, and those that the library is
  reading.

Everything else is taken at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from ovserve.engine.protocol.messages import Abort, Add, ToEngine


class Taker(Protocol):
    """What is asked of an engine."""

    def encode_prompts(self, requests: list[Add]) -> Mapping[int, Any]: ...
    def can_schedule(self, encoded: Any) -> bool: ...
    def overtakes(self, encoded: Any) -> bool: ...


class AdmissionQueue:
    def __init__(self, engine: Taker) -> None:
        self._engine = engine
        self._images: deque[Add] = deque()
        self._prompts: deque[Add] = deque()
        self._encoded: dict[int, Any] = {}
        self._seen = False  # a request with images was taken before this step

    @property
    def waiting(self) -> bool:
        return bool(self._images or self._prompts)

    @property
    def full(self) -> bool:
        """The next step has no room for those that wait already."""
        return bool(self._prompts)

    def begin(self) -> None:
        """Once between two steps."""
        self._seen = False

    def take(self, messages: Sequence[ToEngine]) -> Iterator[ToEngine]:
        """What to do now of what has arrived and of what has waited. The engine is asked for room when the
        next one is asked for, so what was given must have been done by then."""
        texts = [m for m in messages if isinstance(m, Add) and not m.images]
        self._encoded.update(self._engine.encode_prompts(texts))
        yield from self._next_prompts()
        for message in messages:
            if isinstance(message, Add) and message.images:
                self._images.append(message)
            elif isinstance(message, Add):
                self._prompts.append(message)
                yield from self._next_prompts()
            else:
                if isinstance(message, Abort):
                    self._leave(message.id)
                yield message
        if self._images and not self._seen:
            self._seen = True
            yield self._images.popleft()

    def encoded(self, add: Add) -> Any:
        """Of one that was taken, once; None: it is for the engine to encode."""
        return self._encoded.pop(add.id, None)

    def _next_prompts(self) -> Iterator[Add]:
        """Those that the next step has room for, in their order, and those that go ahead of it."""
        while self._prompts and self._fits(self._prompts[0]):
            yield self._prompts.popleft()
        for add in [*self._prompts]:
            encoded = self._encoded.get(add.id)
            if encoded is not None and self._engine.overtakes(encoded):
                self._prompts.remove(add)
                yield add

    def _fits(self, add: Add) -> bool:
        encoded = self._encoded.get(add.id)
        return encoded is None or self._engine.can_schedule(encoded)

    def _leave(self, id_: int) -> None:
        self._images = deque(add for add in self._images if add.id != id_)
        self._prompts = deque(add for add in self._prompts if add.id != id_)
        self._encoded.pop(id_, None)
