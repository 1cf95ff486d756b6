"""Chooses which waiting requests the engine takes before its next step.

Two kinds wait for a later step, each in the order of arrival:

- The vision part of a model runs when a request is taken in, and all other answers pause for that long;
  docs/images.md explains why it cannot run in parallel to the steps. So at most one request with images is
  taken between two steps.
- What the engine has no room for, such as blocks of its cache, waits until it has, and what came after it
  waits behind it.

Lines of batches wait behind all other prompts. Everything else is taken at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from ovserve.engine.protocol.messages import Abort, Add, ToEngine


class Taker(Protocol):
    """The part of an engine that the queue needs."""

    def encode_prompts(self, requests: list[Add]) -> Mapping[int, Any]: ...
    def can_schedule(self, request: Add, encoded: Any) -> bool: ...


class AdmissionQueue:
    def __init__(self, engine: Taker) -> None:
        self._engine = engine
        self._images: deque[Add] = deque()
        self._prompts: deque[Add] = deque()
        self._encoded: dict[int, Any] = {}
        self._seen = False  # a request with images was taken before this step
        self._stalled = False  # the engine has no room for the first request with images

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
        """Return what to do now with waiting requests. The engine is asked for room when the
        next one is asked for, so what was given must have been done by then."""
        texts = [m for m in messages if isinstance(m, Add) and not m.images]
        self._encoded.update(self._engine.encode_prompts(texts))
        yield from self._next_prompts()
        for message in messages:
            if isinstance(message, Add) and message.images:
                self._images.append(message)
            elif isinstance(message, Add):
                self._insert(message)
                yield from self._next_prompts()
            else:
                if isinstance(message, Abort):
                    self._leave(message.id)
                yield message
        if self._images and not self._seen and self._fits_image(self._images[0]):
            self._seen = True
            yield self._images.popleft()

    def encoded(self, add: Add) -> Any:
        """Return the ids of one that was taken, once; None if the engine encodes it."""
        return self._encoded.pop(add.id, None)

    def _insert(self, add: Add) -> None:
        at = len(self._prompts)
        while at and self._prompts[at - 1].batch and not add.batch:
            at -= 1
        self._prompts.insert(at, add)

    def _next_prompts(self) -> Iterator[Add]:
        """Those that the engine has room for, in their order."""
        while self._prompts and not self._is_behind_image(self._prompts[0]) and self._fits(self._prompts[0]):
            yield self._prompts.popleft()

    def _is_behind_image(self, add: Add) -> bool:
        """Return whether an older request with images waits for room, which others would take for good."""
        return self._stalled and bool(self._images) and self._images[0].id < add.id

    def _fits_image(self, add: Add) -> bool:
        first = self._prompts[0] if self._prompts else None
        if first is not None and first.id < add.id and (add.batch or not first.batch):
            return False
        if add.id not in self._encoded:
            self._encoded.update(self._engine.encode_prompts([add]))
        self._stalled = not self._fits(add)
        return not self._stalled

    def _fits(self, add: Add) -> bool:
        return self._engine.can_schedule(add, self._encoded.get(add.id))

    def _leave(self, id_: int) -> None:
        self._images = deque(add for add in self._images if add.id != id_)
        self._prompts = deque(add for add in self._prompts if add.id != id_)
        self._encoded.pop(id_, None)
