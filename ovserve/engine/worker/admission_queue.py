"""Chooses which waiting requests the engine takes before its next step.

Three kinds wait for a later step, each in the order of arrival:

- The vision part of a model runs when a request is taken in, and all other answers pause for that long;
  docs/images.md explains why it cannot run in parallel to the steps. So at most one request with images is
  taken between two steps.
- A prompt that would be cut by the end of the next step waits for the one after it
  (`decoding/token_budget.py`). A short one may overtake: those that wait here, and those that the library is
  reading.
- A request that has to be the first in the library (`decoding/echo_order.py`) waits until all that run are
  done. What came after it waits behind it for HOLD_SECONDS, so that the engine gets empty; then it is let in,
  and the request takes its chance. After PATIENCE_SECONDS the engine gets the request, to reject it.

Everything else is taken at once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from ovserve.engine.decoding.echo_order import comes_first
from ovserve.engine.protocol.messages import Abort, Add, ToEngine

HOLD_SECONDS = 10.0
PATIENCE_SECONDS = 45.0  # less than the server waits for an admission by default


class Taker(Protocol):
    """The part of an engine that the queue needs."""

    def encode_prompts(self, requests: list[Add]) -> Mapping[int, Any]: ...
    def can_schedule(self, encoded: Any) -> bool: ...
    def overtakes(self, encoded: Any) -> bool: ...
    def can_schedule_first(self, encoded: Any) -> bool: ...


class AdmissionQueue:
    def __init__(self, engine: Taker, now: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._now = now
        self._firsts: deque[tuple[Add, float]] = deque()  # and when they came
        self._images: deque[Add] = deque()
        self._prompts: deque[Add] = deque()
        self._encoded: dict[int, Any] = {}
        self._seen = False  # a request with images was taken before this step

    @property
    def waiting(self) -> bool:
        return bool(self._images or self._prompts or self._firsts)

    @property
    def full(self) -> bool:
        """The next step has no room for those that wait already."""
        return bool(self._prompts)

    def begin(self) -> None:
        """Once between two steps."""
        self._seen = False

    def take(self, messages: Sequence[ToEngine]) -> Iterator[ToEngine]:
        """Return what to do now with waiting requests. The engine is asked for room when the
        next one is asked for, so what was given must have been done by then."""
        texts = [m for m in messages if isinstance(m, Add) and not m.images]
        self._encoded.update(self._engine.encode_prompts(texts))
        self._firsts.extend((add, self._now()) for add in texts if comes_first(add.sampling))
        yield from self._next_firsts()
        yield from self._next_prompts()
        for message in messages:
            if isinstance(message, Add) and message.images:
                self._images.append(message)
            elif isinstance(message, Add):
                if not comes_first(message.sampling):
                    self._prompts.append(message)
                    yield from self._next_prompts()
            else:
                if isinstance(message, Abort):
                    self._leave(message.id)
                yield message
        if self._images and not self._seen and not self._held(self._images[0]):
            self._seen = True
            yield self._images.popleft()

    def encoded(self, add: Add) -> Any:
        """Return the ids of one that was taken, once; None if the engine encodes it."""
        return self._encoded.pop(add.id, None)

    def _next_prompts(self) -> Iterator[Add]:
        """Those that the next step has room for, in their order, and those that go ahead of it."""
        while self._prompts and self._fits(self._prompts[0]):
            yield self._prompts.popleft()
        for add in [*self._prompts]:
            encoded = self._encoded.get(add.id)
            if encoded is not None and not self._held(add) and self._engine.overtakes(encoded):
                self._prompts.remove(add)
                yield add

    def _next_firsts(self) -> Iterator[Add]:
        while self._firsts:
            add, came = self._firsts[0]
            encoded = self._encoded.get(add.id)
            waits = encoded is not None and not self._engine.can_schedule_first(encoded)
            if waits and self._now() - came < PATIENCE_SECONDS:
                return
            self._firsts.popleft()
            yield add

    def _held(self, add: Add) -> bool:
        """Return whether it waits so that the engine becomes empty. Ids are in the order of arrival."""
        if not self._firsts:
            return False
        first, came = self._firsts[0]
        return first.id < add.id and self._now() - came < HOLD_SECONDS

    def _fits(self, add: Add) -> bool:
        if self._held(add):
            return False
        encoded = self._encoded.get(add.id)
        return encoded is None or self._engine.can_schedule(encoded)

    def _leave(self, id_: int) -> None:
        self._images = deque(add for add in self._images if add.id != id_)
        self._prompts = deque(add for add in self._prompts if add.id != id_)
        self._firsts = deque(first for first in self._firsts if first[0].id != id_)
        self._encoded.pop(id_, None)
